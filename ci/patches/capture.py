"""Turning work in the tree into a patch of the series.

How the patch itself is made, and proved before it is written, is `making`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from ci.git import Repository
from ci.patches.apply import compute
from ci.patches.making import Work, mail_header, make_patch
from ci.patches.model import AppliedTree
from ci.patches.moving import adopt, recover
from ci.patches.record import write_lock, write_record
from ci.patches.series import SUFFIX, Patch, Series, read_series, require_valid, stem_problem, title_from_name
from ci.patches.worktree import (
    TreeState,
    WorkTree,
    read_state,
    refuse_foreign_lock,
    require_tree,
    tree_as_it_is,
)
from ci.paths import Layout
from ci.pins import SourcePin
from ci.sources.vendoring import VendoredSource, vendor
from opencoti.console import Console
from opencoti.errors import BuildError, UsageError
from opencoti.files import write_atomic

_OUR_TRAILERS: Final = re.compile(r"(?m)^(?:Patch|Patch-SHA256): .*\n?")


@dataclass(frozen=True, kw_only=True)
class Captured:
    """A new patch of the series, and the tree with it applied."""

    patch: Patch
    tree: AppliedTree
    context_lines: int


@dataclass(frozen=True, kw_only=True)
class _Start:
    """What the work is on top of. `below` is the commit that the new patch comes after."""

    below: str
    applied_tree: str
    has_commits: bool


def capture(
    layout: Layout, console: Console, name: str, *, lane: str = "auto", replace_last: bool = False
) -> Captured:
    """Write the work on top of the applied series as patch `name` of it, and adopt it as applied.

    Commits are captured as one patch; if there are none, uncommitted edits are. The files of the tree stay
    as they are. With `replace_last`, the last patch of the series is written anew with the work in it.

    Raises:
        UsageError: `capture-name`.
        BuildError: `capture-nothing`; `capture-stale`, the tree is not on top of the series;
            `capture-failed`, no patch gives this tree; `tree-nested`, `tree-unusable`.
        VerificationError: `patch-unsafe`, for instance a link out of the tree.
        MissingError: `tree-missing`.
        BusyError: `tree-locked`.
    """
    tree = require_tree(layout, lane)
    series = read_series(tree.lane.series)
    require_valid(series)
    _require_name(series, name, replace_last)
    source = vendor(layout, SourcePin.load(tree.lane.pin), console)
    with tree.locked():
        refuse_foreign_lock(tree)
        recover(tree)
        return _capture(tree, source, series, name, replace_last, console)


def _require_name(series: Series, name: str, replace_last: bool) -> None:
    why = stem_problem(name)
    used = [patch.name for patch in series.patches if patch.name[:5] == name[:5]]
    last = series.patches[-1].name.removesuffix(SUFFIX) if series.patches else "none, the series is empty"
    if not why and replace_last and name != last:
        why = f"only the last patch can be replaced, and that is {last}"
    elif not why and not replace_last and used:
        why = f"its number is used by {used[0]}"
    elif not why and not replace_last and series.patches and name < last:
        why = f"it would stand before {last}, and work is captured on top of the whole series"
    if why:
        raise UsageError(
            "capture-name", f"cannot capture as {name!r}", why=why, hint="for instance: 0004-answer-faster"
        )


def _capture(
    tree: WorkTree, source: VendoredSource, series: Series, name: str, replace_last: bool, console: Console
) -> Captured:
    state = read_state(tree)
    applied = compute(tree, source, series)
    parents = (applied.base_commit, *(patch.commit for patch in applied.patches))
    start = _Start(
        below=parents[-2] if replace_last else parents[-1],
        applied_tree=applied.tree,
        has_commits=state.head not in parents,
    )
    _require_on_top(tree, state, start)
    work = _find_work(tree, state, start, console)
    if replace_last:
        title, description = series.patches[-1].title, series.patches[-1].description
        series = replace(series, patches=series.patches[:-1])
    else:
        title, description = _message(tree.repository, start, state.head, name)
        if not description:
            console.warn(f"{name} says nothing of why it is, nor how to drop it: describe it in its commit")
    header = mail_header(title, description)
    patch, context_lines = make_patch(tree.repository, series, work, name, header, source.tree)
    result = compute(tree, source, replace(series, patches=(*series.patches, patch)))
    assert result.tree == work.tree, f"{patch.name} was proved to give {work.tree}, and gave {result.tree}"
    write_atomic(patch.path, patch.data)
    write_lock(series.folder, source.pin, source.tree, result.patches)
    _adopt(tree, start, result)
    return Captured(patch=patch, tree=result, context_lines=context_lines)


def _adopt(tree: WorkTree, start: _Start, result: AppliedTree) -> None:
    """Make the tree the applied one: its files are that already. A kill before this loses nothing."""
    adopt(tree, result.commit, index_too=not start.has_commits)
    write_record(tree, result)


def _require_on_top(tree: WorkTree, state: TreeState, start: _Start) -> None:
    why = f"a git operation is unfinished ({state.unfinished[0]})" if state.unfinished else ""
    if not tree.repository.try_run("merge-base", "--is-ancestor", start.below, state.head).is_ok:
        why = why or f"HEAD {state.head[:12]} does not descend from {start.below[:12]}"
    if why:
        raise BuildError(
            "capture-stale",
            f"the working tree {tree.folder} is not on top of the series as it is now",
            why=why,
            hint="bring your work onto the applied series (`git rebase`), or undo the change of the series",
        )


def _find_work(tree: WorkTree, state: TreeState, start: _Start, console: Console) -> Work:
    """Return what is to be captured: the commits on top, or if there are none, the edits."""
    parent = tree.repository.run("rev-parse", f"{start.below}^{{tree}}").text
    if start.has_commits:
        wanted = tree.repository.run("rev-parse", f"{state.head}^{{tree}}").text
    else:
        wanted = tree_as_it_is(tree, state)
    if wanted in (parent, start.applied_tree):
        raise BuildError(
            "capture-nothing",
            f"there is nothing to capture in {tree.folder}",
            why="its files are those of the applied series" if wanted != parent else "the change is empty",
            hint="edit and commit there first",
        )
    if not start.has_commits:
        console.warn(f"no commits on top of the series: {len(state.edits)} uncommitted changes are captured")
    elif state.edits:
        console.warn(f"{len(state.edits)} uncommitted changes are left out, first {state.edits[0]}")
    return Work(parent_tree=parent, tree=wanted)


def _message(repository: Repository, start: _Start, head: str, name: str) -> tuple[str, str]:
    """Return title and description, from the commits if there are any, else from the name."""
    if not start.has_commits:
        return title_from_name(name), ""
    log = repository.run("log", "-z", "--reverse", "--format=%s%n%n%b", f"{start.below}..{head}").text
    messages = [_OUR_TRAILERS.sub("", message).strip() for message in log.split("\0") if message.strip()]
    title, _, description = messages[0].partition("\n")
    others = "".join(f"\n- {message.splitlines()[0]}" for message in messages[1:] if message)
    return title or title_from_name(name), (description.strip() + others).strip()
