"""How much memory a KV cache takes: the arithmetic of llama.cpp's caches, without llama.cpp. Pure.

Layers without a window keep every token of the context, layers with one keep the window of each slot and
one batch, rounded up to 256 cells. Without flash attention values are kept turned over, which makes every
layer as wide as the widest one (`llama-kv-cache.cpp`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from opencoti.errors import UsageError
from opencoti.models.shape import LayerShape, ModelShape

FlashAttention = Literal["auto", "on", "off"]
# Values per block and bytes per block, of each type that the engine's --cache-type-k and -v take.
TYPES: Final = {
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "q8_0": (32, 34),
    "q4_0": (32, 18),
    "q4_1": (32, 20),
    "iq4_nl": (32, 18),
    "q5_0": (32, 22),
    "q5_1": (32, 24),
}
_CELL_ROUNDING: Final = 256
MAX_CONTEXT: Final = 1 << 24


@dataclass(frozen=True, kw_only=True)
class CacheWish:
    """How the cache is to be laid out.

    Attributes:
        context: tokens of all conversations together.
        key_type, value_type: how numbers are stored, a word of `TYPES`.
        slots: conversations at once.
        is_shared: all slots share the cells (the engine's own choice); otherwise each has its part.
        flash_attention: `auto` leaves it to the engine. It is counted as `off` where FlashAttention-2 cannot
            compute the model, since that takes at least as much.
        batch: tokens that are computed at once (the engine's --ubatch-size).
    """

    context: int
    key_type: str = "f16"
    value_type: str = "f16"
    slots: int = 1
    is_shared: bool = True
    flash_attention: FlashAttention = "auto"
    batch: int = 512

    def require_valid(self) -> None:
        """Raise `UsageError` (`bad-cache-wish`) for what no engine takes."""
        for word in (self.key_type, self.value_type):
            if word not in TYPES:
                raise _bad(f"cache type {word[:40]!r}", f"one of {', '.join(TYPES)}")
        if not 1 <= self.context <= MAX_CONTEXT:
            raise _bad(f"context {self.context}", f"1 to {MAX_CONTEXT} tokens")
        if not 1 <= self.slots <= 256:
            raise _bad(f"slots {self.slots}", "1 to 256")
        if not 1 <= self.batch <= 1 << 16:
            raise _bad(f"batch {self.batch}", "1 to 65536 tokens")


@dataclass(frozen=True, kw_only=True)
class CacheSize:
    """Bytes of a cache, by the kind of layer, and how many cells (tokens) each kind has."""

    full_bytes: int
    windowed_bytes: int
    full_cells: int
    windowed_cells: int

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.full_bytes + self.windowed_bytes


def cache_size(shape: ModelShape, wish: CacheWish) -> CacheSize:
    """Return what the cache of a model takes.

    Raises:
        UsageError: `bad-cache-wish`; `cache-needs-flash-attention`, see `require_computable`.
    """
    wish.require_valid()
    require_computable(shape, wish)
    streams = 1 if wish.is_shared else wish.slots
    cells = _rounded(-(-wish.context // streams))
    window = shape.window * (wish.slots if wish.is_shared else 1) + wish.batch
    windowed_cells = _rounded(min(cells, window))
    widest = 0 if uses_flash_attention(shape, wish) else max((x.value_width for x in shape.layers), default=0)
    per_cell = {False: 0, True: 0}
    for layer in shape.layers:
        per_cell[layer.is_windowed] += _bytes_per_cell(layer, wish, widest)
    return CacheSize(
        full_bytes=per_cell[False] * cells * streams,
        windowed_bytes=per_cell[True] * windowed_cells * streams,
        full_cells=cells * streams,
        windowed_cells=windowed_cells * streams if per_cell[True] else 0,
    )


def uses_flash_attention(shape: ModelShape, wish: CacheWish) -> bool:
    """Tell whether the cache may be counted as one for flash attention."""
    if wish.flash_attention == "auto":
        return shape.allows_flash_attention_2
    return wish.flash_attention == "on"


def require_computable(shape: ModelShape, wish: CacheWish) -> None:
    """Check that a quantised value cache does not force flash attention on a model that it is not for.

    Raises:
        UsageError: `cache-needs-flash-attention`. The engine switches flash attention on by itself for such a
            cache; where a head has 512 values there may be no kernel, and it computes slowly or not at all.
    """
    if TYPES[wish.value_type][0] == 1 or uses_flash_attention(shape, wish):
        return
    raise UsageError(
        "cache-needs-flash-attention",
        f"the value cache cannot be {wish.value_type}",
        why=f"that needs flash attention, and the heads of this model have {shape.head_dim} values"
        if not shape.allows_flash_attention_2
        else "that needs flash attention, which is switched off",
        hint="keep f16 values (the keys may be quantised), or insist with --flash-attention on",
    )


def _bytes_per_cell(layer: LayerShape, wish: CacheWish, widest: int) -> int:
    values = max(layer.value_width, widest) if layer.value_width else 0
    return _row_bytes(layer.key_width, wish.key_type) + _row_bytes(values, wish.value_type)


def _row_bytes(width: int, word: str) -> int:
    per_block, block_bytes = TYPES[word]
    if width % per_block:
        raise _bad(f"cache type {word}", f"one that fits rows of {width} values")
    return width // per_block * block_bytes


def _rounded(cells: int) -> int:
    return -(-cells // _CELL_ROUNDING) * _CELL_ROUNDING


def _bad(given: str, expected: str) -> UsageError:
    return UsageError("bad-cache-wish", f"{given} is not usable", why=f"expected {expected}")
