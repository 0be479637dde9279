"""The working tree of a lane, `build/src/<lane>/`: where it is, and what is in it. Changing it is `moving`.

It is a git repository of its own. `refs/heads/series` is what it holds, `refs/opencoti/base` the pristine
source, `refs/opencoti/applied` the last commit that we put there; whatever differs from that is the user's.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ci.git import Repository, join_z, split_z
from ci.locks import exclusive_lock
from ci.patches.model import AppliedTree
from ci.paths import Layout
from ci.pins import SourcePin
from ci.sources.lanes import Lane, find_lane
from opencoti.errors import BuildError, BusyError, MissingError

BASE_REF: Final = "refs/opencoti/base"
APPLIED_REF: Final = "refs/opencoti/applied"
BRANCH: Final = "refs/heads/series"
_STATUS_WORDS: Final = ("--ignored=matching", "--untracked-files=all", "--ignore-submodules=none")
# What `git reset --hard` leaves of a merge, rebase or am that somebody began (case B04).
UNFINISHED: Final = (
    "rebase-apply",
    "rebase-merge",
    "sequencer",
    "MERGE_HEAD",
    "CHERRY_PICK_HEAD",
    "REVERT_HEAD",
    "BISECT_LOG",
)


@dataclass(frozen=True, kw_only=True)
class WorkTree:
    """The places of one lane's working tree."""

    lane: Lane

    @property
    def folder(self) -> Path:
        """The tree itself."""
        return self.lane.tree

    @property
    def git_dir(self) -> Path:
        """Its repository."""
        return self.lane.tree / ".git"

    @property
    def repository(self) -> Repository:
        """The repository with the user's own index."""
        return Repository(git_dir=self.git_dir, work_tree=self.folder)

    @property
    def observer(self) -> Repository:
        """The repository with an index of ours, so that looking changes nothing of the user's."""
        return self.repository.with_index(self.git_dir / "opencoti-index")

    @property
    def marker(self) -> Path:
        """Exists while files are being moved."""
        return self.beside(".moving")

    @property
    def record(self) -> Path:
        """What the last `apply` made; only a cache, so that doing nothing is fast."""
        return self.git_dir / "opencoti-applied.json"

    def beside(self, suffix: str) -> Path:
        """Return a hidden path next to the tree."""
        return self.folder.with_name(f".{self.folder.name}{suffix}")

    @property
    def exists(self) -> bool:
        """Whether there is a repository. An empty folder counts as none."""
        return self.git_dir.is_dir()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the tree against other commands of ours, which take seconds; theirs are waited for."""
        with exclusive_lock(self.beside(".lock"), f"the working tree {self.folder}", wait=True):
            yield


@dataclass(frozen=True, kw_only=True)
class TreeState:
    """What is in a working tree, compared with what we put there."""

    head: str
    applied: str | None
    base: str | None
    has_commits: bool
    """HEAD or the branch holds commits that we did not put there."""
    edits: tuple[str, ...]
    ignored: tuple[str, ...]
    unfinished: tuple[str, ...]

    @property
    def is_clean(self) -> bool:
        """Whether nothing in it is the user's (ignored files aside)."""
        return not (self.has_commits or self.edits or self.unfinished)


def require_tree(layout: Layout, lane_name: str) -> WorkTree:
    """Return the working tree of a lane.

    Raises:
        MissingError: `tree-missing`, nothing was applied yet.
    """
    tree = WorkTree(lane=find_lane(layout, lane_name))
    if not tree.exists:
        raise MissingError(
            "tree-missing", f"there is no working tree {tree.folder}", hint="run `python -m ci apply` first"
        )
    return tree


def refuse_foreign_lock(tree: WorkTree) -> None:
    """Stop if a git command that is not ours is at work, or was killed (case B04).

    Raises:
        BusyError: `tree-locked`; the lock is named and nothing is deleted.
    """
    lock = tree.git_dir / "index.lock"
    if lock.exists() and not tree.marker.exists():
        raise BusyError(
            "tree-locked",
            f"a git command is at work in {tree.folder}",
            why=f"{lock} exists and is not ours",
            hint="let that command end; if none is running, remove the lock and run this again",
        )


