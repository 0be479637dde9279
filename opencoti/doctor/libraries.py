"""Which backend libraries lie where an engine may look, and which one would win.

An engine of the elf lane loads from its own folder only, by absolute path, and its loader keeps that folder
right. One of the ape lane looks beside its file, in `~/.llamafile/v/…` and in the home folder, and takes
the first that loads, without a check: there a stale library wins unseen. So every library is hashed and
compared with what the artifact holds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from opencoti.doctor.finding import Finding, Status

_LIBRARY: Final = re.compile(r"(?:lib)?(ggml|llama|mtmd)([A-Za-z0-9_-]*)\.(?:so|dylib|dll)(?:\.[0-9.]+)?")
_MAX_FILES: Final = 200
Kind = Literal[
    "beside the engine",
    "its own folder",
    "another engine's folder",
    "home",
    "~/.llamafile",
    "working folder",
    "variable",
]
# Where an engine of the ape lane takes what it finds, unchecked.
_UNCHECKED: Final = ("beside the engine", "home")


@dataclass(frozen=True, kw_only=True)
class Place:
    """A folder in which some engine looks, in the order in which the ape lane does."""

    folder: Path
    kind: Kind


@dataclass(frozen=True, kw_only=True)
class Library:
    """A library on disk. `sha256` is empty where it cannot be read."""

    path: Path
    kind: Kind
    backend: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class EngineFacts:
    """What decides which library an engine takes.

    Attributes:
        members: name to SHA-256 of what the artifact holds; None where it cannot be told.
        own_folder: where it unpacks itself, None where that is not known.
    """

    path: Path
    is_ape: bool
    members: Mapping[str, str] | None
    own_folder: Path | None


def search_places(engine: EngineFacts | None, environ: Mapping[str, str], cwd: Path) -> tuple[Place, ...]:
    """Return the folders to look into, each once."""
    home = Path(environ["HOME"]) if environ.get("HOME") else None
    found: list[Place] = []
    if engine is not None:
        found.append(Place(folder=engine.path.parent, kind="beside the engine"))
        if engine.own_folder is not None:
            found.append(Place(folder=engine.own_folder, kind="its own folder"))
    for base in _unpack_bases(home, environ):
        found += [Place(folder=folder, kind="another engine's folder") for folder in _folders(base)]
    if home is not None:
        found += [Place(folder=home / ".llamafile", kind="~/.llamafile"), Place(folder=home, kind="home")]
    # Without HOME an engine of the ape lane takes the working folder for it.
    found.append(Place(folder=cwd, kind="working folder" if home else "home"))
    for name in ("LD_LIBRARY_PATH", "GGML_BACKEND_PATH"):
        words = [word for word in environ.get(name, "").split(os.pathsep) if word]
        found += [Place(folder=_folder_of(Path(word)), kind="variable") for word in words]
    unique: dict[Path, Place] = {}
    for place in found:
        unique.setdefault(place.folder, place)
    return tuple(unique.values())


def _folder_of(path: Path) -> Path:
    return path if path.is_dir() else path.parent


def _unpack_bases(home: Path | None, environ: Mapping[str, str]) -> list[Path]:
    bases = [home / ".llamafile" / "v"] if home else []
    extract = environ.get("OPENCOTI_EXTRACT_DIR", "")
    return [*bases, Path(extract)] if extract else bases


def _folders(base: Path) -> list[Path]:
    try:
        return sorted(path for path in base.iterdir() if path.is_dir() and not path.is_symlink())[:_MAX_FILES]
    except OSError:
        return []


def find_libraries(places: tuple[Place, ...]) -> tuple[Library, ...]:
    """Return the libraries that lie in these folders, hashed."""
    found = [library for place in places for library in _in_folder(place)]
    return tuple(found[:_MAX_FILES])


def _in_folder(place: Place) -> Iterator[Library]:
    try:
        names = sorted(os.listdir(place.folder))
    except OSError:
        return
    for name in names:
        match = _LIBRARY.fullmatch(name)
        if match is None or not (path := place.folder / name).is_file():
            continue
        sha256, size = _hashed(path)
        yield Library(
            path=path,
            kind=place.kind,
            backend=match[2].strip("-_") or match[1],
            sha256=sha256,
            size_bytes=size,
        )


def _hashed(path: Path) -> tuple[str, int]:
    from opencoti.hashing import sha256_file

    try:
        return sha256_file(path), path.stat().st_size
    except OSError:
        return "", 0


def examine_libraries(engine: EngineFacts | None, environ: Mapping[str, str], cwd: Path) -> Iterator[Finding]:
    """Say of each library outside the engine's folder whether it would shadow, and which one wins."""
    libraries = find_libraries(search_places(engine, environ, cwd))
    strays = [item for item in libraries if item.kind not in ("its own folder", "another engine's folder")]
    if engine is not None:
        yield _own_folder(engine, [item for item in libraries if item.kind == "its own folder"])
    others = {item.path.parent for item in libraries if item.kind == "another engine's folder"}
    if others:
        yield Finding(
            topic="libraries",
            name="older engines",
            status="note",
            found=f"{len(others)} {'other ' if engine else ''}engines have unpacked themselves: "
            + ", ".join(str(folder) for folder in sorted(others)),
            # Without an engine to compare with, they may be the ones that are used.
            advice="remove those folders to free their space; none of them is looked into" if engine else "",
            data={"folders": [str(folder) for folder in sorted(others)]},
        )
    for stray in strays:
        yield _stray(stray, engine)
    if not strays:
        yield Finding(
            topic="libraries",
            name="strays",
            status="ok",
            found="no library lies where it could shadow another",
        )


