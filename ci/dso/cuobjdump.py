"""What NVIDIA's `cuobjdump` prints about a file, as targets: the second opinion on `ci.dso.fatbin`. Pure."""

from __future__ import annotations

import re
from typing import Final

from ci.dso.fatbin import CudaTargets, sorted_archs
from opencoti.errors import ConfigError

# `ELF file    1: k.1.sm_90a.cubin`, `PTX file    1: k.1.sm_90a.ptx`
_LISTED: Final = re.compile(r"(ELF|PTX) file +[0-9]+: .*\bsm_([0-9]+[af]?)\.(?:cubin|ptx)")
# `Fatbin elf code:`, a ruler, `arch = sm_90a`; indented below `Fatbin concatenated entry code:`
_TITLE: Final = re.compile(r"Fatbin ([a-z ]+) code:")
_ARCH: Final = re.compile(r"arch = (?:sm|compute)_([0-9]+[af]?)")
_NOTHING: Final = "cuobjdump info"
_KINDS: Final = {"ELF": "sass", "elf": "sass", "PTX": "ptx", "ptx": "ptx", "nvvm": "lto"}


def parse_cuobjdump_listing(text: str) -> CudaTargets:
    """Read the output of `cuobjdump FILE`, or of `cuobjdump --list-elf --list-ptx FILE`.

    Prefer the former: the file names of the latter leave out the `f` of machine code (`sm_120f` is listed as
    `sm_120`), and code for a device linker.

    Raises:
        ConfigError: `cuobjdump-unreadable`; it is neither.
    """
    found: dict[str, set[str]] = {"sass": set(), "ptx": set(), "other": set()}
    kind = ""
    is_known = not text.strip()
    for line in (line.strip() for line in text.splitlines()):
        if match := _TITLE.fullmatch(line):
            kind = _KINDS.get(match[1], match[1])
        elif match := _LISTED.fullmatch(line):
            found[_KINDS[match[1]]].add(match[2])
            is_known = True
        elif match := _ARCH.fullmatch(line):
            _add(found, kind, match[1])
            is_known = True
        elif line.startswith(_NOTHING):
            is_known = True
    if not is_known:
        raise ConfigError(
            "cuobjdump-unreadable",
            "cuobjdump printed something unknown",
            why=text.strip().splitlines()[0][:200],
            hint="run it by hand; another version than the pinned one may print another form",
        )
    return CudaTargets(
        sass=sorted_archs(found["sass"]), ptx=sorted_archs(found["ptx"]), other=tuple(sorted(found["other"]))
    )


def _add(found: dict[str, set[str]], kind: str, arch: str) -> None:
    if kind in ("sass", "ptx"):
        found[kind].add(arch)
    else:
        found["other"].add(f"{kind}_{arch}")
