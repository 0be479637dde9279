"""A ROCm installation on this machine: found, proved to be of one version, its devices listed. Read-only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ci.toolchains.machine import (
    Machine,
    Version,
    dotted,
    library_folders,
    library_versions,
    parse_version,
    read_macros,
)
from ci.toolchains.table import Backend
from opencoti.errors import MissingError

VARIABLE: Final = "OPENCOTI_ROCM_PATH"
# What AMD's own documents and scripts use.
VENDOR_VARIABLE: Final = "ROCM_PATH"
_OLDEST: Final = (6, 1)
_HEADERS: Final = ("hipblas/hipblas.h", "rocblas/rocblas.h")
_PROGRAMS: Final = ("clang", "clang++", "llvm-ar", "llvm-ranlib", "llvm-objcopy", "clang-offload-bundler")
_TARGET: Final = re.compile(r"gfx[0-9a-f]{3,4}")


@dataclass(frozen=True, kw_only=True)
class RocmToolkit:
    """An installation whose parts agree.

    Attributes:
        root: its folder, links resolved.
        version: of HIP, three numbers.
        llvm: folder of AMD's clang.
        runtime: major number in the name of the HIP runtime library.
    """

    root: Path
    version: Version
    llvm: Path
    clang: str
    runtime: int

    @property
    def label(self) -> str:
        """Its versions, without a place of this machine."""
        return f"ROCm with HIP {dotted(self.version)}, {self.clang}"

    def __str__(self) -> str:
        return f"{self.label} in {self.root}"


def read_rocm(machine: Machine) -> RocmToolkit:
    """Find ROCm where the variables say, else in `/opt/rocm`, and look at its parts.

    Raises:
        MissingError: `rocm-missing`, `rocm-part-missing`, `rocm-mixed`, `rocm-old`.
    """
    named = machine.named(VARIABLE, VENDOR_VARIABLE)
    folder = Path(named) if named else machine.optional / "rocm"
    header = folder / "include" / "hip" / "hip_version.h"
    if not header.is_file():
        raise _missing(machine, folder)
    root = folder.resolve()
    macros = read_macros(root / "include" / "hip" / "hip_version.h")
    version = tuple(macros.get(f"HIP_VERSION_{part}", 0) for part in ("MAJOR", "MINOR", "PATCH"))
    if version < _OLDEST:
        raise MissingError(
            "rocm-old",
            f"ROCm in {root} is {dotted(version)}",
            why=f"{dotted(_OLDEST)} is the oldest that ggml compiles with",
            hint=f"set {VARIABLE} to a newer one, or use --engine docker",
        )
    llvm = _llvm(root)
    missing = [name for name in _HEADERS if not (root / "include" / name).is_file()]
    missing += [name for name in _PROGRAMS if llvm is None or not (llvm / name).is_file()]
    runtimes = library_versions(library_folders(root), "libamdhip64")
    if llvm is None or missing or not runtimes:
        raise MissingError(
            "rocm-part-missing",
            f"ROCm in {root} lacks {', '.join(missing or ['libamdhip64.so.*'])}",
            hint="install rocm-hip-sdk (hipblas-dev, rocblas-dev, rocm-llvm), or use --engine docker",
        )
    clang = machine.ask([llvm / "clang++", "--version"])
    _require_agreement(root, version, clang, runtimes)
    return RocmToolkit(
        root=root,
        version=version,
        llvm=llvm,
        clang=clang.strip().split("\n", 1)[0][:120],
        runtime=version[0],
    )


def require_runtime(toolkit: RocmToolkit, backend: Backend) -> None:
    """Refuse an installation whose runtime is another one than the table names.

    Raises:
        MissingError: `rocm-generation-other`.
    """
    declared = ", ".join(name for name in backend.needed if "amdhip64" in name)
    soname = f"libamdhip64.so.{toolkit.runtime}"
    if soname not in backend.needed:
        raise MissingError(
            "rocm-generation-other",
            f"backend {backend.name} cannot be built with {toolkit}",
            why=f"it would need {soname}; the table has {declared}",
            hint=f"set {VARIABLE} to an installation of that generation, or use --engine docker",
        )


def known_devices(clang: Path, machine: Machine) -> frozenset[str]:
    """Return the devices that a clang lists; empty when it does not tell."""
    text = machine.ask([clang, "--target=amdgcn-amd-amdhsa", "--print-supported-cpus"])
    return frozenset(_TARGET.findall(text))


def require_devices(wanted: Sequence[str], known: frozenset[str], *, clang: Path) -> None:
    """Refuse devices that this clang does not know, before CMake is called.

    Raises:
        MissingError: `rocm-arch-unknown`.
    """
    unknown = [name for name in wanted if name not in known]
    if known and unknown:
        raise MissingError(
            "rocm-arch-unknown",
            f"{clang} cannot compile for {', '.join(unknown)}",
            why=f"it knows {' '.join(sorted(known))}",
            hint=f"set {VARIABLE} to a newer ROCm, or leave these out with --archs",
        )


def _missing(machine: Machine, folder: Path) -> MissingError:
    there = sorted(machine.optional.glob("rocm*"))
    candidates = [str(path) for path in there if (path / "include/hip/hip_version.h").is_file()]
    return MissingError(
        "rocm-missing",
        f"there is no ROCm in {folder} (no include/hip/hip_version.h)",
        why=f"found in {machine.optional}: {', '.join(candidates) or 'none'}",
        hint=f"set {VARIABLE} to the folder of one (default {machine.optional / 'rocm'}), "
        "or use --engine docker",
    )


def _llvm(root: Path) -> Path | None:
    known = (root / "llvm" / "bin", root / "lib" / "llvm" / "bin")
    return next((folder for folder in known if (folder / "clang++").is_file()), None)


def _require_agreement(root: Path, version: Version, clang: str, runtimes: dict[Path, Version]) -> None:
    claims = {str(path): found[:1] for path, found in runtimes.items()}
    if told := re.search(r"\broc-(\d+\.\d+)", clang):
        claims[f"clang in {root}"] = parse_version(told[1])
    others = {part: found for part, found in claims.items() if found != version[: len(found)]}
    if others:
        told_others = "; ".join(f"{part} is {dotted(found)}" for part, found in others.items())
        raise MissingError(
            "rocm-mixed",
            f"ROCm in {root} is made of more than one version",
            why=f"its headers are HIP {dotted(version)}, {told_others}",
            hint=f"install it again, or set {VARIABLE} to the folder of one that is whole",
        )
