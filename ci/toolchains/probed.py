"""GPU toolchains of the host engine: what this machine has, in a folder laid out as the images are.

Stages call `{tools}/nvcc`, `{tools}/../stubs` and so on wherever they run. Here those are small scripts and
links in the build cache; the toolkit itself stays where it is and is only read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Final

from ci.locks import exclusive_lock
from ci.paths import Layout
from ci.stages.model import Stage, digest
from ci.toolchains.expiry import mark_used
from ci.toolchains.host import WheelToolchain
from ci.toolchains.hostcc import Accepted
from ci.toolchains.machine import Machine, dotted, this_machine
from ci.toolchains.recipe import OverlayFile, Recipe
from ci.toolchains.setups import Setup, find_setup
from ci.toolchains.table import Backend
from ci.toolchains.toolkit_cuda import known_archs, require_archs
from ci.toolchains.toolkit_rocm import known_devices, require_devices
from opencoti.console import Console
from opencoti.errors import MissingError, storage_error
from opencoti.files import write_atomic
from opencoti.hashing import sha256_file

# Parts of `containers/<name>/tree/` that a stage refers to; its programs are those of the image.
_SHARED: Final = ("cmake/", "stubs/", "probe/")
_CUDA_TARGETS: Final = "-DCMAKE_CUDA_ARCHITECTURES="
_HIP_TARGETS: Final = "-DCMAKE_HIP_ARCHITECTURES="


class ProbedToolchain:
    """The toolchain of a GPU backend as this machine has it; see `HostToolchain`.

    Nothing is looked at before the first question. What a probe misses is a `MissingError` that names the
    variable to set, raised by every member alike.
    """

    def __init__(self, backend: Backend, layout: Layout, *, machine: Machine | None = None) -> None:
        self._backend = backend
        self._layout = layout
        self._machine = machine or this_machine()

    @cached_property
    def _setup(self) -> Setup:
        return find_setup(self._backend, self._layout, self._machine)

    @cached_property
    def _shared(self) -> tuple[OverlayFile, ...]:
        recipe = Recipe.load(self._layout.containers / self._backend.toolchain)
        return tuple(file for file in recipe.overlay if file.path.startswith(_SHARED))

    @cached_property
    def id(self) -> str:
        """See `HostToolchain.id`; made from places, versions and the scripts."""
        setup = self._setup
        return digest(
            {
                "base": setup.base.id,
                "record": dict(setup.record),
                "scripts": setup.scripts(Path("/toolchain")),
                "links": {name: str(path) for name, path in setup.links.items()},
                "shared": [[file.path, sha256_file(file.source)] for file in self._shared],
            }
        )

    @property
    def description(self) -> str:
        """See `HostToolchain.description`."""
        return f"toolchain {self._backend.toolchain} of this machine ({self._setup.description})"

    @property
    def record(self) -> Mapping[str, str]:
        """See `HostToolchain.record`."""
        return self._setup.record

    @property
    def extra_path(self) -> tuple[str, ...]:
        """See `HostToolchain.extra_path`."""
        return self._setup.extra_path

    def prepare(self, console: Console) -> Path:
        """Unpack the wheels below it and write the scripts.

        Raises:
            MissingError: something is not there or does not fit; see `ci.toolchains.setups`.
            NetworkError, VerificationError: a wheel cannot be had.
            StorageError: the cache cannot be written.
        """
        setup = self._setup
        for notice in setup.notices:
            console.warn(notice)
        WheelToolchain(setup.base, self._layout).prepare(console)
        self._require_accepted(setup)
        folder = self._layout.toolchains / f"{self._backend.toolchain}-{self.id[:16]}"
        mark_used(folder)
        lock = folder.with_name(f"{folder.name}.lock")
        with exclusive_lock(lock, f"toolchain {self._backend.toolchain}", wait=True):
            try:
                self._write(folder, setup)
            except OSError as exc:
                raise storage_error(exc, f"cannot write {folder}") from exc
        return folder / "bin"

    def check(self, stage: Stage) -> None:
        """Refuse devices that the compiler does not know, before anything is compiled (case B13).

        Raises:
            MissingError: `cuda-arch-unknown`, `rocm-arch-unknown`.
            UsageError: `cuda-arch-malformed`.
        """
        setup = self._setup
        if setup.nvcc is not None and (wanted := _targets(stage, _CUDA_TARGETS)):
            known = known_archs(setup.nvcc, self._machine)
            require_archs(wanted, known, version=setup.nvcc_version, nvcc=setup.nvcc)
        if setup.clang is not None and (wanted := _targets(stage, _HIP_TARGETS)):
            require_devices(wanted, known_devices(setup.clang, self._machine), clang=setup.clang)

    def _require_accepted(self, setup: Setup) -> None:
        """The wheels bring the header that says which host compilers fit."""
        if setup.nvcc_header is None or setup.compiler is None:
            return
        accepted = Accepted.read(setup.nvcc_header)
        if not setup.compiler.fits(accepted):
            raise MissingError(
                "host-compiler-unaccepted",
                f"nvcc {dotted(setup.nvcc_version)} does not take {setup.compiler}",
                why=f"the newest gcc that it takes is {accepted.gcc}",
                hint="install an older g++, or use --engine docker",
            )

    def _write(self, folder: Path, setup: Setup) -> None:
        for name, text in setup.scripts(folder).items():
            _place(folder / "bin" / name, text.encode(), mode=0o755)
        for file in self._shared:
            _place(folder / file.path, file.source.read_bytes(), mode=0o644)
        for name, target in setup.links.items():
            _link(folder / name, target)


def _targets(stage: Stage, option: str) -> list[str]:
    """The words that CMake will be given for `option`."""
    words = (word for step in stage.steps for word in step.argv if word.startswith(option))
    return [target for word in words for target in word.removeprefix(option).split(";")]


def _place(path: Path, data: bytes, *, mode: int) -> None:
    """Write a file unless it is there as it should be: another build may be running it."""
    if path.is_file() and path.read_bytes() == data and path.stat().st_mode & 0o777 == mode:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, data, mode=mode)
    os.chmod(path, mode)


def _link(path: Path, target: Path) -> None:
    if path.is_symlink() and path.readlink() == target:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    os.replace(temporary, path)
