"""The C++ compiler of this machine that compiles host code for nvcc: found, and one that nvcc takes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from ci.toolchains.machine import Machine, Version, dotted, parse_version
from opencoti.errors import MissingError

# ggml is C++17 with its library complete.
_OLDEST_GCC: Final = 9
_OLDEST_CLANG: Final = 10
# Where nothing says how far nvcc goes.
_NEWEST_LOOKED_FOR: Final = 20


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """The newest major versions that nvcc takes; None where its headers do not say."""

    gcc: int | None = None
    clang: int | None = None

    @classmethod
    def read(cls, header: Path) -> Accepted:
        """Read nvcc's own check, `crt/host_config.h`: `#if __GNUC__ > 13`, `(__clang_major__ >= 18)`."""
        try:
            text = header.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return cls()
        gcc = re.search(r"__GNUC__ > (\d+)", text)
        clang = re.search(r"__clang_major__ >= (\d+)", text)
        return cls(gcc=int(gcc[1]) if gcc else None, clang=int(clang[1]) - 1 if clang else None)


@dataclass(frozen=True, kw_only=True)
class HostCompiler:
    """A pair of compilers of one version."""

    cc: Path
    cxx: Path
    family: Literal["gcc", "clang"]
    version: Version

    @property
    def label(self) -> str:
        """Family and version."""
        return f"{self.family} {dotted(self.version)}"

    def __str__(self) -> str:
        return f"{self.label} ({self.cxx})"

    def fits(self, accepted: Accepted) -> bool:
        """Tell whether nvcc takes it."""
        newest = accepted.gcc if self.family == "gcc" else accepted.clang
        oldest = _OLDEST_GCC if self.family == "gcc" else _OLDEST_CLANG
        return oldest <= self.version[0] and (newest is None or self.version[0] <= newest)


def find_host_compiler(machine: Machine, accepted: Accepted, *, wanted_by: str) -> HostCompiler:
    """Return the machine's own compiler if it fits, else the newest `g++-N` that does.

    Raises:
        MissingError: `host-compiler-missing`, `host-compiler-unaccepted`.
    """
    newest = accepted.gcc or _NEWEST_LOOKED_FOR
    pairs = [("c++", "cc"), ("g++", "gcc")]
    pairs += [(f"g++-{number}", f"gcc-{number}") for number in range(newest, _OLDEST_GCC - 1, -1)]
    refused: dict[str, None] = {}
    for cxx, cc in pairs:
        found = _identify(machine, cxx, cc)
        if found is not None and found.fits(accepted):
            return found
        if found is not None:
            refused[str(found)] = None
    limit = f"gcc {_OLDEST_GCC} to {newest}"
    if refused:
        raise MissingError(
            "host-compiler-unaccepted",
            f"{wanted_by} does not take the C++ compiler of this machine",
            why=f"it takes {limit}; found {', '.join(refused)}",
            hint=f"apt-get install g++-{newest} (or an older one), or use --engine docker",
        )
    raise MissingError(
        "host-compiler-missing",
        f"{wanted_by} needs a C++ compiler of this machine for the host code",
        why="PATH has no c++ and cc, g++ and gcc of one version",
        hint=f"install {limit} (`apt-get install g++`), or use --engine docker",
    )


def _identify(machine: Machine, cxx: str, cc: str) -> HostCompiler | None:
    """Return a pair if both are there and of one version."""
    programs = machine.which(cxx), machine.which(cc)
    if programs[0] is None or programs[1] is None:
        return None
    told = _ask(machine, programs[0], "c++"), _ask(machine, programs[1], "c")
    if told[0] is None or told[0] != told[1]:
        return None
    family, version = told[0]
    return HostCompiler(cc=programs[1], cxx=programs[0], family=family, version=version)


def _ask(machine: Machine, program: Path, language: str) -> tuple[Literal["gcc", "clang"], Version] | None:
    text = machine.ask([program, "-dM", "-E", "-x", language, "/dev/null"])
    macros = {name: parse_version(value) for name, value in re.findall(r"#define (\w+) (\d+)", text)}
    if "__clang_major__" in macros:
        names = ("__clang_major__", "__clang_minor__", "__clang_patchlevel__")
        return "clang", tuple(number for name in names for number in macros.get(name, ()))
    if "__GNUC__" not in macros:
        return None
    names = ("__GNUC__", "__GNUC_MINOR__", "__GNUC_PATCHLEVEL__")
    return "gcc", tuple(number for name in names for number in macros.get(name, ()))
