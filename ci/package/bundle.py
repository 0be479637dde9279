"""Embedding a vendor's libraries (`--cublas bundle`): from the wheels that the toolchain pins, by hash.

cuBLAS and its kernels are about 0.6 GB, so by default an artifact uses those of the user's CUDA installation.
The libraries are unpacked once into the build cache, with the licence that allows to pass them on.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ci.context import Context
from ci.locks import exclusive_lock
from ci.toolchains.lockfile import LockedFile
from ci.toolchains.recipe import Recipe
from ci.toolchains.table import Backend, BundledWheel
from ci.toolchains.wheels import fetch_wheels
from opencoti.errors import ConfigError, UsageError, storage_error

_LICENCE: Final = "license"


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """Libraries to embed beside a backend, and their licences by member name."""

    libraries: tuple[Path, ...] = ()
    licences: Mapping[str, Path] = field(default_factory=dict)


def bundle_of(context: Context, backend: Backend, arch: str) -> Bundle:
    """Return the vendor's libraries of a backend, unpacked.

    Args:
        context: of this checkout.
        backend: row of the table.
        arch: architecture that the artifact is for.

    Raises:
        UsageError: `bundle-unknown`, nothing of this vendor may or can be embedded.
        ConfigError: `bundle-incomplete`, the wheel does not hold what the table says; `bundle-unpinned`.
        NetworkError: a wheel cannot be fetched.
        VerificationError: a wheel has other bytes than its lock says.
    """
    if not backend.bundle:
        raise nothing_to_bundle(backend.name)
    recipe = Recipe.load(context.layout.containers / backend.toolchain, arch)
    wheels = {wheel.name: wheel for wheel in recipe.wheels}
    if unpinned := [part.wheel for part in backend.bundle if part.wheel not in wheels]:
        raise ConfigError(
            "bundle-unpinned",
            f"toolchain {backend.toolchain} has no wheel {', '.join(unpinned)}, which {backend.name} bundles",
            hint="see `bundle` in containers/toolchains.toml and the recipe of the toolchain",
        )
    locked = [wheels[part.wheel] for part in backend.bundle]
    paths = fetch_wheels(locked, context.layout.downloads, context.console)
    libraries: list[Path] = []
    licences: dict[str, Path] = {}
    for part, wheel in zip(backend.bundle, locked, strict=True):
        folder = _unpacked(context, part, wheel, paths[part.wheel])
        libraries += [folder / name for name in part.files]
        licences[f"LICENSE.{part.wheel}"] = folder / _LICENCE
    return Bundle(libraries=tuple(libraries), licences=licences)


def nothing_to_bundle(name: str) -> UsageError:
    """Make the error for `--cublas bundle` where no library of a vendor may or can be embedded."""
    return UsageError(
        "bundle-unknown",
        f"--cublas bundle: there is nothing to embed for {name}",
        why="only CUDA's libraries may be passed on; others come with the user's installation",
        hint="use --cublas system",
    )


def _unpacked(context: Context, part: BundledWheel, wheel: LockedFile, archive: Path) -> Path:
    """Return the folder of the libraries of one wheel, whose name is the hash of what it was made of."""
    folder = context.layout.cache / "bundles" / wheel.sha256[:16]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(folder.with_name(f"{folder.name}.lock"), f"bundle {part.wheel}", wait=True):
            if not _is_whole(folder, part, archive):
                context.console.info(f"unpacking {', '.join(part.files)} of {part.wheel} {wheel.version}")
                _unpack(folder, part, archive)
    except OSError as exc:
        raise storage_error(exc, f"cannot unpack {part.wheel} to {folder}") from exc
    return folder


def _unpack(folder: Path, part: BundledWheel, archive: Path) -> None:
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        with zipfile.ZipFile(archive) as bundle:
            for name, member in _members(bundle, part, archive).items():
                with bundle.open(member) as source, open(temporary / name, "wb") as target:
                    shutil.copyfileobj(source, target, 1 << 20)
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _is_whole(folder: Path, part: BundledWheel, archive: Path) -> bool:
    """Whether every file has its size; the bytes are hashed when they are packaged."""
    with zipfile.ZipFile(archive) as bundle:
        sizes = {name: member.file_size for name, member in _members(bundle, part, archive).items()}
    return all(
        (folder / name).is_file() and (folder / name).stat().st_size == size for name, size in sizes.items()
    )


def _members(bundle: zipfile.ZipFile, part: BundledWheel, archive: Path) -> dict[str, zipfile.ZipInfo]:
    found: dict[str, zipfile.ZipInfo] = {}
    for member in bundle.infolist():
        name = member.filename.rsplit("/", 1)[-1]
        if name in part.files:
            found[name] = member
        elif name.lower().startswith(_LICENCE) and ".dist-info/" in member.filename:
            found[_LICENCE] = member
    missing = {*part.files, _LICENCE} - set(found)
    if missing:
        raise ConfigError(
            "bundle-incomplete",
            f"{part.wheel} does not hold {', '.join(sorted(missing))}",
            why=f"looked in {archive.name}",
            hint="containers/toolchains.toml names the files of another version of the wheel",
        )
    return found
