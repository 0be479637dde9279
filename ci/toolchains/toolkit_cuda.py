"""A CUDA toolkit on this machine: found, proved to be of one version, its devices listed. Read-only.

Half of one toolkit and half of another compiles for minutes and then stops, or computes garbage (case B14),
so nvcc, the headers that it uses, the runtime library and cuBLAS's header must agree before anything is
compiled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ci.toolchains.hostcc import Accepted
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
from opencoti.errors import MissingError, UsageError

VARIABLE: Final = "OPENCOTI_CUDA_PATH"
DEFAULT: Final = "cuda-12.6"
# Per generation; 12.4 is also the oldest whose code the table's `min_driver` was proved with.
_OLDEST: Final = {12: (12, 4), 13: (13, 0)}
# `120f`, code for a family of GPUs, came with this one.
_FAMILIES: Final = (12, 9)
# What CMake is given; the text of an error or `native` is neither (case B13).
_CMAKE_TARGET: Final = re.compile(r"(\d{2,3})([af]?)(-real|-virtual)?")


@dataclass(frozen=True, kw_only=True)
class CudaToolkit:
    """A toolkit whose parts agree.

    Attributes:
        root: its folder, links resolved.
        version: of nvcc.
        headers: CUDA version of `cuda.h`, two numbers.
        cublas: version of cuBLAS's header, which has a numbering of its own below the major number.
    """

    root: Path
    nvcc: Path
    version: Version
    headers: Version
    cublas: Version
    accepted: Accepted

    @property
    def generation(self) -> int:
        """12 or 13."""
        return self.version[0]

    @property
    def label(self) -> str:
        """Its versions, without a place of this machine."""
        parts = f"headers {dotted(self.headers)}, cuBLAS header {dotted(self.cublas)}"
        return f"CUDA {dotted(self.version)}, {parts}"

    def __str__(self) -> str:
        return f"{self.label} in {self.root}"


@dataclass(frozen=True, kw_only=True)
class _Claim:
    """A part of a toolkit and the version that it says it is of."""

    part: str
    version: Version

    def agrees(self, version: Version) -> bool:
        shared = min(len(self.version), 2)
        return self.version[:shared] == version[:shared]

    def __str__(self) -> str:
        return f"{self.part} is {dotted(self.version)}"


def find_cuda(machine: Machine) -> Path | None:
    """Return the folder that `OPENCOTI_CUDA_PATH` names, else the default if it is there."""
    if named := machine.named(VARIABLE):
        return Path(named)
    default = machine.local / DEFAULT
    return default if default.is_dir() else None


def read_cuda(folder: Path, machine: Machine) -> CudaToolkit:
    """Look at every part of the toolkit in `folder`.

    Raises:
        MissingError: `cuda-toolkit-missing`, `cuda-part-missing`, `cuda-version-unreadable`,
            `cuda-toolkit-mixed`.
    """
    root = folder.resolve()
    nvcc = root / "bin" / "nvcc"
    if not nvcc.is_file():
        raise cuda_missing(machine, f"there is no CUDA toolkit in {folder} (no bin/nvcc)")
    version = _nvcc_version(nvcc, machine)
    includes = _include_folders(root, nvcc, machine)
    headers = [
        _Claim(part=f"{folder / name}", version=_cuda_number(number))
        for folder in includes
        for name, macro in (("cuda.h", "CUDA_VERSION"), ("cuda_runtime_api.h", "CUDART_VERSION"))
        if (number := read_macros(folder / name).get(macro)) is not None
    ]
    runtimes = library_versions(library_folders(root), "libcudart")
    cublas = next((found for folder in includes if (found := _cublas_version(folder))), ())
    _require(root, "cuda.h and cuda_runtime_api.h", headers)
    _require(root, "libcudart.so.*", runtimes)
    _require(root, "cublas_v2.h (cuBLAS, development files)", cublas)
    libraries = [_Claim(part=str(path), version=found) for path, found in runtimes.items()]
    blas = [_Claim(part="cuBLAS's header", version=cublas[:1])]
    blas += [
        _Claim(part=str(path), version=found[:1])
        for path, found in library_versions(library_folders(root), "libcublas").items()
    ]
    _require_agreement(root, nvcc, version, [*headers, *libraries, *blas])
    checks = [Accepted.read(folder / "crt" / "host_config.h") for folder in includes]
    return CudaToolkit(
        root=root,
        nvcc=nvcc,
        version=version,
        headers=headers[0].version,
        cublas=cublas,
        accepted=next((check for check in checks if check.gcc), Accepted()),
    )


def require_generation(toolkit: CudaToolkit, backend: Backend) -> None:
    """Refuse a toolkit of another generation than the backend, or one that is too old.

    Raises:
        MissingError: `cuda-generation-other`, `cuda-toolkit-old`.
    """
    if not is_generation_of(toolkit, backend):
        raise MissingError(
            "cuda-generation-other",
            f"backend {backend.name} cannot be built with {toolkit}",
            why=f"its library needs {', '.join(name for name in backend.needed if 'cudart' in name)}",
            hint=f"set {VARIABLE} to a toolkit of that generation, or use --engine docker",
        )
    oldest = _OLDEST.get(toolkit.generation, (toolkit.generation,))
    if toolkit.version < oldest:
        raise MissingError(
            "cuda-toolkit-old",
            f"backend {backend.name} cannot be built with {toolkit}",
            why=f"{dotted(oldest)} is the oldest that it is built with",
            hint=f"set {VARIABLE} to a newer toolkit, or use --engine docker",
        )


def is_generation_of(toolkit: CudaToolkit, backend: Backend) -> bool:
    """Tell whether what this toolkit compiles needs the runtime that the table names."""
    return f"libcudart.so.{toolkit.generation}" in backend.needed


def known_archs(nvcc: Path, machine: Machine) -> frozenset[int]:
    """Return the numbers of the architectures that nvcc lists."""
    text = machine.ask([nvcc, "--list-gpu-arch"])
    return frozenset(int(number) for number in re.findall(r"^compute_(\d+)$", text, re.MULTILINE))


def require_archs(wanted: Sequence[str], known: frozenset[int], *, version: Version, nvcc: Path) -> None:
    """Refuse what nvcc does not know, before CMake is called with it (case B13).

    Args:
        wanted: words of CMAKE_CUDA_ARCHITECTURES.
        known: what nvcc lists.
        version: of nvcc.
        nvcc: for the message.

    Raises:
        UsageError: `cuda-arch-malformed`, no number of an architecture.
        MissingError: `cuda-arch-unknown`, this nvcc cannot compile for it.
    """
    unknown = []
    for word in wanted:
        match = _CMAKE_TARGET.fullmatch(word)
        if match is None:
            raise UsageError(
                "cuda-arch-malformed",
                f"{word[:80]!r} is no architecture of a GPU",
                hint="name it by its number, as in --archs 75,90; what the machine has is never looked up",
            )
        if int(match[1]) not in known or (match[2] == "f" and version < _FAMILIES):
            unknown.append(word.removesuffix("-real").removesuffix("-virtual"))
    if unknown:
        raise MissingError(
            "cuda-arch-unknown",
            f"nvcc {dotted(version)} ({nvcc}) cannot compile for {', '.join(unknown)}",
            why=f"it knows {' '.join(map(str, sorted(known))) or 'no architecture'}",
            hint=f"set {VARIABLE} to another toolkit, or leave these out with --archs",
        )


def cuda_missing(machine: Machine, what: str) -> MissingError:
    """Make the error that names the toolkits which are there."""
    candidates = [str(path) for path in sorted(machine.local.glob("cuda*")) if (path / "bin/nvcc").is_file()]
    found = ", ".join(candidates) or "none"
    return MissingError(
        "cuda-toolkit-missing",
        what,
        why=f"toolkits found in {machine.local}: {found}",
        hint=f"set {VARIABLE} to the folder of one (default {machine.local / DEFAULT}), "
        "or use --engine docker",
    )


def _nvcc_version(nvcc: Path, machine: Machine) -> Version:
    text = machine.ask([nvcc, "--version"])
    match = re.search(r"release \d+\.\d+, V(\d+\.\d+(?:\.\d+)*)", text)
    if match is None:
        raise MissingError(
            "cuda-version-unreadable",
            f"{nvcc} does not say of which version it is",
            why=f"it printed {text.strip()[:200]!r}",
            hint=f"set {VARIABLE} to the folder of a complete toolkit",
        )
    return parse_version(match[1])


def _include_folders(root: Path, nvcc: Path, machine: Machine) -> list[Path]:
    """Folders with CUDA's headers: the one that nvcc says it uses, and those of the root."""
    told = re.search(
        r"^#\$ TOP=(.+)$", machine.ask([nvcc, "--dryrun", "-x", "cu", "-c", "/dev/null"]), re.MULTILINE
    )
    used = [Path(told[1].strip()) / "include"] if told else []
    known = [*used, root / "include", *root.glob("targets/*/include")]
    return list(dict.fromkeys(folder.resolve() for folder in known if (folder / "cuda.h").is_file()))


