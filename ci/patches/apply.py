"""Bringing a working tree to its patch series, or back to the pristine source.

The whole series is applied in git's object store first. Only when every patch is in, and has given the tree
that it is recorded with, does the working tree move, in one step that touches changed files only: a build
folder that knows the other files by their times stays valid. A patch that fails leaves all as it was.
"""

from __future__ import annotations

import shutil
from dataclasses import replace

from ci.patches.lint import lint_series
from ci.patches.model import AppliedPatch, AppliedTree
from ci.patches.moving import adopt, adopt_source, create, move, recover, sweep, wipe
from ci.patches.objects import Base, apply_series, check_result, links_of
from ci.patches.record import check_lock, read_lock, read_record, write_lock, write_record
from ci.patches.series import Series, first_part, patch_set_hash, read_series, require_valid
from ci.patches.worktree import (
    TreeState,
    WorkTree,
    read_state,
    refuse_foreign_lock,
    tree_as_it_is,
    unusable,
)
from ci.paths import Layout
from ci.pins import SourcePin
from ci.sources.lanes import find_lane
from ci.sources.vendoring import VendoredSource, vendor
from opencoti.console import Console
from opencoti.errors import BuildError, storage_error

__all__ = ["AppliedPatch", "AppliedTree", "apply", "record_series", "reset"]


def apply(
    layout: Layout, console: Console, *, lane: str = "auto", offline: bool = False, until: str = ""
) -> AppliedTree:
    """Apply the series of a lane to its working tree, strictly; do nothing if that is done.

    With `until`, the number of a patch, only the series up to that patch, in a working tree of its own.

    Raises:
        UsageError: `series-until`, there is no such patch.
        BuildError: `patch-failed`, `patch-ambiguous`; `tree-edited`, the tree holds what no patch has;
            `tree-unusable`.
        ConfigError: `series-invalid`, `patch-malformed`, `patch-crlf`, `series-lock-malformed`.
        VerificationError: `patch-unsafe`, `series-tree`; and what `vendor` raises.
        BusyError: `tree-locked`, a git command of the user is at work there.
    """
    return _apply(layout, console, lane=lane, offline=offline, is_compared=True, until=until)


def _apply(
    layout: Layout, console: Console, *, lane: str, offline: bool, is_compared: bool, until: str = ""
) -> AppliedTree:
    found = find_lane(layout, lane)
    series = read_series(found.series)
    require_valid(series)
    if until:
        series = first_part(series, until)
        found = replace(found, tree=found.tree.with_name(f"{found.name}-until-{until}"))
    tree = WorkTree(lane=found)
    source = vendor(layout, SourcePin.load(tree.lane.pin), console, offline=offline)
    with tree.locked():
        _make_usable(tree, source, console)
        state = read_state(tree)
        wanted = compute(tree, source, series)
        _warn_of_offsets(wanted, console)
        if is_compared:
            check_lock(read_lock(series.folder), series, wanted.base_tree, wanted.patches, console)
        _bring_to(tree, state, wanted, console)
    return wanted


def reset(layout: Layout, console: Console, *, lane: str = "auto", offline: bool = False) -> AppliedTree:
    """Bring a working tree back to the pristine source; edits, commits and ignored files in it are lost.

    Commits stay reachable through the repository's reflog unless the repository itself was damaged.

    Raises:
        BusyError: `tree-locked`; nothing is deleted then.
        OpencotiError: what `vendor` raises.
    """
    tree = WorkTree(lane=find_lane(layout, lane))
    source = vendor(layout, SourcePin.load(tree.lane.pin), console, offline=offline)
    with tree.locked():
        if _is_sound(tree):
            refuse_foreign_lock(tree)
            sweep(tree)
            base = adopt_source(tree, source.pin, source.tree, source.objects)
            wipe(tree, base.commit)
        else:
            _discard(tree)
            base = create(tree, source.pin, source.tree, source.objects)
        applied = _as_tree(
            tree, source, base, (), Series(folder=tree.lane.series, patches=(), invalid=(), ignored=())
        )
        write_record(tree, applied)
    console.info(f"{tree.folder} is the pristine {source.pin.name} {source.pin.version}")
    return applied


def record_series(layout: Layout, console: Console, *, lane: str = "auto") -> AppliedTree:
    """Apply the series as it is now and write its `series.lock` anew. Raises what `apply` raises."""
    applied = _apply(layout, console, lane=lane, offline=False, is_compared=False)
    path = write_lock(find_lane(layout, lane).series, applied.pin, applied.base_tree, applied.patches)
    console.info(f"recorded {len(applied.patches)} patches in {path}")
    return applied


