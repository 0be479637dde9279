"""Git as this project uses it: repositories named explicitly, and nothing of the machine's own settings.

Every call names the repository, the working tree and the index, so git searches for none and its ownership
check (case B09) has nothing to object to. System and user configuration, hooks, attributes and ignore files,
the locale, the clock and signing play no part: the same input gives the same object ids everywhere. The one
exception is `fetch_environment`, since the network belongs to the machine.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ci import process
from opencoti.errors import BuildError, StorageError
from opencoti.files import write_atomic

NO_COMMIT: Final = "0" * 40
EPOCH_S: Final = 946684800
"""Date of every commit of ours, 2000-01-01 UTC: git tools take the true epoch for "no date"."""

# The tree's own .gitattributes may ask for conversions; info/attributes outranks it, and bytes stay bytes.
_ATTRIBUTES: Final = "* -text -eol -ident -filter -working-tree-encoding -export-ignore -export-subst\n"
_SETTINGS: Final = (
    "core.autocrlf=false",
    "core.safecrlf=false",
    "core.fileMode=true",
    "core.symlinks=true",
    "core.ignoreCase=false",
    "core.quotePath=true",
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null",
    "gc.auto=0",
    "maintenance.auto=false",
    "i18n.commitEncoding=utf-8",
    "advice.addEmbeddedRepo=false",
)
_CONFIG: Final = """[core]
\trepositoryformatversion = 0
\tbare = false
\tautocrlf = false
\tsafecrlf = false
\tfilemode = true
\tsymlinks = true
\tignorecase = false
\tlogallrefupdates = true
[gc]
\tauto = 0
"""
# git removes a file that it could not write whole, so a full disk has a little space again.
_FULL_BYTES: Final = 4 << 20
_IDENTITY: Final = {"NAME": "opencoti", "EMAIL": "patches@opencoti.invalid"}
# What git itself calls local to a repository: a variable left over from a hook would redirect our calls.
_REPOSITORY_VARIABLES: Final = frozenset(
    {
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_COMMON_DIR",
        "GIT_CONFIG",
        "GIT_DIR",
        "GIT_GRAFT_FILE",
        "GIT_INDEX_FILE",
        "GIT_NAMESPACE",
        "GIT_OBJECT_DIRECTORY",
        "GIT_PREFIX",
        "GIT_SHALLOW_FILE",
        "GIT_WORK_TREE",
    }
)


def closed_environment() -> dict[str, str]:
    """Return the environment in which git depends on nothing but its arguments."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env |= {
        "LC_ALL": "C",
        "TZ": "UTC",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_DEFAULT_HASH": "sha1",
        "GIT_DEFAULT_REF_FORMAT": "files",
        "GIT_TERMINAL_PROMPT": "0",
    }
    return env | _signature(0)


