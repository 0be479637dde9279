"""What an artifact records of this repository: the commit it was cut from, and whether anything differs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ci import process
from ci.git import closed_environment
from opencoti.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class RepositoryFacts:
    """State of the checkout; `commit` has 40 hex digits."""

    commit: str
    is_dirty: bool


def repository_facts(root: Path) -> RepositoryFacts:
    """Ask git for the commit of the checkout at `root`.

    Raises:
        ConfigError: `no-commit`, it is no repository, or has no commit yet.
        MissingError: `program-missing`, there is no git.
    """
    head = _git(root, "rev-parse", "--verify", "HEAD")
    if not head.is_ok:
        raise ConfigError(
            "no-commit",
            f"cannot tell from which commit {root} is",
            why=(head.error_text or "git gave no commit").splitlines()[0],
            hint="package from a git clone: the manifest names the commit",
        )
    status = _git(root, "status", "--porcelain", "--untracked-files=normal")
    return RepositoryFacts(commit=head.text, is_dirty=bool(status.text) or not status.is_ok)


def _git(root: Path, *words: str) -> process.Completed:
    # The checkout may belong to another user than the one who builds (case B09); reading it is safe, since
    # hooks and file-system monitors stay off.
    settings = [f"safe.directory={root}", "core.fsmonitor=false", "core.hooksPath=/dev/null"]
    return process.run(
        ["git", *(word for setting in settings for word in ("-c", setting)), *words],
        cwd=root,
        env=closed_environment(),
    )
