"""Carrying one patch over to another source, on git objects alone: no index of the user's, no working tree.

First strictly, as `apply` does it. Where that does not fit, three ways: what the patch does to its own source
is merged with what upstream did since, so that moved and renamed code is found. A merge that changes nothing
means that upstream has it already.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ci.git import Repository, git_failed
from ci.patches.model import Offset
from ci.patches.objects import apply_to_tree, count_runs
from ci.patches.parsing import FileChange, Hunk
from ci.patches.series import Patch
from opencoti.errors import BuildError, MissingError

State = Literal["clean", "offset", "three-way", "upstream", "conflict"]
STATE_TEXTS: Final[dict[State, str]] = {
    "clean": "applies as it is",
    "offset": "applies some lines away",
    "three-way": "applies by a three-way merge",
    "upstream": "already in the new source",
    "conflict": "conflicts",
}
_LINE: Final = re.compile(rb"[^\n]*\n|[^\n]+")
_CONFLICTED: Final = 1  # exit code of `git merge-tree`
_USAGE: Final = 129


@dataclass(frozen=True, kw_only=True)
class Conflict:
    """One file that has to be mended by hand.

    Attributes:
        hunks: numbers of the patch's hunks whose old lines the new source does not have.
        message: what git says about the file.
    """

    file: str
    hunks: tuple[int, ...]
    message: str

    def __str__(self) -> str:
        hunks = f", hunk{'s' if len(self.hunks) > 1 else ''} {', '.join(map(str, self.hunks))}"
        return f"{self.file}{hunks if self.hunks else ''}: {self.message}"


@dataclass(frozen=True, kw_only=True)
class Carried:
    """What became of one patch; `tree` is the new source with it, or without it where it conflicts."""

    state: State
    tree: str
    offsets: tuple[Offset, ...] = ()
    merged: tuple[str, ...] = ()
    conflicts: tuple[Conflict, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Merge:
    tree: str
    conflicted: tuple[str, ...]
    messages: tuple[tuple[tuple[str, ...], str], ...]


def carry(repository: Repository, patch: Patch, target: str, *, before: str, after: str) -> Carried:
    """Bring a patch to the tree `target`.

    Args:
        repository: holds all trees; new objects go there.
        patch: linted.
        target: tree of the new source with the patches before this one.
        before: tree of the old source with the patches before this one.
        after: `before` with this patch.

    Raises:
        MissingError: `git-too-old`.
        BuildError: `git-failed`.
    """
    try:
        tree, offsets = apply_to_tree(repository, patch, target)
    except BuildError:
        return _carry_three_ways(repository, patch, target, before=before, after=after)
    return Carried(state="offset" if offsets else "clean", tree=tree, offsets=offsets)


def _carry_three_ways(
    repository: Repository, patch: Patch, target: str, *, before: str, after: str
) -> Carried:
    merge = _merge(repository, before, target, after)
    if merge.conflicted:
        conflicts = tuple(_conflict(repository, patch, target, name, merge) for name in merge.conflicted)
        return Carried(state="conflict", tree=target, conflicts=conflicts)
    if merge.tree == target:
        return Carried(state="upstream", tree=target)
    return Carried(state="three-way", tree=merge.tree, merged=_unfitting(repository, patch, target))


def _merge(repository: Repository, base: str, ours: str, theirs: str) -> _Merge:
    """Merge two trees that come from one; git wants commits, which nothing refers to afterwards."""
    root = repository.commit_tree(base, None, "base", 0)
    sides = [repository.commit_tree(tree, root, "side", number) for number, tree in enumerate((ours, theirs))]
    done = repository.try_run("merge-tree", "--write-tree", "-z", "--name-only", "--messages", *sides)
    if done.code == _USAGE:
        raise MissingError(
            "git-too-old",
            "this git cannot merge without a working tree",
            why=done.error_text.partition("\n")[0],
            hint="install git 2.38 or newer",
        )
    if done.code not in (0, _CONFLICTED):
        raise git_failed(done, repository.git_dir, "merge-tree")
    return _read_merge(done.stdout)


def _read_merge(data: bytes) -> _Merge:
    """Read the output of `git merge-tree -z`: `TREE 0 (NAME 0)* 0 (COUNT 0 (NAME 0)* KIND 0 TEXT 0)*`."""
    fields = iter(data.decode("utf-8", "surrogateescape").split("\0"))
    tree = next(fields)
    conflicted = tuple(iter(lambda: next(fields, ""), ""))
    return _Merge(
        tree=tree, conflicted=tuple(dict.fromkeys(conflicted)), messages=tuple(_read_messages(fields))
    )


def _read_messages(fields: Iterator[str]) -> Iterator[tuple[tuple[str, ...], str]]:
    for count in fields:
        if not count:
            return
        names = tuple(next(fields) for _ in range(int(count)))
        kind, text = next(fields), next(fields)
        if kind != "Auto-merging":
            yield names, " ".join(text.split())


def _conflict(repository: Repository, patch: Patch, target: str, name: str, merge: _Merge) -> Conflict:
    texts = [text for names, text in merge.messages if name in names]
    hunks = [hunk.number for hunk in _unfitting_hunks(repository, _changes_of(patch, name), target)]
    return Conflict(file=name, hunks=tuple(hunks), message=texts[0] if texts else "conflict")


def _changes_of(patch: Patch, name: str) -> list[FileChange]:
    return [change for change in patch.parsed.changes if name in change.names]


def _unfitting(repository: Repository, patch: Patch, target: str) -> tuple[str, ...]:
    """Return the files of a patch that do not fit strictly, with the hunks that do not."""
    found = []
    for change in patch.parsed.changes:
        hunks = [str(hunk.number) for hunk in _unfitting_hunks(repository, [change], target)]
        if hunks:
            found.append(f"{change.name} (hunk{'s' if len(hunks) > 1 else ''} {', '.join(hunks)})")
    return tuple(found)


def _unfitting_hunks(repository: Repository, changes: Sequence[FileChange], target: str) -> Iterator[Hunk]:
    """Yield the hunks whose old text does not stand in the file exactly once."""
    for change in changes:
        done = repository.try_run("cat-file", "blob", f"{target}:{change.old_name}")
        lines = _LINE.findall(done.stdout) if done.is_ok else []
        exists = done.is_ok
        for hunk in change.hunks:
            fits = not exists if change.is_new else count_runs(lines, hunk.old) == 1
            if not fits:
                yield hunk
