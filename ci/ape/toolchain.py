"""What the ape lane is compiled with on this machine: cosmocc from its archive, and toolkits behind the names
that upstream's GPU scripts call.

The archive's programs are portable executables; a kernel or a container may refuse to start them.
"""

from __future__ import annotations

import errno
import os
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

from ci import process
from ci.paths import Layout
from ci.stages.model import Stage, digest
from ci.toolchains.expiry import mark_used
from ci.toolchains.host import COSMOCC, WheelToolchain
from ci.toolchains.hostcc import Accepted, HostCompiler, find_host_compiler
from ci.toolchains.machine import Machine, this_machine
from ci.toolchains.recipe import Recipe
from ci.toolchains.table import Backend
from ci.toolchains.toolkit_cuda import cuda_missing, find_cuda, read_cuda, require_generation
from ci.toolchains.toolkit_rocm import read_rocm
from ci.toolchains.toolkit_vulkan import read_vulkan
from ci.toolchains.wrappers import system_wrapper
from opencoti.console import Console
from opencoti.errors import MissingError, storage_error
from opencoti.files import write_atomic

SYSTEM_PATH: Final = ("/usr/bin", "/bin")
# What upstream's makefiles and scripts call, beside the compiler.
_HOST_PROGRAMS: Final = ("make", "bash", "find", "cmp", "install")
_SCRIPT_PROGRAMS: Final = ("bash", "find", "nproc")
_COMPILERS: Final = ("gcc", "g++", "hipcc")
# The compiler cache takes a whole call of nvcc, not the host compiler's calls inside it.
_WHOLE_CALL: Final = 'launcher="$OPENCOTI_LAUNCHER"\nunset OPENCOTI_LAUNCHER\n'
# A program of the archive that is a portable executable; which one does not matter.
_PORTABLE: Final = ("make", "ar.ape", "mkdeps")
# What `sh`, run-detectors and their like end with when they cannot run something.
_NOT_STARTED: Final = (126, 127)


def has_cosmocc(layout: Layout) -> bool:
    """Tell whether cosmocc is here, unpacked or as the archive that its recipe pins."""
    folder = layout.containers / COSMOCC
    if not folder.is_dir():
        return False
    recipe = Recipe.load(folder)
    archives = [layout.downloads / archive.sha256 for archive in recipe.archives]
    is_unpacked = (layout.toolchains / recipe.id[:16]).is_dir()
    return is_unpacked or (bool(archives) and all(path.is_file() for path in archives))


class CosmoccToolchain(WheelToolchain):
    """cosmocc and our scripts around it; `make` and the small tools are those of the machine."""

    extra_path = SYSTEM_PATH

    def check(self, stage: Stage) -> None:
        """Refuse a machine that lacks a small tool. Raises `MissingError` (`ape-program-missing`)."""
        require_programs(_HOST_PROGRAMS, "upstream's makefiles")

    def prepare(self, console: Console) -> Path:
        """See `WheelToolchain.prepare`; then try whether its programs start.

        Raises:
            MissingError: `archive-unreachable`; `cosmocc-not-runnable`.
        """
        tools = super().prepare(console)
        require_runnable(tools.parent / "cosmocc" / "bin")
        return tools


def require_runnable(folder: Path) -> None:
    """Start a portable executable of cosmocc.

    Raises:
        MissingError: `cosmocc-not-runnable`, the kernel does not know the format, or hands it to another
            program.
    """
    program = next((folder / name for name in _PORTABLE if (folder / name).is_file()), None)
    if program is None:
        return
    try:
        done = process.run([program, "--version"], env={"PATH": os.pathsep.join(SYSTEM_PATH)}, timeout_s=30.0)
    except OSError as exc:
        if exc.errno != errno.ENOEXEC:
            raise storage_error(exc, f"cannot start {program}") from exc
        raise _not_runnable(program, "the kernel does not know the format") from exc
    if done.code in _NOT_STARTED:
        raise _not_runnable(program, f"another program took it: {done.error_text.splitlines()[:1]}")


def _not_runnable(program: Path, why: str) -> MissingError:
    return MissingError(
        "cosmocc-not-runnable",
        f"cosmocc is here, and its programs do not start ({program})",
        why=why,
        hint="install the loader of portable executables: copy cosmocc's bin/ape-*.elf to /usr/bin/ape and "
        "register ':APE:M::MZqFpD::/usr/bin/ape:' with binfmt_misc",
    )


def require_programs(names: tuple[str, ...], wanted_by: str) -> None:
    """Refuse to start what would stop in the middle. Raises `MissingError` (`ape-program-missing`)."""
    missing = [name for name in names if shutil.which(name, path=os.pathsep.join(SYSTEM_PATH)) is None]
    if missing:
        raise MissingError(
            "ape-program-missing",
            f"{wanted_by} need {', '.join(missing)}",
            why=f"not found in {' or '.join(SYSTEM_PATH)}",
            hint=f"apt-get install {' '.join(missing)} (cmp is in diffutils, find in findutils)",
        )


@dataclass(frozen=True, kw_only=True)
class Kit:
    """A GPU toolkit of this machine, ready for a script.

    Attributes:
        description: what was found.
        record: what a manifest says of it.
        programs: name in `bin` to the words that it stands for.
        variables: exported to these programs.
    """

    description: str
    record: Mapping[str, str]
    programs: Mapping[str, tuple[str, ...]]
    variables: Mapping[str, str] = field(default_factory=dict)