def fetch_environment() -> dict[str, str]:
    """Return the environment for network access: proxies, CA, credentials and rewrites stay the user's."""
    env = {name: value for name, value in os.environ.items() if name not in _REPOSITORY_VARIABLES}
    return env | {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"}


def _signature(number: int) -> dict[str, str]:
    date = f"{EPOCH_S + number} +0000"
    return {
        f"GIT_{role}_{field}": value
        for role in ("AUTHOR", "COMMITTER")
        for field, value in (*_IDENTITY.items(), ("DATE", date))
    }


@dataclass(frozen=True, kw_only=True)
class Repository:
    """One repository with the tree and the index that a call works on."""

    git_dir: Path
    work_tree: Path | None = None
    index: Path | None = None

    def with_index(self, index: Path) -> Repository:
        """Return the same repository with another index."""
        return Repository(git_dir=self.git_dir, work_tree=self.work_tree, index=index)

    def try_run(
        self, *words: str | Path, stdin: bytes | None = None, env: Mapping[str, str] | None = None
    ) -> process.Completed:
        """Run git and return what came of it, whatever the exit code.

        Raises:
            MissingError: `program-missing`, there is no git.
        """
        full = closed_environment() | (dict(env) if env else {})
        if self.index is not None:
            full["GIT_INDEX_FILE"] = str(self.index)
        return process.run(self._argv(words), cwd=self.work_tree or self.git_dir, env=full, stdin=stdin)

    def run(
        self, *words: str | Path, stdin: bytes | None = None, env: Mapping[str, str] | None = None
    ) -> process.Completed:
        """Run git and return its output.

        Raises:
            BuildError: `git-failed`, with git's own first line of complaint.
            StorageError: `git-disk-full`.
            MissingError: `program-missing`, there is no git.
        """
        done = self.try_run(*words, stdin=stdin, env=env)
        if not done.is_ok:
            raise git_failed(done, self.git_dir, str(words[0]))
        return done

    def _argv(self, words: Sequence[str | Path]) -> list[str | Path]:
        place: list[str | Path] = [f"--git-dir={self.git_dir}"]
        if self.work_tree is not None:
            place += [f"--work-tree={self.work_tree}", "-c", "core.bare=false"]
        settings = [word for setting in _SETTINGS for word in ("-c", setting)]
        return ["git", *place, *settings, *words]

    def init(self) -> None:
        """Create the repository: no template, no hooks, byte-exact attributes."""
        self.git_dir.mkdir(parents=True, exist_ok=True)
        kind = "--bare" if self.work_tree is None else "--quiet"
        self.run("init", "--quiet", kind, "--template=", "--object-format=sha1", "--initial-branch=series")
        write_atomic(self.git_dir / "info" / "attributes", _ATTRIBUTES.encode())
        # For whoever runs git here by hand: with these, their own settings convert nothing either.
        text = _CONFIG if self.work_tree else _CONFIG.replace("bare = false", "bare = true")
        write_atomic(self.git_dir / "config", text.encode())

    def write_tree(self) -> str:
        """Write the index as a tree; return its id."""
        return self.run("write-tree").text

    def commit_tree(self, tree: str, parent: str | None, message: str, number: int) -> str:
        """Write a commit whose id depends on the arguments only; return its id.

        Args:
            tree: id of its tree.
            parent: id of its parent, `None` for a first commit.
            message: whole message.
            number: place in the series; the commit's date is that many seconds after `EPOCH_S`.
        """
        parents = ("-p", parent) if parent else ()
        done = self.run(
            "commit-tree",
            tree,
            *parents,
            stdin=message.encode("utf-8", "surrogateescape"),
            env=_signature(number),
        )
        return done.text

    def resolve(self, name: str) -> str | None:
        """Return the id that a revision stands for, `None` if there is no such object."""
        done = self.try_run("rev-parse", "--verify", "--quiet", "--end-of-options", name)
        return done.text if done.is_ok else None


def _free_bytes(folder: Path) -> int | None:
    """Return the free space where `folder` is, None where that cannot be told."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return None
    return usage.free if usage.total else None


def git_failed(
    done: process.Completed,
    where: Path,
    action: str,
    *,
    free_bytes: Callable[[Path], int | None] = _free_bytes,
) -> BuildError | StorageError:
    """Make the error for a git call that should have worked; a full disk is told by measuring it."""
    lines = [line for line in done.error_text.splitlines() if line.strip()] or [f"exit code {done.code}"]
    free = free_bytes(where)
    if free is not None and free < _FULL_BYTES:
        return StorageError(
            "git-disk-full",
            f"git {action} failed in {where}",
            why=f"{free >> 10} KiB are free there; git says: {lines[0]}",
            hint="free some space, or move the checkout to a larger disk",
        )
    return BuildError(
        "git-failed",
        f"git {action} failed in {where}",
        why=lines[0],
        hint="check free space and permissions there; `git --version` must be 2.35 or newer",
    )


def split_z(data: bytes) -> list[str]:
    """Split the output of a git command that was given `-z`; names are kept byte for byte."""
    return [part.decode("utf-8", "surrogateescape") for part in data.split(b"\0") if part]


def join_z(names: Sequence[str]) -> bytes:
    """Make the input of a git command that is given `-z --stdin`."""
    return b"".join(name.encode("utf-8", "surrogateescape") + b"\0" for name in names)
