"""The compiler wrappers of a toolchain: small `sh` scripts that CMake takes for cc, c++, ar and ranlib.

A stage chooses the target with `OPENCOTI_TARGET`. The wrappers find everything from their own place, so
a toolchain can lie anywhere, and they map the three folders of a build to fixed names (source `.`, build
folder `./build`, toolchain `/toolchain`), so that `__FILE__` and the like say the same on every machine.
"""

from __future__ import annotations

import shlex
from typing import Final

DEFAULT_TARGET: Final = "x86_64-linux-gnu.2.28"

# CMake and ninja call by absolute path, which needs no further process to find the folder above.
_ROOT: Final = (
    'case "$0" in\n/*) root="${0%/*}"; root="${root%/*}" ;;\n*) root="$(cd "${0%/*}/.." && pwd)" ;;\nesac\n'
)
_ROOT_MAP: Final = 'set -- "-ffile-prefix-map=$root=/toolchain" "$@"\n'
_MAPS: Final = (
    'if [ -n "$OPENCOTI_OUT" ]; then set -- "-ffile-prefix-map=$OPENCOTI_OUT=./build" "$@"; fi\n'
    'if [ -n "$OPENCOTI_SRC" ]; then set -- "-ffile-prefix-map=$OPENCOTI_SRC=." "$@"; fi\n'
)
# CMake asks with -v what a compiler links by itself, and would then name the archives of zig's own cache
# in later link commands: a product would hold their debug variants and depend on where that cache lies.
_QUIET: Final = 'for word do\nshift\n[ "$word" = -v ] || set -- "$@" "$word"\ndone\n'
_TARGET: Final = f'-target "${{OPENCOTI_TARGET:-{DEFAULT_TARGET}}}"'
# CMake asks this program for the architecture. The image has none, and the version of the host's kernel
# is nothing that a build should know.
_UNAME: Final = '#!/bin/sh\ncase "$1" in\n-r) echo 0 ;;\n-m | -p) echo {arch} ;;\n*) echo Linux ;;\nesac\n'


def wrapper_scripts(arch: str) -> dict[str, str]:
    """Return the scripts of the folder `bin` of a zig toolchain, by name; `arch` is that of the host."""
    compilers = {
        name: f'#!/bin/sh\n{_ROOT}{_QUIET}{_ROOT_MAP}{_MAPS}exec "$root/zig/zig" {name} {_TARGET} "$@"\n'
        for name in ("cc", "c++")
    }
    archivers = {
        name: f'#!/bin/sh\n{_ROOT}exec "$root/zig/zig" {name} "$@"\n' for name in ("ar", "ranlib", "objcopy")
    }
    programs = {
        "cmake": f'#!/bin/sh\n{_ROOT}exec "$root/cmake/bin/cmake" "$@"\n',
        "ninja": f'#!/bin/sh\n{_ROOT}exec "$root/ninja/ninja" "$@"\n',
    }
    return compilers | archivers | programs | {"uname": _UNAME.format(arch=arch)}


def system_wrapper(name: str, program: str) -> str:
    """Return a script that calls a program of the machine under a name of ours."""
    maps = _MAPS if name in {"cc", "c++"} else ""
    return f'#!/bin/sh\n{maps}exec {shlex.quote(program)} "$@"\n'
