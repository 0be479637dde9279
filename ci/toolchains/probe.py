"""Proving that a toolchain compiles for what the table declares: a kernel of ours per target, read back.

Pure: builds the command lines that run in the folder of the tools, and reads what they print.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from ci.dso.cuobjdump import parse_cuobjdump_listing
from ci.toolchains.table import Backend

_GFX: Final = re.compile(r"hipv?4?-amdgcn-amd-amdhsa--(gfx[0-9a-f]+)")
_SUPPORTED: Final = "supports "
_OUTPUT: Final = "/tmp/probe"  # noqa: S108 - inside a container of its own


def probe_command(backend: Backend, arch: str) -> str:
    """Return the command line that compiles the probe of a backend and prints what it holds.

    Args:
        backend: a GPU backend of the table.
        arch: architecture of the host that the toolchain is for.
    """
    source = f"../probe/{backend.probe}"
    targets = backend.targets_for(arch)
    if backend.kind == "cuda":
        codes = " ".join(word for target in targets for word in nvcc_words(target))
        return f"./nvcc {codes} -shared -Xcompiler -fPIC -o {_OUTPUT}.so {source} && ./cuobjdump {_OUTPUT}.so"
    if backend.kind == "hip":
        codes = " ".join(f"--offload-arch={target}" for target in targets)
        return (
            f"./hip-clang -x hip {codes} --offload-device-only --gpu-bundle-output -O1 "
            f"-o {_OUTPUT}.hipfb {source} && ./offload-bundler --list --type=o --input={_OUTPUT}.hipfb"
        )
    lines = " ".join(
        f"if ./glslc -fshader-stage=compute --target-env=vulkan1.3 -o {_OUTPUT}.spv "
        f"../probe/{name}.comp; then echo '{_SUPPORTED}{name}'; fi;"
        for name in (backend.probe, *backend.features, *backend.absent_features)
    )
    return f"{lines} true"


def measured_targets(backend: Backend, lines: Sequence[str]) -> tuple[str, ...]:
    """Read what the command of `probe_command` printed: targets in the table's own words, sorted.

    Raises:
        ConfigError: `cuobjdump-unreadable`.
    """
    text = "\n".join(lines)
    if backend.kind == "cuda":
        found = parse_cuobjdump_listing(text)
        return tuple(sorted(f"{name}+ptx" if name in found.ptx else name for name in found.sass))
    if backend.kind == "hip":
        return tuple(sorted(set(_GFX.findall(text))))
    return tuple(sorted(line.removeprefix(_SUPPORTED) for line in lines if line.startswith(_SUPPORTED)))


def nvcc_words(target: str) -> tuple[str, ...]:
    """Return nvcc's words for a target of the table: machine code, and with `+ptx` the PTX beside it."""
    number = target.removesuffix("+ptx")
    code = f"[sm_{number},compute_{number}]" if target.endswith("+ptx") else f"sm_{number}"
    return ("-gencode", f"'arch=compute_{number},code={code}'")