class ScriptToolchain:
    """The names that upstream's script for a backend calls, each leading to a program of this machine.

    The scripts call gcc and g++ by name, and nvcc or hipcc in the `bin` of a toolkit: `bin` of this toolchain
    is made to look like that. What is used is found by the read-only probes of the host engine.
    """

    extra_path: tuple[str, ...] = SYSTEM_PATH

    def __init__(self, backend: Backend, layout: Layout, *, machine: Machine | None = None) -> None:
        self._backend = backend
        self._layout = layout
        self._machine = machine or this_machine()

    @cached_property
    def _kit(self) -> Kit:
        return find_kit(self._backend, self._machine)

    @cached_property
    def id(self) -> str:
        """See `HostToolchain.id`; made from versions and the scripts."""
        return digest(["ape-scripts/1", dict(self._kit.record), self._scripts(Path("/toolchain"))])

    @property
    def description(self) -> str:
        """See `HostToolchain.description`."""
        return f"toolchain {self._backend.toolchain} of this machine ({self._kit.description})"

    @property
    def record(self) -> Mapping[str, str]:
        """See `HostToolchain.record`."""
        return self._kit.record

    def check(self, stage: Stage) -> None:
        """Refuse a machine that lacks a small tool. Raises `MissingError` (`ape-program-missing`)."""
        require_programs(_SCRIPT_PROGRAMS, "upstream's scripts")

    def prepare(self, console: Console) -> Path:
        """Write the programs. Raises `StorageError`, and `MissingError` for what is not there."""
        folder = self._layout.toolchains / f"ape-{self._backend.name}-{self.id[:16]}"
        mark_used(folder)
        for name, text in self._scripts(folder).items():
            path = folder / "bin" / name
            if not path.is_file() or path.read_text(encoding="utf-8") != text:
                write_atomic(path, text.encode(), mode=0o755)
        return folder / "bin"

    def _scripts(self, folder: Path) -> dict[str, str]:
        exports = "".join(
            f"export {name}={shlex.quote(value)}\n" for name, value in self._kit.variables.items()
        )
        scripts = {}
        for name, words in self._kit.programs.items():
            line, body = _script(name, words, folder).split("\n", 1)
            scripts[name] = f"{line}\n{exports}{body}"
        return scripts


def _script(name: str, words: tuple[str, ...], folder: Path) -> str:
    """Return a program: compilers map the folders of a build to fixed names and go through the cache."""
    if name == "nvcc":
        call = shlex.join([*words, "-ccbin", str(folder / "bin" / "g++")])
        return f'#!/bin/sh\n{_WHOLE_CALL}exec $launcher {call} "$@"\n'
    return system_wrapper("c++" if name in _COMPILERS else name, *words)


def find_kit(backend: Backend, machine: Machine) -> Kit:
    """Look for what the script of a backend needs.

    Raises:
        MissingError: the toolkit or a compiler for the host code is not there, or does not fit.
    """
    if backend.kind == "cuda":
        return _cuda(backend, machine)
    return _rocm(machine) if backend.kind == "hip" else _vulkan(machine)


def _cuda(backend: Backend, machine: Machine) -> Kit:
    folder = find_cuda(machine)
    if folder is None:
        raise cuda_missing(machine, f"upstream's cuda.sh needs a CUDA toolkit for backend {backend.name}")
    toolkit = read_cuda(folder, machine)
    require_generation(toolkit, backend)
    compiler = find_host_compiler(machine, toolkit.accepted, wanted_by="upstream's cuda.sh")
    return Kit(
        description=f"{toolkit}, {compiler}",
        record={"toolkit": toolkit.label, "host_compiler": compiler.label},
        programs={**_compilers(compiler), "nvcc": (str(toolkit.nvcc),)},
        # The driver's library is on no build machine; the toolkit brings one to link against.
        variables={"LIBRARY_PATH": str(toolkit.root / "lib64" / "stubs")},
    )


def _rocm(machine: Machine) -> Kit:
    toolkit = read_rocm(machine)
    compiler = find_host_compiler(machine, Accepted(), wanted_by="upstream's rocm.sh")
    hipcc = toolkit.root / "bin" / "hipcc"
    call = (str(hipcc),) if hipcc.is_file() else (str(toolkit.llvm / "clang++"), "-x", "hip")
    return Kit(
        description=f"{toolkit}, {compiler}",
        record={"toolkit": toolkit.label, "host_compiler": compiler.label},
        programs={**_compilers(compiler), "hipcc": call},
        variables={"ROCM_PATH": str(toolkit.root), "HIP_PATH": str(toolkit.root)},
    )


def _vulkan(machine: Machine) -> Kit:
    toolkit = read_vulkan(machine)
    compiler = find_host_compiler(machine, Accepted(), wanted_by="upstream's vulkan.sh")
    includes = sorted({str(path.parent) for path in toolkit.folders.values()})
    return Kit(
        description=f"{toolkit}, {compiler}",
        record={"toolkit": toolkit.label, "host_compiler": compiler.label},
        programs={**_compilers(compiler), "glslc": (str(toolkit.glslc),)},
        variables={"CPLUS_INCLUDE_PATH": os.pathsep.join(includes)},
    )


def _compilers(compiler: HostCompiler) -> dict[str, tuple[str, ...]]:
    return {"gcc": (str(compiler.cc),), "g++": (str(compiler.cxx),)}
