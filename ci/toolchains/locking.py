"""Writing the locks of a toolchain: what pip and apt offer now for the versions of its recipe."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final

from ci.paths import Layout
from ci.toolchains.debs import fetch_debs
from ci.toolchains.lockfile import LockedFile, lock_text
from ci.toolchains.recipe import DEBIAN_ARCHS, Recipe, WheelRule
from ci.toolchains.wheels import download_wheel
from opencoti.console import Console
from opencoti.errors import NetworkError
from opencoti.files import write_atomic
from opencoti.hashing import sha256_file

# Tags of wheels that run on the oldest systems first; the one that exists is taken.
_PLATFORMS: Final = ("manylinux_2_17", "manylinux2014", "manylinux_2_12", "manylinux2010")
_HEADER: Final = "Written by `python -m ci images {name} --lock`."


def write_locks(recipe: Recipe, layout: Layout, console: Console) -> list[Path]:
    """Write wheels.lock and debs.lock of a toolchain for every architecture; return their paths.

    Raises:
        MissingError: this machine has no apt.
        NetworkError: a wheel or a package is not to be had.
        StorageError: a lock cannot be written.
    """
    wheels = [
        _lock_wheel(rule, arch, layout.downloads, console)
        for arch in recipe.archs
        for rule in recipe.own_rules
    ]
    debs = [
        replace(deb.package, filename="")
        for arch in recipe.archs
        for deb in fetch_debs(
            Recipe.load(recipe.folder, arch, needs_lock=False).own_deb_groups,
            (),
            arch=DEBIAN_ARCHS[arch],
            downloads=layout.downloads,
            apt_folder=layout.cache / "apt",
            console=console,
            is_update=True,
        )
    ]
    header = _HEADER.format(name=recipe.name)
    paths = []
    for table, entries in (("wheel", wheels), ("deb", debs)):
        if entries:
            paths.append(recipe.folder / f"{table}s.lock")
            write_atomic(paths[-1], lock_text(table, entries, header).encode())
    return paths


def _lock_wheel(rule: WheelRule, arch: str, downloads: Path, console: Console) -> LockedFile:
    console.info(f"looking up {rule.name} {rule.version} for {arch}")
    downloads.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".lock-", dir=downloads) as name:
        tags = [f"{tag}_{arch}" for tag in _PLATFORMS]
        path, said = download_wheel(f"{rule.name}=={rule.version}", tags, Path(name))
        if path is None:
            raise NetworkError(
                "wheel-fetch-failed",
                f"cannot fetch {rule.name} {rule.version} for {arch}",
                why=said,
                hint="check pip's configuration (`pip config list`)",
            )
        locked = LockedFile(
            name=rule.name,
            version=rule.version,
            arch=arch,
            filename=path.name,
            sha256=sha256_file(path),
            size=path.stat().st_size,
        )
        path.replace(downloads / locked.sha256)
    return locked
