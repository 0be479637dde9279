"""Bringing a pinned source to `vendors/sources/<name>/` and proving that it is what the pin says.

Owns that folder and `build/pristine/`, where a private git repository per source holds the objects of the
pristine tree and an index whose stat cache makes the second check fast. Patches are not its business.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ci.git import Repository
from ci.locks import exclusive_lock
from ci.paths import Layout
from ci.pins import SdistOrigin, SourcePin, SubmoduleOrigin
from opencoti.console import Console
from opencoti.errors import OpencotiError, VerificationError, storage_error
from opencoti.files import write_atomic

_NEW: Final = ".new"
_OLD: Final = ".old"
_TAR: Final = ".tar"


@dataclass(frozen=True, kw_only=True)
class VendoredSource:
    """A pristine tree whose every byte was checked against the pin."""

    pin: SourcePin
    folder: Path
    tree: str
    objects: Path
    """Git objects of the tree (an `objects` folder)."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where one source lives, and what we keep about it."""

    folder: Path
    repository: Path
    stamp: Path

    @classmethod
    def of(cls, layout: Layout, pin: SourcePin) -> Place:
        """Return the place of a pin's source."""
        return cls(
            folder=layout.sources / pin.name,
            repository=layout.build / "pristine" / f"{pin.name}.git",
            stamp=layout.build / "pristine" / f"{pin.name}.json",
        )

    def sibling(self, suffix: str) -> Path:
        """Return a hidden path beside the source."""
        return self.folder.with_name(f".{self.folder.name}{suffix}")


def vendor(layout: Layout, pin: SourcePin, console: Console, *, offline: bool = False) -> VendoredSource:
    """Make sure that `vendors/sources/<name>/` is the pinned tree; do nothing if it is.

    A tree that somebody changed is replaced from the download cache, with a warning. Another process that
    vendors the same source is waited for. A submodule is the user's to bring and is only read: see
    `ci.sources.upstream`.

    Raises:
        ConfigError: the pin names something that does not exist, see `fetch_sdist` and `export_commit`.
        VerificationError: `source-tree`, the tree is not the pinned one; `source-hash`; `archive-…`.
        NetworkError: it must be fetched and cannot be.
        StorageError: the disk refused.
    """
    place = Place.of(layout, pin)
    if isinstance(pin.origin, SubmoduleOrigin):
        from ci.sources.upstream import vendor_submodule

        return vendor_submodule(layout, place, pin, console)
    with exclusive_lock(place.sibling(".lock"), f"the source {pin.name}", wait=True):
        _sweep(place)
        tree = _tree_in_place(place, pin, console) or _renew(layout, place, pin, console, offline)
    return vendored(place, pin, tree, console)


def vendored(place: Place, pin: SourcePin, tree: str, console: Console) -> VendoredSource:
    """Return a source whose tree is known; a warning when the pin does not say which it must be."""
    if pin.tree is None:
        console.warn(f"pin {pin.path.name} has no tree id; add `tree={tree}` to check this tree from now on")
    return VendoredSource(pin=pin, folder=place.folder, tree=tree, objects=place.repository / "objects")


def origin_text(pin: SourcePin) -> str:
    """Return where a pin's tree comes from, in the words of the pin."""
    origin = pin.origin
    if isinstance(origin, SdistOrigin):
        return f"sdist:{origin.project}=={origin.version}#{origin.folder} sha256={origin.sha256}"
    url = f"submodule:{origin.url}" if isinstance(origin, SubmoduleOrigin) else origin.url
    return f"{url} {pin.commit}"


def measure_tree(place_of_repository: Path, folder: Path) -> str:
    """Return the git tree id of a folder, ignored files included, in a private repository.

    Modes count only by their executable bit; the tree's own `.gitattributes` convert nothing.
    """
    repository = Repository(git_dir=place_of_repository, work_tree=folder)
    if not (place_of_repository / "info" / "attributes").is_file():
        shutil.rmtree(place_of_repository, ignore_errors=True)
        repository.init()
    # A killed run of ours may have left its lock; the caller's own lock says that nobody else is here.
    (place_of_repository / "index.lock").unlink(missing_ok=True)
    repository.run("add", "--all", "--force", ".")
    return repository.write_tree()


