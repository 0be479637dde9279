"""What this machine can compute with: GPUs and their memory, and the memory of the machine. Reads only.

NVIDIA through NVML, AMD through sysfs, everything else through the Vulkan loader (in a process of its own,
since drivers crash). A library that is not there is a note and never an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final, Literal

Vendor = Literal["nvidia", "amd", "intel", "apple", "other"]


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU.

    Attributes:
        free_bytes: None where the driver does not tell.
        architecture: compute capability (`9.0`) or `gfx1100`, empty where unknown.
        driver: its version, empty where unknown.
        seen_by: what told about it.
        is_integrated: it has no memory of its own.
    """

    vendor: Vendor
    name: str
    total_bytes: int
    free_bytes: int | None
    architecture: str
    driver: str
    seen_by: Literal["nvml", "sysfs", "vulkan"]
    is_integrated: bool = False


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Memory of the machine, in bytes; 0 where the system does not tell."""

    total_bytes: int
    available_bytes: int


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """What was found. `notes` say what could not be asked, and why."""

    gpus: tuple[Gpu, ...]
    memory: Memory
    notes: tuple[str, ...]

    @property
    def usable_gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that one engine can use together: those of the vendor with the most memory."""
        own = [gpu for gpu in self.gpus if not gpu.is_integrated and gpu.total_bytes]
        totals = {gpu.vendor: sum(x.total_bytes for x in own if x.vendor == gpu.vendor) for gpu in own}
        best = max(totals, key=lambda vendor: totals[vendor], default=None)
        return tuple(gpu for gpu in own if gpu.vendor == best)

    @property
    def vram_bytes(self) -> int:
        """Memory of those GPUs together."""
        return sum(gpu.total_bytes for gpu in self.usable_gpus)

    @property
    def free_vram_bytes(self) -> int | None:
        """What of it is free, None where a driver does not tell."""
        found = [gpu.free_bytes for gpu in self.usable_gpus]
        known = [item for item in found if item is not None]
        return sum(known) if found and len(known) == len(found) else None

    def as_dict(self) -> dict[str, object]:
        """Return it as data."""
        return {**asdict(self), "vram_bytes": self.vram_bytes}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What one way of asking brought."""

    gpus: tuple[Gpu, ...] = ()
    notes: tuple[str, ...] = ()


Ask = Callable[[], Answer]
_MEMINFO: Final = "/proc/meminfo"


def detect(asks: tuple[Ask, ...] | None = None) -> Hardware:
    """Ask every way there is; what two of them see is listed once."""
    answers = [ask() for ask in (_ways() if asks is None else asks)]
    found: list[Gpu] = []
    for answer in answers:
        known = {gpu.vendor for gpu in found}
        found += [gpu for gpu in answer.gpus if gpu.vendor not in known]
    notes = tuple(note for answer in answers for note in answer.notes)
    return Hardware(gpus=tuple(found), memory=machine_memory(), notes=notes)


def _ways() -> tuple[Ask, ...]:
    from opencoti.hardware.amd import ask_sysfs
    from opencoti.hardware.nvidia import ask_nvml
    from opencoti.hardware.vulkan import ask_vulkan

    return ask_nvml, ask_sysfs, ask_vulkan


def machine_memory(meminfo: str = _MEMINFO) -> Memory:
    """Return the memory of this machine."""
    try:
        with open(meminfo, encoding="ascii", errors="replace") as file:
            fields = dict(line.split(":", 1) for line in file if ":" in line)
        return Memory(total_bytes=_kib(fields["MemTotal"]), available_bytes=_kib(fields["MemAvailable"]))
    except (OSError, KeyError, ValueError):
        return _memory_by_sysconf()


def _memory_by_sysconf() -> Memory:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        total = 0
    return Memory(total_bytes=max(0, total), available_bytes=max(0, total))


def _kib(text: str) -> int:
    """Parse `  24612345 kB`."""
    return int(text.split()[0]) * 1024
