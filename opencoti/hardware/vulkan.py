"""GPUs as the Vulkan loader sees them, asked in a process of its own: drivers crash and hang."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

from opencoti.hardware import Answer, Gpu, Vendor
from opencoti.hardware.vulkan_probe import NO_LIBRARY, REFUSED

_TIMEOUT_S: Final = 20.0
_MAX_GPUS: Final = 64
_VENDORS: Final[dict[int, Vendor]] = {0x10DE: "nvidia", 0x1002: "amd", 0x8086: "intel", 0x106B: "apple"}
_KINDS_WITHOUT_MEMORY: Final = (1, 3)  # integrated, virtual


def ask_vulkan(argv: tuple[str, ...] | None = None) -> Answer:
    """Return the GPUs that Vulkan sees; a note where there is no loader, or where it fails."""
    argv = argv or (sys.executable, "-I", str(Path(__file__).with_name("vulkan_probe.py")))
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Answer(notes=(f"Vulkan: its driver did not answer within {_TIMEOUT_S:.0f} s",))
    except OSError as exc:
        return Answer(notes=(f"Vulkan: cannot ask ({exc.strerror})",))
    return _answer(done.returncode, done.stdout)


def _answer(code: int, output: bytes) -> Answer:
    if code == NO_LIBRARY:
        return Answer(notes=("Vulkan: no loader (libvulkan.so.1) on this machine",))
    if code == REFUSED:
        return Answer(notes=("Vulkan: the loader finds no driver",))
    if code != 0:
        return Answer(notes=(f"Vulkan: its driver crashed when it was asked (code {code})",))
    try:
        gpus = tuple(_parse(line) for line in output.splitlines()[:_MAX_GPUS])
    except (ValueError, KeyError, TypeError):
        return Answer(notes=("Vulkan: its answer makes no sense",))
    return Answer(gpus=gpus, notes=() if gpus else ("Vulkan: no GPU",))


def _parse(line: bytes) -> Gpu:
    told = json.loads(line)
    return Gpu(
        vendor=_VENDORS.get(told["vendor"], "other"),
        name=str(told["name"])[:200],
        total_bytes=int(told["bytes"]),
        free_bytes=None,
        architecture="",
        driver="",
        seen_by="vulkan",
        is_integrated=told["kind"] in _KINDS_WITHOUT_MEMORY,
    )