def _cuda_number(number: int) -> Version:
    return (number // 1000, number % 1000 // 10)


def _cublas_version(folder: Path) -> Version:
    if not (folder / "cublas_v2.h").is_file():
        return ()
    macros = read_macros(folder / "cublas_api.h")
    names = ("CUBLAS_VER_MAJOR", "CUBLAS_VER_MINOR", "CUBLAS_VER_PATCH")
    return tuple(_values(macros, names))


def _values(macros: dict[str, int], names: Sequence[str]) -> Iterator[int]:
    for name in names:
        if name not in macros:
            return
        yield macros[name]


def _require(root: Path, part: str, found: object) -> None:
    if not found:
        raise MissingError(
            "cuda-part-missing",
            f"the CUDA toolkit in {root} lacks {part}",
            hint=f"install the whole toolkit, set {VARIABLE} to another one, or use --engine docker",
        )


def _require_agreement(root: Path, nvcc: Path, version: Version, claims: Sequence[_Claim]) -> None:
    others = [claim for claim in claims if not claim.agrees(version)]
    if others:
        raise MissingError(
            "cuda-toolkit-mixed",
            f"the CUDA toolkit in {root} is made of more than one version",
            why=f"{nvcc} is {dotted(version)}, {'; '.join(map(str, others))}",
            hint=f"install it again, or set {VARIABLE} to the folder of a toolkit that is whole",
        )