def _sweep(place: Place) -> None:
    """Remove what a killed run left half done."""
    for suffix in (_NEW, _OLD):
        shutil.rmtree(place.sibling(suffix), ignore_errors=True)
    place.sibling(_TAR).unlink(missing_ok=True)


def _tree_in_place(place: Place, pin: SourcePin, console: Console) -> str | None:
    """Return the id of the tree that is there if it is the right one, `None` if it must be renewed."""
    if place.folder.is_symlink() or not place.folder.is_dir():
        return None
    origin, recorded = read_stamp(place.stamp)
    expected = pin.tree or (recorded if origin == origin_text(pin) else "")
    found = measure_tree(place.repository, place.folder)
    if found == expected:
        write_stamp(place.stamp, pin, found)
        return found
    if origin and origin != origin_text(pin):
        console.info(f"pin {pin.path.name} has changed: the source is replaced")
    else:
        console.warn(f"{place.folder} was changed (tree {found[:12]}): it is replaced by the pinned source")
    return None


def _renew(layout: Layout, place: Place, pin: SourcePin, console: Console, offline: bool) -> str:
    new = place.sibling(_NEW)
    try:
        _unpack(layout, place, pin, new, console, offline)
        tree = measure_tree(place.repository, new)
        if pin.tree is not None and tree != pin.tree:
            raise wrong_tree(pin, tree)
        _swap(place, new)
    except OSError as exc:
        raise storage_error(exc, f"cannot write {place.folder}") from exc
    finally:
        shutil.rmtree(new, ignore_errors=True)
    write_stamp(place.stamp, pin, tree)
    return tree


def _unpack(
    layout: Layout, place: Place, pin: SourcePin, target: Path, console: Console, offline: bool
) -> None:
    from ci.sources.fetch import fetch_sdist
    from ci.sources.gitsource import export_commit
    from ci.sources.unpack import unpack_folder

    origin = f"pin {pin.path.name}"
    if isinstance(pin.origin, SdistOrigin):
        archive = fetch_sdist(layout, pin, console, offline=offline)
        console.info(f"unpacking {pin.origin.folder} of {archive.name}")
        unpacked = unpack_folder(archive, pin.origin.folder, target, origin=origin)
    else:
        archive = place.sibling(_TAR)
        try:
            export_commit(layout, pin, archive, console, offline=offline)
            unpacked = unpack_folder(archive, "", target, origin=origin, has_top=False)
        finally:
            archive.unlink(missing_ok=True)
    console.info(f"unpacked {unpacked.files} files, {unpacked.size_bytes / 1e6:.0f} MB")


def _swap(place: Place, new: Path) -> None:
    """Put the new tree in the place of the old one. A kill in between leaves none, never a mixture."""
    old = place.sibling(_OLD)
    if place.folder.is_symlink() or place.folder.is_file():
        place.folder.unlink()
    elif place.folder.exists():
        place.folder.rename(old)
    new.rename(place.folder)
    shutil.rmtree(old, ignore_errors=True)


def wrong_tree(pin: SourcePin, found: str) -> OpencotiError:
    """Make the error for a source whose tree is not the pinned one."""
    return VerificationError(
        "source-tree",
        f"the source of pin {pin.path.name} is not the pinned tree",
        why=f"expected tree {pin.tree}, found {found}",
        hint="if the pin was just changed, review the source and pin what was found; else do not use it",
    )


def read_stamp(path: Path) -> tuple[str, str]:
    """Return origin and tree of the last good run; two empty texts when that is not known."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return str(data["origin"]), str(data["tree"])
    except (OSError, ValueError, KeyError, TypeError):
        return "", ""


def write_stamp(path: Path, pin: SourcePin, tree: str) -> None:
    """Note the tree that a pin's source was found to be. Raises `StorageError`."""
    if read_stamp(path) != (origin_text(pin), tree):
        write_atomic(path, json.dumps({"origin": origin_text(pin), "tree": tree}, indent=1).encode())
