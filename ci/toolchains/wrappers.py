"""The compiler wrappers of a toolchain: small `sh` scripts that CMake takes for cc, c++, ar and ranlib.

A stage chooses the target with `OPENCOTI_TARGET`, and with `OPENCOTI_LAUNCHER` a program that starts the
compilers (none when unset). The wrappers find everything from their own place, so a toolchain can lie
anywhere, and they map the three folders of a build to fixed names (source `.`, build folder `./build`,
toolchain `/toolchain`), so that `__FILE__` and the like say the same on every machine.
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
# Zig takes no `-march=armv8.2-a+fp16`, the spelling of gcc and clang for ARM: it wants the same as a
# processor with features, `-mcpu=generic+v8_2a+fullfp16`, and calls one of the features by another name.
_ARM_CPU: Final = """arm_cpu() {
IFS=+
set -- ${1#-march=armv}
unset IFS
cpu="${1%%-*}"
case "$cpu" in
*.*) cpu="generic+v${cpu%%.*}_${cpu#*.}a" ;;
*) cpu="generic+v${cpu}a" ;;
esac
shift
for feature do
case "$feature" in
fp16) cpu="$cpu+fullfp16" ;;
nofp16) cpu="$cpu-fullfp16" ;;
no*) cpu="$cpu-${feature#no}" ;;
*) cpu="$cpu+$feature" ;;
esac
done
}
"""
# CMake asks with -v what a compiler links by itself, and would then name the archives of zig's own cache
# in later link commands: a product would hold their debug variants and depend on where that cache lies.
_TRANSLATE: Final = """for word do
shift
case "$word" in
-v) ;;
-march=armv*) arm_cpu "$word"; set -- "$@" "-mcpu=$cpu" ;;
*) set -- "$@" "$word" ;;
esac
done
"""
# A program that starts the compiler, such as ccache; it may come with words of its own, so it is not quoted.
_LAUNCHER: Final = '$OPENCOTI_LAUNCHER "$root/zig/zig"'
_TARGET: Final = f'-target "${{OPENCOTI_TARGET:-{DEFAULT_TARGET}}}"'
# CMake asks this program for the architecture, and means the one that it builds for. The image has none, and
# neither the host's own nor the version of its kernel is anything that a build should know.
_UNAME: Final = f"""#!/bin/sh
case "$1" in
-r) echo 0 ;;
-m | -p) target="${{OPENCOTI_TARGET:-{DEFAULT_TARGET}}}"; echo "${{target%%-*}}" ;;
*) echo Linux ;;
esac
"""


def wrapper_scripts() -> dict[str, str]:
    """Return the scripts of the folder `bin` of a zig toolchain, by name; the same on every machine."""
    call = f"{_ARM_CPU}{_ROOT}{_TRANSLATE}{_ROOT_MAP}{_MAPS}exec {_LAUNCHER}"
    compilers = {name: f'#!/bin/sh\n{call} {name} {_TARGET} "$@"\n' for name in ("cc", "c++")}
    archivers = {
        name: f'#!/bin/sh\n{_ROOT}exec "$root/zig/zig" {name} "$@"\n' for name in ("ar", "ranlib", "objcopy")
    }
    programs = {
        "cmake": f'#!/bin/sh\n{_ROOT}exec "$root/cmake/bin/cmake" "$@"\n',
        "ninja": f'#!/bin/sh\n{_ROOT}exec "$root/ninja/ninja" "$@"\n',
    }
    return compilers | archivers | programs | {"uname": _UNAME}


def system_wrapper(name: str, *program: str) -> str:
    """Return a script that calls a program of the machine, with words of its own, under a name of ours."""
    is_compiler = name in {"cc", "c++", "hip-clang"}
    start = f"{_MAPS}exec $OPENCOTI_LAUNCHER" if is_compiler else "exec"
    return f'#!/bin/sh\n{start} {shlex.join(program)} "$@"\n'
