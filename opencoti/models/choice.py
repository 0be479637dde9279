"""Which quant for which card: facts in, a recommendation and its reasons out. Pure.

Of the quants that are for cards of this size, the best one that fits whole (weights, cache and the engine's
working memory) is taken; of equally good ones the one for the bigger card, then the plain one. Quality has a
floor: where the table's default is meant for the card but does not fit beside such a context, it is taken all
the same, and a part of it stays in the machine's memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, Literal

from opencoti.errors import MissingError
from opencoti.models.kvcache import CacheWish, cache_size
from opencoti.models.shape import ModelShape
from opencoti.models.table import Quant, QuantTable
from opencoti.models.words import DEFAULT_CONTEXT

_GIB: Final = 1 << 30
# A card of 12 GB reports a little less than 12 GiB.
_CARD_TOLERANCE: Final = 1.05
# Share of a machine's memory that a model may take.
_RAM_SHARE: Final = 0.8
Where = Literal["gpu", "gpu-and-memory", "memory"]


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What the user wants.

    Attributes:
        quant: this one, whatever is recommended.
        families: which families may be recommended.
        free_bytes: what of the card is free, where it is known.
        ram_bytes: memory of the machine, where it is known.
    """

    cache: CacheWish = field(default_factory=lambda: CacheWish(context=DEFAULT_CONTEXT))
    quant: str = ""
    families: tuple[str, ...] = ("plain", "cd")
    free_bytes: int | None = None
    ram_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One quant, what it needs in bytes, and why it is taken or not. `spill_bytes` do not fit the card."""

    quant: Quant
    cache_bytes: int
    needed_bytes: int
    spill_bytes: int
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """What to run, where, how, and why.

    `largest_context` is how many tokens fit the card with this quant, 0 if none do.
    """

    taken: Candidate
    where: Where
    cache: CacheWish
    flash_attention: str
    reason: str
    largest_context: int
    warnings: tuple[str, ...]
    candidates: tuple[Candidate, ...]

    def engine_arguments(self) -> tuple[str, ...]:
        """Return the engine's words for it. Flash attention is never forced where a model is not for it."""
        return cache_arguments(self.cache)

    def as_dict(self) -> dict[str, object]:
        """Return it as data, the form that `--json` prints."""
        return {
            "quant": self.taken.quant.name,
            "url": self.taken.quant.url,
            "sha256": self.taken.quant.sha256,
            "size_bytes": self.taken.quant.size_bytes,
            "where": self.where,
            "context": self.cache.context,
            "largest_context": self.largest_context,
            "cache_bytes": self.taken.cache_bytes,
            "needed_bytes": self.taken.needed_bytes,
            "spill_bytes": self.taken.spill_bytes,
            "flash_attention": self.flash_attention,
            "engine_arguments": list(self.engine_arguments()),
            "reason": self.reason,
            "warnings": list(self.warnings),
            "candidates": [
                {"quant": c.quant.name, "needed_bytes": c.needed_bytes, "reason": c.reason}
                for c in self.candidates
            ],
        }


def cache_arguments(cache: CacheWish) -> tuple[str, ...]:
    """Return the engine's words for a cache as it was counted; what the engine does anyway is left out."""
    words = ["--ctx-size", str(cache.context), "--parallel", str(cache.slots)]
    if cache.slots > 1:
        words.append("--kv-unified" if cache.is_shared else "--no-kv-unified")
    if cache.flash_attention != "auto":
        words += ["--flash-attn", cache.flash_attention]
    if cache.key_type != "f16":
        words += ["--cache-type-k", cache.key_type]
    if cache.value_type != "f16":
        words += ["--cache-type-v", cache.value_type]
    return tuple(words)


def recommend(
    table: QuantTable, vram_bytes: int, wish: Wish | None = None, *, shape: ModelShape | None = None
) -> Recommendation:
    """Recommend a quant.

    Args:
        table: the quants.
        vram_bytes: memory of the GPU, or of all that work together; 0 without one.
        wish: what the user wants.
        shape: the model's shape from its own header; the table's without one.

    Raises:
        MissingError: `model-does-not-fit`, not even the smallest one does.
        UsageError: `quant-unknown`, `bad-cache-wish`, `cache-needs-flash-attention`.
    """
    return _Chooser(table, vram_bytes, wish or Wish(), shape or table.shape.as_shape()).choose()


