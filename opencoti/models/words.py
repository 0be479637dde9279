"""Words and defaults that command lines need before anything else is loaded."""

from __future__ import annotations

from typing import Final

DEFAULT_CONTEXT: Final = 8192
CACHE_TYPES: Final = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