def read_state(tree: WorkTree) -> TreeState:
    """Look at a working tree without changing it.

    Raises:
        BuildError: `tree-unusable`, the repository has no HEAD commit or is damaged.
    """
    refs = read_refs(tree)
    if "HEAD" not in refs:
        raise unusable(tree, "its HEAD is no commit")
    head, applied = refs["HEAD"], refs.get(APPLIED_REF)
    edits, ignored = _look(tree, head)
    return TreeState(
        head=head,
        applied=applied,
        base=refs.get(BASE_REF),
        has_commits=any(
            not _is_ours(tree, commit, applied) for commit in {head, refs.get(BRANCH, head)} - {applied}
        ),
        edits=edits,
        ignored=ignored,
        unfinished=tuple(name for name in UNFINISHED if (tree.git_dir / name).exists()),
    )


def read_refs(tree: WorkTree) -> dict[str, str]:
    """Return what HEAD and all refs stand for."""
    lines = tree.repository.try_run("show-ref", "--head").text.splitlines()
    return {name: commit for commit, _, name in (line.partition(" ") for line in lines)}


def _is_ours(tree: WorkTree, commit: str, applied: str | None) -> bool:
    """Tell whether a commit is one of the series that was applied."""
    if applied is None:
        return False
    return tree.repository.try_run("merge-base", "--is-ancestor", commit, applied).is_ok


def _look(tree: WorkTree, head: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    observer = tree.observer
    assert observer.index is not None
    # A look that was killed may have left its own lock; nobody else uses this index under our lock.
    observer.index.with_name(observer.index.name + ".lock").unlink(missing_ok=True)
    if not observer.index.exists() and (tree.git_dir / "index").is_file():
        # Its stat cache saves reading every file.
        shutil.copyfile(tree.git_dir / "index", observer.index)
    observer.run("read-tree", "--reset", head)
    return _status(observer)


def _status(observer: Repository) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return changed or new paths, and ignored ones. Shape of an entry: `XY PATH`, ended by NUL."""
    done = observer.run("status", "--porcelain", "-z", "--no-renames", *_STATUS_WORDS)
    entries = split_z(done.stdout)
    return (
        tuple(entry[3:] for entry in entries if not entry.startswith("!!")),
        tuple(entry[3:] for entry in entries if entry.startswith("!!")),
    )


def unusable(tree: WorkTree, why: str) -> BuildError:
    """Make the error for a tree that is there but cannot be worked with."""
    return BuildError(
        "tree-unusable",
        f"the working tree {tree.folder} cannot be used",
        why=why,
        hint="save what you need of it, then run `python -m ci reset`, which makes it anew",
    )


def tree_as_it_is(tree: WorkTree, state: TreeState) -> str:
    """Return the git tree id of the files as they are, edits and new files included, ignored ones not.

    Raises:
        BuildError: `tree-nested`, a folder in it is a git repository of its own.
    """
    if not state.edits:
        return tree.repository.run("rev-parse", f"{state.head}^{{tree}}").text
    nested = [name for name in state.edits if name.endswith("/")]
    if nested:
        raise BuildError(
            "tree-nested",
            f"{tree.folder / nested[0]} is a git repository inside the working tree",
            why="git takes none of its files into a tree",
            hint="move it elsewhere, or run `python -m ci reset`",
        )
    tree.observer.run(
        "update-index", "--add", "--remove", "--replace", "-z", "--stdin", stdin=join_z(state.edits)
    )
    return tree.observer.write_tree()


def snapshot(layout: Layout, *, lane: str = "auto") -> AppliedTree:
    """Return the working tree as it stands, edits included; `tree` is the id of exactly these files.

    Raises:
        MissingError: `tree-missing`.
        BuildError: `tree-unusable`, `tree-nested`.
        BusyError: `lock-held`, `tree-locked`.
    """
    from ci.patches.moving import recover
    from ci.patches.record import recorded_tree

    tree = require_tree(layout, lane)
    with tree.locked():
        refuse_foreign_lock(tree)
        recover(tree)
        state = read_state(tree)
        return recorded_tree(
            tree, SourcePin.load(tree.lane.pin), commit=state.head, tree_id=tree_as_it_is(tree, state)
        )
