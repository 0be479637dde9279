"""Checks of a configured or finished build folder that a zero exit code does not make (case B16).

CMake writes `<NAME>-NOTFOUND` for whatever it did not find. Most of it is optional (a code-sign tool, a
scan-deps program), so the cache alone says nothing. It is a failure when the value is *used*: in a
command of the generated build, in what was printed, or in a variable that no build can do without. A project
that the build configures for itself (ggml has one for its shaders) is looked at too.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from ci.stages.model import Stage
from opencoti.errors import BuildError

NOT_FOUND: Final = "-NOTFOUND"
_CACHE: Final = "CMakeCache.txt"
_COMMAND_FILES: Final = ("build.ninja", "CMakeFiles/rules.ninja")
_REQUIRED_VARIABLES: Final = frozenset(
    {
        "CMAKE_AR",
        "CMAKE_RANLIB",
        "CMAKE_MAKE_PROGRAM",
        "CMAKE_C_COMPILER",
        "CMAKE_CXX_COMPILER",
        "CMAKE_CUDA_COMPILER",
        "CMAKE_HIP_COMPILER",
        "CUDAToolkit_NVCC_EXECUTABLE",
        "Vulkan_GLSLC_EXECUTABLE",
        "Vulkan_INCLUDE_DIR",
        "Vulkan_LIBRARY",
    }
)
_CACHE_LINE: Final = re.compile(r"([A-Za-z0-9_.-]+):[A-Z]+=(.*)")
# `-- Looking for X` lines tell of optional things; everything else that prints the value used it.
_STATUS_PREFIX: Final = "-- "


def is_not_found_line(line: str) -> bool:
    """Tell whether an output line shows a missing program or library in use."""
    return NOT_FOUND in line and not line.startswith(_STATUS_PREFIX)


def check_found(stage: Stage, out: Path, *, log: Path) -> None:
    """Refuse a build folder in which something that is used was not found.

    Raises:
        BuildError: `stage-value-not-found`, naming the variable or the command.
    """
    for folder in sorted({out, *(cache.parent for cache in out.rglob(_CACHE))}):
        if culprit := _missing_variable(folder / _CACHE) or _bad_command(folder):
            raise not_found_error(stage, culprit, log=log)


def not_found_error(stage: Stage, culprit: str, *, log: Path) -> BuildError:
    """Make the error for a value that CMake did not find and that is used all the same."""
    return BuildError(
        "stage-value-not-found",
        f"stage {stage.name} uses something that was not found",
        why=culprit.strip()[:300],
        hint=f"install what the name stands for, or use the pinned tools (--toolchain wheels); log: {log}",
    )


def _missing_variable(cache: Path) -> str:
    if not cache.is_file():
        return ""
    for line in cache.read_text(encoding="utf-8", errors="replace").splitlines():
        match = _CACHE_LINE.fullmatch(line)
        if match and match[1] in _REQUIRED_VARIABLES and match[2].endswith(NOT_FOUND):
            return f"{match[1]}={match[2]}"
    return ""


def _bad_command(out: Path) -> str:
    for name in _COMMAND_FILES:
        path = out / name
        if path.is_file():
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                if NOT_FOUND in line:
                    return line
    return ""
