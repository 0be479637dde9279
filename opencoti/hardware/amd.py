"""AMD GPUs, from what the kernel's driver says in sysfs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from opencoti.hardware import Answer, Gpu

_AMD: Final = "0x1002"
_MAX_TEXT_BYTES: Final = 4096


def ask_sysfs(root: Path = Path("/sys")) -> Answer:
    """Return the AMD GPUs below `root`."""
    architectures = _architectures(root)
    cards = sorted((root / "class" / "drm").glob("card[0-9]*"))
    # `card0-HDMI-A-1` is an output of card0.
    devices = [card / "device" for card in cards if card.name[4:].isdigit()]
    found = tuple(_gpu(device, architectures, root) for device in devices if _text(device / "vendor") == _AMD)
    return Answer(gpus=found, notes=() if found else ("AMD: the kernel shows no GPU of this kind",))


def _gpu(device: Path, architectures: Mapping[int, str], root: Path) -> Gpu:
    total, used = _number(device / "mem_info_vram_total"), _number(device / "mem_info_vram_used")
    shared = _number(device / "mem_info_gtt_total")
    minor = _render_minor(device)
    return Gpu(
        vendor="amd",
        name=_text(device / "product_name") or f"AMD {_text(device / 'device')}",
        total_bytes=total,
        free_bytes=total - used if total else None,
        architecture=architectures.get(minor, ""),
        driver=_text(root / "module" / "amdgpu" / "version"),
        seen_by="sysfs",
        # An APU has a small part of the machine's memory set aside, and borrows the rest.
        is_integrated=total < 4 << 30 and shared > total,
    )


def _render_minor(device: Path) -> int:
    """Return the number in `drm/renderD128`, 0 without one."""
    for path in sorted((device / "drm").glob("renderD*")):
        digits = path.name.removeprefix("renderD")
        if digits.isdigit():
            return int(digits)
    return 0


def _architectures(root: Path) -> Mapping[int, str]:
    """Return render minor to `gfx1100`, from lines like `gfx_target_version 110000`."""
    found = {}
    for path in sorted((root / "class" / "kfd" / "kfd" / "topology" / "nodes").glob("*/properties")):
        lines = (line.split() for line in _text(path).splitlines())
        fields = {words[0]: words[1] for words in lines if len(words) == 2}
        version, minor = fields.get("gfx_target_version", "0"), fields.get("drm_render_minor", "")
        if version.isdigit() and int(version) and minor.isdigit():
            found[int(minor)] = _gfx(int(version))
    return found


def _gfx(version: int) -> str:
    """Render 90402 as `gfx942`: the minor number and the stepping are hexadecimal digits."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _number(path: Path) -> int:
    text = _text(path)
    return int(text) if text.isdigit() else 0


def _text(path: Path) -> str:
    with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return file.read(_MAX_TEXT_BYTES).strip()
    return ""
