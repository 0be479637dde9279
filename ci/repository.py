"""What an artifact records of this repository: the commit it was cut from, and whether anything differs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ci import process
from ci.frozen import changed_files, read_record
from ci.git import closed_environment
from opencoti.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class RepositoryFacts:
    """State of the checkout; `commit` has 40 hex digits."""

    commit: str
    is_dirty: bool


def repository_facts(root: Path) -> RepositoryFacts:
    """Tell from which commit the tree at `root` is: git knows, or the record of a frozen source.

    Raises:
        ConfigError: `no-commit`, it is no repository, or has no commit yet; the record is malformed.
        MissingError: `program-missing`, there is no git.
    """
    if not (root / ".git").exists() and (record := read_record(root)) is not None:
        return RepositoryFacts(commit=record.commit, is_dirty=bool(changed_files(root, record)))
    head = read_git(root, "rev-parse", "--verify", "HEAD")
    if not head.is_ok:
        raise ConfigError(
            "no-commit",
            f"cannot tell from which commit {root} is",
            why=(head.error_text or "git gave no commit").splitlines()[0],
            hint="package from a git clone: the manifest names the commit",
        )
    status = read_git(root, "status", "--porcelain", "--untracked-files=normal")
    return RepositoryFacts(commit=head.text, is_dirty=bool(status.text) or not status.is_ok)


def read_git(root: Path, *words: str, stdin: bytes | None = None) -> process.Completed:
    """Run a git command that only reads the checkout at `root`; any exit code is returned.

    Raises:
        MissingError: `program-missing`, there is no git.
    """
    # The checkout may belong to another user than the one who builds (case B09); reading it is safe, since
    # hooks and file-system monitors stay off.
    settings = [f"safe.directory={root}", "core.fsmonitor=false", "core.hooksPath=/dev/null"]
    return process.run(
        ["git", *(word for setting in settings for word in ("-c", setting)), *words],
        cwd=root,
        env=closed_environment(),
        stdin=stdin,
    )
