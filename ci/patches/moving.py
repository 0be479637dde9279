"""Changing the working tree of a lane: making it, moving it, resetting it, and ending what was cut off.

Before files are touched, a marker beside the tree says from what to what; it goes when all is done. A marker
that is found later belongs to a killed run of ours, and is the only licence to clear git's locks away. The
caller holds the tree's lock.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from ci.git import join_z, split_z
from ci.patches.objects import Base, write_base
from ci.patches.worktree import APPLIED_REF, BASE_REF, BRANCH, UNFINISHED, WorkTree, unusable
from ci.pins import SourcePin
from opencoti.errors import storage_error
from opencoti.files import write_atomic

_INDEX_ONLY: Final = "index"
_LOCKS: Final = ("index.lock", "HEAD.lock", "config.lock", "packed-refs.lock")


def create(tree: WorkTree, pin: SourcePin, source_tree: str, objects: Path) -> Base:
    """Make the working tree with the pristine source in it; after a kill, `recover` ends what was begun."""
    new = WorkTree(lane=replace(tree.lane, tree=tree.beside(".new")))
    try:
        shutil.rmtree(new.folder, ignore_errors=True)
        new.folder.mkdir(parents=True)
        new.repository.init()
        base = adopt_source(new, pin, source_tree, objects)
        _write_marker(tree, "wipe", base.commit, base.commit)
        if tree.folder.is_dir():
            tree.folder.rmdir()
        new.folder.rename(tree.folder)
    except OSError as exc:
        raise storage_error(exc, f"cannot make the working tree {tree.folder}") from exc
    wipe(tree, base.commit)
    return base


def adopt_source(tree: WorkTree, pin: SourcePin, source_tree: str, objects: Path) -> Base:
    """Make sure that the pristine source is in the repository, as the commit that `BASE_REF` stands for."""
    known = tree.repository.try_run("rev-parse", BASE_REF, f"{BASE_REF}^{{tree}}").text.split()
    if source_tree not in known:
        import_objects(objects, tree.git_dir / "objects")
    base = write_base(tree.repository, pin, source_tree)
    if base.commit not in known:
        tree.repository.run("update-ref", BASE_REF, base.commit)
    return base


def import_objects(source: Path, target: Path) -> None:
    """Link all git objects of one repository into another; objects never change, so a link is as good."""
    for folder, _, names in os.walk(source):
        relative = Path(folder).relative_to(source)
        if relative.parts[:1] == ("info",):
            continue
        (target / relative).mkdir(parents=True, exist_ok=True)
        for name in (name for name in names if not name.startswith("tmp_")):
            place = target / relative / name
            if not place.exists():
                _link_or_copy(Path(folder) / name, place)


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        # Another file system, or one without links. A killed copy must not pass for an object.
        temporary = target.with_name(f".{target.name}.tmp")
        shutil.copy2(source, temporary)
        temporary.replace(target)


def move(tree: WorkTree, start: str, target: str) -> None:
    """Bring a clean working tree from one commit to another; files that are equal in both stay untouched.

    Raises:
        BuildError: `tree-unusable`, a file that git ignores is in the way, or the index holds what no file
            has; nothing was changed then. `git-failed`, for instance a full disk; the next run finishes it.
    """
    _refuse_obstacles(tree, start, target)
    _write_marker(tree, "move", start, target)
    tree.repository.run("read-tree", "-m", "-u", start, target)
    _set_refs(tree, target)
    tree.marker.unlink()


def _refuse_obstacles(tree: WorkTree, start: str, target: str) -> None:
    """Stop before anything is written if the move would meet what it must not overwrite."""
    _write_marker(tree, _INDEX_ONLY, start, target)
    repository = tree.repository
    # An index with stale times would make git take an equal file for a changed one.
    repository.try_run("update-index", "-q", "--refresh")
    tried = repository.try_run("read-tree", "--dry-run", "-m", "-u", start, target)
    changed = split_z(repository.run("diff", "--name-status", "--no-renames", "-z", start, target).stdout)
    kinds = dict(zip(changed[1::2], changed[::2], strict=True))
    tree.marker.unlink()
    if not tried.is_ok:
        raise unusable(tree, tried.error_text.replace("\n", " ") or "git cannot move it")
    added = [name for name, kind in kinds.items() if kind == "A"]
    if obstacle := next(
        (path for name in added if (path := _obstacle(tree.folder, name, kinds.keys()))), None
    ):
        raise unusable(tree, f"{tree.folder / obstacle} is in the way of a file of the series")


def _obstacle(folder: Path, name: str, changed: Collection[str]) -> str | None:
    """Return the path that a new file would overwrite; to git, ignored files are expendable."""
    if os.path.lexists(folder / name):
        return name
    parents = ["/".join(name.split("/")[:count]) for count in range(1, name.count("/") + 1)]
    blocked = (parent for parent in parents if parent not in changed)
    return next((p for p in blocked if os.path.lexists(folder / p) and not (folder / p).is_dir()), None)


def adopt(tree: WorkTree, target: str, *, index_too: bool) -> None:
    """Record that the files are those of `target` already: refs, and the index if asked, follow them."""
    _write_marker(tree, _INDEX_ONLY, target, target)
    if index_too:
        tree.repository.run("read-tree", "--reset", target)
        tree.repository.try_run("update-index", "-q", "--refresh")
    _set_refs(tree, target)
    tree.marker.unlink()


def _set_refs(tree: WorkTree, target: str) -> None:
    """Make `target` what the branch, HEAD and our own ref stand for."""
    lines = f"update {BRANCH} {target}\nupdate {APPLIED_REF} {target}\n"
    tree.repository.run("update-ref", "-m", "opencoti", "--create-reflog", "--stdin", stdin=lines.encode())
    tree.repository.run("symbolic-ref", "-m", "opencoti", "HEAD", BRANCH)


def wipe(tree: WorkTree, target: str) -> None:
    """Bring a working tree to `target` and remove all else: edits, ignored files, nested repositories."""
    _write_marker(tree, "wipe", target, target)
    _clear_locks(tree)
    for name in UNFINISHED:
        _remove(tree.git_dir / name)
    tree.repository.try_run("update-index", "-q", "--refresh")
    tree.repository.run("read-tree", "--reset", "-u", target)
    _set_refs(tree, target)
    tree.repository.run("clean", "-ffdxq")
    tree.marker.unlink()


def sweep(tree: WorkTree) -> None:
    """Remove what only a killed run of ours can have left, and what no file of the tree depends on."""
    for leftover in (tree.beside(".new"), *tree.git_dir.glob("opencoti-index-*")):
        shutil.rmtree(leftover, ignore_errors=True)
    for lock in (tree.git_dir / "refs" / "opencoti").glob("*.lock"):
        lock.unlink(missing_ok=True)


def recover(tree: WorkTree) -> str | None:
    """Finish what a killed run began; return what was done, `None` if there was nothing.

    Raises:
        BuildError: `tree-unusable`, somebody has worked on the half-moved tree since.
    """
    sweep(tree)
    marker = _read_marker(tree)
    if marker is None:
        return None
    kind, start, target = marker
    _clear_locks(tree)
    if not tree.exists or tree.repository.resolve(f"{target}^{{commit}}") is None:
        tree.marker.unlink(missing_ok=True)
        return None
    if kind == _INDEX_ONLY:
        # No file was touched, and files that are those of the series are adopted again.
        tree.marker.unlink()
        return "cleared what an interrupted run left"
    if kind == "wipe":
        wipe(tree, target)
        return "finished the reset that was interrupted"
    if tree.repository.resolve("HEAD") not in (None, start, target):
        raise unusable(tree, "a run that moved it was killed, and commits were made since")
    _finish_move(tree, start, target)
    return "finished the move of the working tree that was interrupted"


def _finish_move(tree: WorkTree, start: str, target: str) -> None:
    """Write all files in which the two commits differ; one of them may be half written."""
    repository = tree.repository
    names = split_z(repository.run("diff", "--name-only", "-z", "--no-renames", start, target).stdout)
    # The index only: entries that stay keep their times, and no file is looked at.
    repository.run("read-tree", "--reset", target)
    present = set(split_z(repository.run("ls-files", "-z").stdout))
    for name in names:
        _remove(tree.folder / name)
        if name not in present:
            _remove_empty_parents(tree.folder, name)
    wanted = [name for name in names if name in present]
    repository.run("checkout-index", "--force", "-u", "-z", "--stdin", stdin=join_z(wanted))
    _set_refs(tree, target)
    tree.marker.unlink()


def _remove_empty_parents(folder: Path, name: str) -> None:
    for parent in list((folder / name).parents)[: name.count("/")]:
        with suppress(OSError):
            parent.rmdir()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        with suppress(NotADirectoryError):
            path.unlink(missing_ok=True)


def _clear_locks(tree: WorkTree) -> None:
    for lock in (*(tree.git_dir / name for name in _LOCKS), *(tree.git_dir / "refs").rglob("*.lock")):
        lock.unlink(missing_ok=True)


def _write_marker(tree: WorkTree, kind: str, start: str, target: str) -> None:
    write_atomic(tree.marker, json.dumps({"kind": kind, "from": start, "to": target}).encode())


def _read_marker(tree: WorkTree) -> tuple[str, str, str] | None:
    """Return kind, start and target of a move that was begun."""
    try:
        data = json.loads(tree.marker.read_text(encoding="utf-8"))
        return str(data["kind"]), str(data["from"]), str(data["to"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        # Written atomically, so this is not ours; without a start and a target nothing can be finished.
        return None
