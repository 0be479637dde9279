"""What the machine of a test is: processor, kernel, C library."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Final

from opencoti.evidence import Device

# Those that decide which variant of the CPU backend fits.
_FEATURES: Final = (
    *("sse4_2", "avx", "f16c", "fma", "bmi2", "avx2", "avx_vnni"),
    *("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vbmi", "avx512_vnni", "avx512_bf16"),
    *("amx_tile", "amx_int8"),
    *("asimd", "asimddp", "i8mm", "sve", "sve2", "fphp"),
)


def this_device() -> Device:
    """Describe this machine."""
    fields = _cpuinfo()
    flags = set(fields.get("flags", fields.get("Features", "")).split())
    return Device(
        cpu_model=fields.get("model name") or fields.get("CPU part") or platform.machine() or "unknown",
        cpu_features=tuple(name for name in _FEATURES if name in flags),
        kernel=f"{platform.system()} {platform.release()} {platform.machine()}",
        glibc=_glibc(),
    )


def _cpuinfo() -> dict[str, str]:
    """Return the fields of the first processor in /proc/cpuinfo."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return {}
    first = text.split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _glibc() -> str | None:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION")
    except (ValueError, OSError, AttributeError):
        return None
