"""Toolchains of the host engine: unpacked wheels, or what the machine has (`--toolchain system`)."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol

from ci import process
from ci.locks import exclusive_lock
from ci.paths import Layout
from ci.stages.model import Stage, digest
from ci.toolchains.archives import fetch_archives, unpack_archive
from ci.toolchains.expiry import mark_used, remove_unused
from ci.toolchains.recipe import Recipe
from ci.toolchains.table import load_table
from ci.toolchains.wheels import fetch_wheels, unpack_wheel
from ci.toolchains.wrappers import system_wrapper, wrapper_scripts
from opencoti.console import Console
from opencoti.errors import MissingError, storage_error

SYSTEM: Final = "system"
COSMOCC: Final = "cosmocc"
SYSTEM_PROGRAMS: Final = ("cmake", "ninja", "cc", "c++", "ar", "ranlib")
_STAMP: Final = ".opencoti-toolchain.json"


class HostToolchain(Protocol):
    """A toolchain that the host engine can use."""

    @property
    def id(self) -> str:
        """Hash of what it holds."""

    @property
    def description(self) -> str:
        """What it is, for the user."""

    @property
    def record(self) -> Mapping[str, str]:
        """What a manifest says about it beside id and description."""

    @property
    def extra_path(self) -> tuple[str, ...]:
        """Folders of PATH behind the tools themselves."""

    def check(self, stage: Stage) -> None:
        """Refuse a stage that it cannot run, before the first step. Call `prepare` first."""

    def prepare(self, console: Console) -> Path:
        """Make it ready and return the folder of its programs."""


def find_toolchain(name: str, layout: Layout) -> HostToolchain:
    """Return the toolchain `name`: `system`, that of a GPU backend, or wheels. Raises `ConfigError`."""
    if name == SYSTEM:
        return SystemToolchain(layout)
    table = load_table(layout.table) if layout.table.is_file() else None
    for backend in table.of_toolchain(name) if table else ():
        if backend.kind != "cpu":
            # It is made of toolchains of this module.
            from ci.toolchains.probed import ProbedToolchain

            return ProbedToolchain(backend, layout)
    if name == COSMOCC:
        from ci.ape.toolchain import CosmoccToolchain

        return CosmoccToolchain(Recipe.load(layout.containers / name), layout)
    return WheelToolchain(Recipe.load(layout.containers / name), layout)


class WheelToolchain:
    """A toolchain from wheels, unpacked once per lock into the build cache of the user."""

    extra_path: tuple[str, ...] = ()
    record: Mapping[str, str] = MappingProxyType({})

    def __init__(self, recipe: Recipe, layout: Layout) -> None:
        self._recipe = recipe
        self._layout = layout

    @cached_property
    def id(self) -> str:
        """See `HostToolchain.id`."""
        return self._recipe.id

    @property
    def description(self) -> str:
        """See `HostToolchain.description`."""
        versions = ", ".join(f"{wheel.name} {wheel.version}" for wheel in self._recipe.wheels)
        return f"toolchain {self._recipe.name} ({versions})"

    def check(self, stage: Stage) -> None:
        """See `HostToolchain.check`."""

    def prepare(self, console: Console) -> Path:
        """Unpack the wheels unless an undamaged copy is there; safe when several commands do it at once.

        Raises:
            NetworkError: a wheel cannot be fetched.
            StorageError: the cache cannot be written.
            VerificationError: a wheel has other bytes than its lock says.
        """
        folder = self._layout.toolchains / self.id[:16]
        mark_used(folder)
        if not is_intact(folder):
            lock = folder.with_name(f"{folder.name}.lock")
            with exclusive_lock(lock, f"toolchain {self._recipe.name}", wait=True):
                if not is_intact(folder):
                    self._install(folder, console)
                    remove_unused(folder.parent)
        return folder / "bin"

    def _install(self, folder: Path, console: Console) -> None:
        if folder.exists():
            console.warn(f"toolchain {folder} is incomplete or damaged: it is unpacked again")
        wheels = fetch_wheels(self._recipe.wheels, self._layout.downloads, console)
        archives = fetch_archives(self._recipe.archives, self._layout.downloads, console)
        console.info(f"unpacking toolchain {self._recipe.name} to {folder}")
        try:
            for abandoned in folder.parent.glob(f".{folder.name}-*"):
                shutil.rmtree(abandoned, ignore_errors=True)
            temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
            try:
                assemble(self._recipe, wheels, archives, temporary)
                _write_stamp(temporary)
                os.chmod(temporary, 0o755)  # noqa: S103
                shutil.rmtree(folder, ignore_errors=True)
                os.rename(temporary, folder)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
        except OSError as exc:
            raise storage_error(exc, f"cannot unpack toolchain {self._recipe.name} to {folder}") from exc


class SystemToolchain:
    """The compilers that this machine has. Products differ from machine to machine."""

    extra_path: tuple[str, ...] = ("/usr/bin", "/bin")
    record: Mapping[str, str] = MappingProxyType({})

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    @cached_property
    def _programs(self) -> dict[str, str]:
        found = {name: shutil.which(name) for name in SYSTEM_PROGRAMS}
        missing = [name for name, path in found.items() if path is None]
        if missing:
            raise MissingError(
                "toolchain-program-missing",
                f"--toolchain system: {', '.join(missing)} not found on PATH",
                hint="install it, or leave the option out: the pinned toolchain needs nothing of the machine",
            )
        return {name: path for name, path in found.items() if path is not None}

    @cached_property
    def id(self) -> str:
        """See `HostToolchain.id`; made from paths and versions."""
        versions = {name: [path, _version(path)] for name, path in self._programs.items()}
        return digest([versions, self._scripts()])

    @property
    def description(self) -> str:
        """See `HostToolchain.description`."""
        return f"toolchain system ({_version(self._programs['cc'])})"

    def check(self, stage: Stage) -> None:
        """See `HostToolchain.check`."""

    def prepare(self, console: Console) -> Path:
        """Write a folder of wrappers around the programs of the machine. Raises `StorageError`."""
        folder = self._layout.toolchains / f"system-{self.id[:16]}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in self._scripts().items():
                _write_script(folder / name, text)
        except OSError as exc:
            raise storage_error(exc, f"cannot write {folder}") from exc
        return folder

    def _scripts(self) -> dict[str, str]:
        return {name: system_wrapper(name, path) for name, path in self._programs.items()}


def assemble(recipe: Recipe, wheels: dict[str, Path], archives: dict[str, Path], target: Path) -> None:
    """Put a whole toolchain together below `target`: the tree that host and image share. Raises `OSError`."""
    for archive in recipe.archives:
        unpack_archive(archives[archive.name], archive, target)
    for rule in recipe.rules:
        unpack_wheel(wheels[rule.name], rule, target)
    tools = target / "bin"
    tools.mkdir()
    for name, text in wrapper_scripts().items():
        _write_script(tools / name, text)
    for file in recipe.overlay:
        place = target / file.path
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file.source, place)
        os.chmod(place, 0o755 if file.is_executable else 0o644)


def is_intact(folder: Path) -> bool:
    """Tell whether a toolchain has exactly the files and sizes that its stamp recorded."""
    try:
        stamp = json.loads((folder / _STAMP).read_bytes())
    except (OSError, ValueError):
        return False
    return bool(stamp == _measure(folder))


def _write_stamp(folder: Path) -> None:
    (folder / _STAMP).write_text(json.dumps(_measure(folder)) + "\n", encoding="utf-8")


def _measure(folder: Path) -> dict[str, int | str]:
    """Number, total size, and a hash over names and sizes of all files except the stamp."""
    sizes: dict[str, int] = {}
    for root, _, names in os.walk(folder):
        for name in names:
            path = Path(root, name)
            sizes[path.relative_to(folder).as_posix()] = path.lstat().st_size
    sizes.pop(_STAMP, None)
    return {"files": len(sizes), "bytes": sum(sizes.values()), "listing": digest(sizes)}


def _write_script(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    os.chmod(path, 0o755)  # noqa: S103


def _version(program: str) -> str:
    done = process.run([program, "--version"])
    return (done.text or done.error_text).split("\n", 1)[0]