def compute(tree: WorkTree, source: VendoredSource, series: Series) -> AppliedTree:
    """Make the commits of a series in the object store and judge them; the working tree stays as it is."""
    base = adopt_source(tree, source.pin, source.tree, source.objects)
    done = _already_applied(tree, source, base, series)
    if len(done) < len(series.patches):
        lint_series(series, links_of(tree.repository, base.tree))
        done = apply_series(tree.repository, base, series.patches, done)
        check_result(tree.repository, base.tree, done[-1].tree)
    return _as_tree(tree, source, base, done, series)


def _warn_of_offsets(applied: AppliedTree, console: Console) -> None:
    for patch in applied.patches:
        for offset in patch.offsets:
            console.warn(f"patch {patch.name} fits with an offset: {offset}")


def _already_applied(
    tree: WorkTree, source: VendoredSource, base: Base, series: Series
) -> tuple[AppliedPatch, ...]:
    """Return what the record knows of the series: its first patches, as far as nothing has changed."""
    try:
        record = read_record(tree, source.pin)
    except BuildError:
        return ()
    if record is None or record.base_commit != base.commit:
        return ()
    known: list[AppliedPatch] = []
    for patch, applied in zip(series.patches, record.patches, strict=False):
        if (patch.name, patch.sha256) != (applied.name, applied.sha256):
            break
        known.append(applied)
    return tuple(known)


def _as_tree(
    tree: WorkTree, source: VendoredSource, base: Base, patches: tuple[AppliedPatch, ...], series: Series
) -> AppliedTree:
    return AppliedTree(
        lane=tree.lane.name,
        pin=source.pin,
        folder=tree.folder,
        base_commit=base.commit,
        base_tree=base.tree,
        commit=patches[-1].commit if patches else base.commit,
        tree=patches[-1].tree if patches else base.tree,
        patches=patches,
        patch_set_hash=patch_set_hash(series),
    )


def _make_usable(tree: WorkTree, source: VendoredSource, console: Console) -> None:
    """Make the tree if there is none, and finish what a killed run began."""
    if tree.exists:
        refuse_foreign_lock(tree)
    if done := recover(tree):
        console.info(done)
    if tree.exists:
        return
    if tree.folder.is_dir() and any(tree.folder.iterdir()):
        raise unusable(tree, "it holds files but is no git repository")
    console.info(f"making the working tree {tree.folder}")
    create(tree, source.pin, source.tree, source.objects)


def _bring_to(tree: WorkTree, state: TreeState, wanted: AppliedTree, console: Console) -> None:
    if not state.is_clean:
        # What the user has is what the series gives (it was just captured): nothing can be lost.
        if state.unfinished or tree_as_it_is(tree, state) != wanted.tree:
            raise _edited(tree, state)
        adopt(tree, wanted.commit, index_too=True)
    elif state.head != wanted.commit or state.applied != wanted.commit:
        move(tree, state.head, wanted.commit)
    elif tree.record.exists():
        console.info(f"{_count(wanted)} already applied to {tree.folder}: nothing to do")
        _warn_of_ignored(state, console)
        return
    write_record(tree, wanted)
    console.info(f"{_count(wanted)} applied to {tree.folder}, tree {wanted.tree}")
    _warn_of_ignored(state, console)


def _count(applied: AppliedTree) -> str:
    number = len(applied.patches)
    return "no patches:" if not number else f"{number} patch{'' if number == 1 else 'es'}"


def _warn_of_ignored(state: TreeState, console: Console) -> None:
    if state.ignored:
        console.warn(
            f"{len(state.ignored)} files or folders in it are ignored by git and no part of the source, "
            f"first {state.ignored[0]} (`reset` removes them)"
        )


def _edited(tree: WorkTree, state: TreeState) -> BuildError:
    facts = []
    if state.has_commits:
        facts.append("it has commits that are in no patch")
    if state.edits:
        facts.append(f"{len(state.edits)} files are changed, first {state.edits[0]}")
    if state.unfinished:
        facts.append(f"a git operation is unfinished ({state.unfinished[0]})")
    return BuildError(
        "tree-edited",
        f"the working tree {tree.folder} holds work that would be lost",
        why="; ".join(facts),
        hint="keep it with `python -m ci capture NNNN-name`, or throw it away with `python -m ci reset`",
    )


def _is_sound(tree: WorkTree) -> bool:
    """Tell whether there is a repository that git can work in."""
    return tree.exists and tree.repository.try_run("rev-parse", "--git-dir").is_ok


def _discard(tree: WorkTree) -> None:
    tree.marker.unlink(missing_ok=True)
    if not tree.folder.exists():
        return
    old = tree.beside(".old")
    try:
        shutil.rmtree(old, ignore_errors=True)
        tree.folder.rename(old)
        shutil.rmtree(old)
    except OSError as exc:
        raise storage_error(exc, f"cannot remove {tree.folder}") from exc