class _Chooser:
    """The steps of one recommendation."""

    def __init__(self, table: QuantTable, vram_bytes: int, wish: Wish, shape: ModelShape) -> None:
        self._table = table
        self._wish = wish
        self._shape = shape
        self._card = vram_bytes
        free = vram_bytes if wish.free_bytes is None else min(vram_bytes, wish.free_bytes)
        ram = None if wish.ram_bytes is None else int(wish.ram_bytes * _RAM_SHARE)
        self._ram = ram
        self._room = free
        self._cache = cache_size(shape, wish.cache).total_bytes

    def choose(self) -> Recommendation:
        candidates = [self._candidate(quant) for quant in self._table.quants]
        if self._wish.quant:
            wanted = self._candidate(self._table.named(self._wish.quant))
            return self._result(wanted, "you asked for it", candidates)
        usable = [item for item in candidates if self._is_usable(item)]
        if not usable:
            raise self._nothing_fits(candidates)
        if not self._card:
            taken, reason = self._for_memory(usable)
        else:
            taken, reason = self._for_card(usable)
        return self._result(taken, reason, candidates)

    def _candidate(self, quant: Quant) -> Candidate:
        needed = quant.size_bytes + self._cache + self._table.working_bytes
        return Candidate(
            quant=quant,
            cache_bytes=self._cache,
            needed_bytes=needed,
            spill_bytes=max(0, needed - self._room),
        )

    def _is_usable(self, item: Candidate) -> bool:
        if item.quant.is_reference or item.quant.family not in self._wish.families:
            return False
        return self._ram is None or item.spill_bytes <= self._ram

    def _is_for_card(self, quant: Quant) -> bool:
        return quant.card_gb * _GIB <= self._card * _CARD_TOLERANCE

    def _for_card(self, usable: list[Candidate]) -> tuple[Candidate, str]:
        smallest = min(usable, key=lambda item: item.quant.size_bytes)
        meant = [item for item in usable if self._is_for_card(item.quant)] or [smallest]
        default = [item for item in meant if item.quant.name == self._table.default_quant.name]
        floor = default[0] if default else min(meant, key=lambda item: item.quant.size_bytes)
        fitting = [item for item in meant if not item.spill_bytes]
        best = max(fitting, key=_rank, default=None)
        if best is not None and _score(best.quant) >= _score(floor.quant):
            return best, f"the best that fits {_gib(self._room)} with a context of {self._context}"
        return floor, (
            f"the least that is worth running on a card of {_gib(self._card)}; "
            f"{_gib(floor.spill_bytes)} of it stay in the machine's memory"
        )

    def _for_memory(self, usable: list[Candidate]) -> tuple[Candidate, str]:
        for item in usable:
            if item.quant.name == self._table.default_quant.name:
                return item, "no GPU: the default, which computes in the machine's memory"
        return max(usable, key=_rank), "no GPU: the best that fits the machine's memory"

    @property
    def _context(self) -> int:
        return self._wish.cache.context

    def _result(self, taken: Candidate, reason: str, candidates: list[Candidate]) -> Recommendation:
        where: Where = "memory" if not self._card else ("gpu-and-memory" if taken.spill_bytes else "gpu")
        told = tuple(replace(item, reason=self._verdict(item, taken)) for item in candidates)
        return Recommendation(
            taken=replace(taken, reason=reason),
            where=where,
            cache=self._wish.cache,
            flash_attention=self._wish.cache.flash_attention,
            reason=f"{taken.quant.name} ({taken.quant.note}): {reason}",
            largest_context=self._largest_context(taken.quant),
            warnings=self._warnings(taken),
            candidates=told,
        )

    def _verdict(self, item: Candidate, taken: Candidate) -> str:
        quant = item.quant
        if quant.name == taken.quant.name:
            return "taken"
        if quant.is_reference:
            return "for reference only"
        if quant.family not in self._wish.families:
            return f"family {quant.family} is not wanted"
        if self._card and not self._is_for_card(quant):
            return f"meant for cards of {quant.card_gb} GB"
        if too_big := self._excess_bytes(item):
            return f"{_gib(too_big)} too big"
        if _score(quant) < _score(taken.quant):
            return f"it fits, but scores {_score(quant):.2f} %"
        return f"it fits, but {taken.quant.name} is preferred"

    def _excess_bytes(self, item: Candidate) -> int:
        """Return what of a quant does not fit: the card, or the machine's memory where there is no card."""
        if self._card:
            return item.spill_bytes
        return 0 if self._ram is None else max(0, item.needed_bytes - self._ram)

    def _largest_context(self, quant: Quant) -> int:
        room = self._room if self._card else (self._ram or 0)
        left = room - quant.size_bytes - self._table.working_bytes
        low, high = 0, self._shape.context // 256
        while low < high:
            middle = (low + high + 1) // 2
            wish = replace(self._wish.cache, context=middle * 256)
            if cache_size(self._shape, wish).total_bytes <= left:
                low = middle
            else:
                high = middle - 1
        return low * 256

    def _warnings(self, taken: Candidate) -> tuple[str, ...]:
        found = []
        if self._shape.context and self._context > self._shape.context:
            found.append(f"the model was trained for {self._shape.context} tokens at most")
        if taken.spill_bytes and self._card:
            found.append(f"{_gib(taken.spill_bytes)} do not fit the card and will be slower")
        if not self._shape.allows_flash_attention_2 and self._wish.cache.flash_attention == "on":
            found.append(
                f"the heads of this model have {self._shape.head_dim} values, which FlashAttention-2 does "
                "not support; the engine may fall back to slow code"
            )
        return tuple(found)

    def _nothing_fits(self, candidates: list[Candidate]) -> MissingError:
        least = min(candidates, key=lambda item: item.needed_bytes)
        here = f"{_gib(self._room)} on the GPU and {_gib(self._ram or 0)} of memory"
        return MissingError(
            "model-does-not-fit",
            f"no quant of {self._table.model} fits this machine",
            why=f"{least.quant.name} needs {_gib(least.needed_bytes)}; there are {here}",
            hint="ask for a shorter --context, or take a smaller model with --model FILE",
        )


def _rank(item: Candidate) -> tuple[float, int, bool, int]:
    quant = item.quant
    return _score(quant), quant.card_gb, quant.family == "plain", -quant.size_bytes


def _score(quant: Quant) -> float:
    return quant.humaneval_plus or 0.0


def _gib(count: int) -> str:
    return f"{count / _GIB:.1f} GiB"