def _own_folder(engine: EngineFacts, found: list[Library]) -> Finding:
    """Compare what an engine has unpacked with what the artifact holds."""
    verdict, status = _own_verdict(engine, found)
    wins = {item.path.name: {"path": str(item.path), "sha256": item.sha256} for item in found}
    needs_help = status in ("warn", "fail")
    return Finding(
        topic="libraries",
        name="own folder",
        status=status,
        found=verdict,
        advice=f"remove {engine.own_folder}; the next start unpacks it again" if needs_help else "",
        exit_code=6 if status == "fail" else 0,
        data={"folder": str(engine.own_folder or ""), "wins": wins},
    )


def _own_verdict(engine: EngineFacts, found: list[Library]) -> tuple[str, Status]:
    members = engine.members
    stale = [item for item in found if members is not None and members.get(item.path.name) != item.sha256]
    if stale:
        told = f"{', '.join(str(item.path) for item in stale)}: not what the artifact holds"
        # Both lanes write again what they bundle; what the ape lane does not bundle, it takes as it is.
        is_taken = engine.is_ape and any(item.path.name not in (members or {}) for item in stale)
        return told, "fail" if is_taken else "warn"
    if not found:
        return f"{engine.own_folder or 'none'}: nothing unpacked yet, the first start does it", "ok"
    told = f"{engine.own_folder}: {len(found)} libraries, which win"
    return f"{told}, each as in the artifact" if members is not None else told, "ok"


def _stray(item: Library, engine: EngineFacts | None) -> Finding:
    told = f"{item.path} ({item.kind}), sha256 {item.sha256[:12] or '?'}…, {item.size_bytes} bytes"
    verdict, name, status = _verdict(item, engine)
    is_harmless = status == "note"
    return Finding(
        topic="libraries",
        name=name,
        status=status,
        found=f"{told}: {verdict}",
        advice="" if is_harmless else f"remove or rename {item.path}",
        exit_code=6 if status == "fail" else 0,
        data={**vars(item), "path": str(item.path), "wins": status == "fail"},
    )


def _verdict(item: Library, engine: EngineFacts | None) -> tuple[str, str, Status]:
    """Say what a library outside the engine's folder does, in words, in a word, and as a status."""
    if engine is not None:
        members = engine.members or {}
        if item.sha256 and members.get(item.path.name) == item.sha256:
            return "a copy of the artifact's", "copy", "note"
        if engine.is_ape and item.kind in _UNCHECKED:
            return "it may be loaded instead of the artifact's own", "shadow", "fail"
        if engine.members is None and item.kind == "beside the engine":
            return "the engine's own", "beside", "note"
    return (
        "this engine does not look there, an engine of the ape lane or an older one would",
        "stale",
        "warn",
    )
