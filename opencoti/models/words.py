"""Words and defaults that command lines need before anything else is loaded."""

from __future__ import annotations

import math
from typing import Final

from opencoti.errors import UsageError

DEFAULT_CONTEXT: Final = 8192
CACHE_TYPES: Final = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
_GIB: Final = 1 << 30
_MAX_VRAM_GIB: Final = 1 << 20


def vram_bytes(gib: float) -> int:
    """Return the bytes of a `--vram`. Raises `UsageError` (`bad-vram`) for what no machine has."""
    if not math.isfinite(gib) or not 0 <= gib <= _MAX_VRAM_GIB:
        raise UsageError(
            "bad-vram",
            f"--vram {gib:g} is not usable",
            why=f"expected GiB, from 0 (no GPU) to {_MAX_VRAM_GIB}",
        )
    return int(gib * _GIB)
