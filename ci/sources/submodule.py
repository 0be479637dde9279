"""The submodule that a source may be: whether it is there, at which commit, and what it is made of.

It belongs to the user. It is read through git's object store, never changed, and edits in it are not built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ci.git import split_z
from ci.paths import Layout
from ci.pins import SourcePin, SubmoduleOrigin
from ci.process import Completed
from ci.repository import read_git
from opencoti.errors import BuildError, MissingError, VerificationError

_GITLINK: Final = "160000"
_MAX_DEPTH: Final = 4


@dataclass(frozen=True, kw_only=True)
class GitTree:
    """One repository of a source.

    Attributes:
        path: where it lies in the source, empty for the source itself.
        commit: the commit that is built.
        objects: its object store.
    """

    path: str
    commit: str
    objects: Path


@dataclass(frozen=True, kw_only=True)
class SubmoduleState:
    """A submodule as it stands; `edits` are changed and new files, its own submodules among them."""

    head: str
    edits: tuple[str, ...]


def is_initialised(folder: Path) -> bool:
    """Tell whether git has put something there: before that, a submodule is an empty folder."""
    return (folder / ".git").exists()


def look(layout: Layout, pin: SourcePin) -> SubmoduleState:
    """Look at the submodule of a pin.

    Raises:
        MissingError: `submodule-uninitialized`.
    """
    folder = layout.sources / pin.name
    head = _top_head(layout, pin)
    status = _read(folder, "status", "--porcelain", "-z", "--no-renames", "--ignore-submodules=none")
    return SubmoduleState(head=head, edits=tuple(entry[3:] for entry in split_z(status.stdout)))


def require_clean(layout: Layout, pin: SourcePin) -> None:
    """Stop where somebody expects edits to be built (case B04): builds take the commit.

    Raises:
        BuildError: `submodule-dirty`.
        MissingError: `submodule-uninitialized`.
    """
    edits = look(layout, pin).edits
    if edits:
        folder = shown(layout, layout.sources / pin.name)
        raise BuildError(
            "submodule-dirty",
            f"{folder} holds edits, which no build takes",
            why=f"{len(edits)} files or submodules are changed or new, first {edits[0]}; "
            f"what is built is commit {pin.commit[:12]}",
            hint=f"edit in build/src/ape, and bring the submodule back: `git -C {folder} stash -u`, "
            f"`git submodule update --force --recursive {folder}`",
        )


def require_trees(layout: Layout, pin: SourcePin) -> tuple[GitTree, ...]:
    """Return the repositories of the pinned source, itself first, then those inside it by path.

    Raises:
        MissingError: `submodule-uninitialized`, it or a submodule inside it is not there.
        VerificationError: `submodule-drift`, another commit is checked out than the pin names;
            `submodule-nested-drift`, a submodule inside it lacks the commit that it names.
    """
    folder = layout.sources / pin.name
    head = _top_head(layout, pin)
    if head != pin.commit:
        raise VerificationError(
            "submodule-drift",
            f"{shown(layout, folder)} is not at the commit that pin {pin.path.name} names",
            why=f"it is at {head}, the pin says {pin.commit}",
            hint=f"`git -C {shown(layout, folder)} checkout {pin.commit[:12]}`, or change the pin as well",
        )
    return tuple(_trees(layout, folder, "", pin.commit, depth=0))


def nested_commit(layout: Layout, pin: SourcePin, path: str) -> str | None:
    """Return the commit of a submodule inside the source, as the pinned commit names it."""
    listing = read_git(layout.sources / pin.name, "ls-tree", "-z", pin.commit, "--", path)
    found = [entry.split()[2] for entry in split_z(listing.stdout) if entry.startswith(_GITLINK)]
    return found[0] if found else None


def recorded_commit(layout: Layout, pin: SourcePin) -> str | None:
    """Return the commit that `git submodule update` would bring; None where this checkout records none.

    That is so in a source tarball, which has no git, and before the submodule is committed.
    """
    folder = (layout.sources / pin.name).relative_to(layout.root).as_posix()
    listing = read_git(layout.root, "ls-files", "--stage", "-z", "--", folder)
    found = [entry.split()[1] for entry in split_z(listing.stdout) if entry.startswith(_GITLINK)]
    return found[0] if listing.is_ok and found else None


def shown(layout: Layout, folder: Path) -> str:
    """Return a folder as a user of this checkout calls it."""
    return str(folder.relative_to(layout.root) if folder.is_relative_to(layout.root) else folder)


def _trees(layout: Layout, top: Path, path: str, commit: str, *, depth: int) -> Iterator[GitTree]:
    folder = top / path if path else top
    yield GitTree(path=path, commit=commit, objects=_objects(folder))
    listing = _read(folder, "ls-tree", "-r", "-z", "--full-tree", commit)
    for entry in split_z(listing.stdout):
        facts, _, inner = entry.partition("\t")
        if not facts.startswith(_GITLINK):
            continue
        place = f"{path}/{inner}" if path else inner
        if depth == _MAX_DEPTH:
            raise BuildError("submodule-depth", f"{place} is a submodule inside too many others")
        _require_nested(layout, top, place, facts.split()[2])
        yield from _trees(layout, top, place, facts.split()[2], depth=depth + 1)


def _require_nested(layout: Layout, top: Path, path: str, commit: str) -> None:
    folder = top / path
    _head(folder, shown(layout, folder), hint=lambda: _update(shown(layout, top)))
    if not read_git(folder, "cat-file", "-e", f"{commit}^{{commit}}").is_ok:
        raise VerificationError(
            "submodule-nested-drift",
            f"{shown(layout, folder)} does not have the commit that its source names",
            why=f"commit {commit} is not in it",
            hint=_update(shown(layout, top)),
        )


def _top_head(layout: Layout, pin: SourcePin) -> str:
    folder = layout.sources / pin.name
    return _head(folder, shown(layout, folder), hint=lambda: _bring(layout, pin))


def _head(folder: Path, name: str, *, hint: Callable[[], str]) -> str:
    is_there = folder.is_dir()
    why = "the folder is empty: `git clone` leaves submodules out" if is_there else "there is no such folder"
    if is_initialised(folder):
        done = read_git(folder, "rev-parse", "--verify", "HEAD")
        if done.is_ok:
            return done.text
        why = (done.error_text or "it has no commit").splitlines()[0]
    raise MissingError(
        "submodule-uninitialized", f"the submodule {name} is not initialized", why=why, hint=hint()
    )


def _bring(layout: Layout, pin: SourcePin) -> str:
    """Say how to get the source: git knows it as a submodule, or only the pin knows it."""
    folder = shown(layout, layout.sources / pin.name)
    if recorded_commit(layout, pin) is not None or not isinstance(pin.origin, SubmoduleOrigin):
        return _update(folder)
    return (
        f"this tree has no record of it: run `git clone --no-checkout {pin.origin.url} {folder}`, "
        f"`git -C {folder} checkout {pin.commit[:12]}`, `git -C {folder} submodule update --init --recursive`"
    )


def _update(folder: str) -> str:
    return f"run `git submodule update --init --recursive {folder}`"


def _objects(folder: Path) -> Path:
    return Path(_read(folder, "rev-parse", "--path-format=absolute", "--git-path", "objects").text)


def _read(folder: Path, *words: str) -> Completed:
    done = read_git(folder, *words)
    if not done.is_ok:
        raise BuildError(
            "submodule-unreadable",
            f"git {words[0]} failed in {folder}",
            why=(done.error_text or f"exit code {done.code}").splitlines()[0],
            hint="check it with `git fsck`, or initialize the submodule again",
        )
    return done
