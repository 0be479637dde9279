"""What of a model's shape decides how much memory its KV cache takes. Pure: a header in, a shape out.

The rules are those of llama.cpp (`llama-hparams.cpp`, `models/*.cpp`): head sizes and the number of KV heads
may differ per layer; layers with a sliding window have head sizes of their own (Gemma 4: 256 there, 512 in
the others) and keep only a window; the last layers may use the cache of earlier ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from opencoti.errors import ConfigError
from opencoti.models.gguf import Header

MAX_LAYERS: Final = 1024
_MAX_WIDTH: Final = 1 << 24
# Families that have a sliding window and may leave out the list of which layers use it: every n-th does not.
_PATTERNS: Final = {"gemma2": 2, "gemma3": 6, "gemma3n": 5, "gpt-oss": 2, "cohere2": 4}
# Widest head that FlashAttention-2 computes.
_FLASH_ATTENTION_2_HEAD: Final = 256


@dataclass(frozen=True, kw_only=True)
class LayerShape:
    """One layer that has a cache: values per token of its keys and values, and whether it has a window."""

    key_width: int
    value_width: int
    is_windowed: bool


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """The shape of a model, as far as memory goes.

    Attributes:
        layers: those with a cache of their own.
        window: tokens that a windowed layer looks back, 0 without such layers.
        context: longest context that the model was trained for, in tokens.
        head_dim: widest head, which decides whether FlashAttention-2 can compute it.
        has_state: it also has a fixed recurrent state, which is not counted.
    """

    architecture: str
    layers: tuple[LayerShape, ...]
    window: int
    context: int
    head_dim: int
    has_state: bool = False

    @property
    def allows_flash_attention_2(self) -> bool:
        """Whether its heads are narrow enough for FlashAttention-2."""
        return self.head_dim <= _FLASH_ATTENTION_2_HEAD

    @classmethod
    def from_header(cls, header: Header, origin: str) -> ModelShape:
        """Read the shape off a header; `origin` names the file in the message.

        Raises:
            ConfigError: `model-shape-unknown`, the header lacks what is needed or contradicts itself.
        """
        try:
            return _Reader(header).shape()
        except _UnknownError as exc:
            raise ConfigError(
                "model-shape-unknown",
                f"cannot tell how much memory {origin} needs",
                why=str(exc),
                hint="is it a language model? a projector or a vocabulary has no cache",
            ) from exc


class _UnknownError(ValueError):
    """Something needed is not in the header."""


class _Reader:
    """Reads the keys of one architecture."""

    def __init__(self, header: Header) -> None:
        self._header = header
        self._architecture = header.text("general.architecture")
        if not self._architecture:
            raise _UnknownError("it names no architecture")

    def shape(self) -> ModelShape:
        count = self._needed("block_count")
        if not 0 < count <= MAX_LAYERS:
            raise _UnknownError(f"it claims {count} layers")
        windowed = self._windowed(count)
        full, narrow = self._head_dims()
        heads = self._kv_heads(count)
        own = count - min(count, self._optional("attention.shared_kv_layers", 0))
        layers = tuple(
            self._layer(heads[at], narrow if windowed[at] else full, is_windowed=windowed[at])
            for at in range(own)
            if heads[at]
        )
        return ModelShape(
            architecture=self._architecture,
            layers=layers,
            window=self._optional("attention.sliding_window", 0) if any(windowed) else 0,
            context=self._optional("context_length", 0),
            head_dim=max(full + narrow if any(windowed) else full),
            has_state=self._key("ssm.state_size") in self._header.values,
        )

    def _layer(self, heads: int, dims: tuple[int, int], *, is_windowed: bool) -> LayerShape:
        # Multi-head latent attention keeps one compressed row, and no values beside it.
        is_latent = self._key("attention.key_length_mla") in self._header.values
        return LayerShape(
            key_width=_bounded(heads * dims[0]),
            value_width=0 if is_latent else _bounded(heads * dims[1]),
            is_windowed=is_windowed,
        )

    def _head_dims(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return key and value widths of a head: of layers without, and of layers with a window."""
        heads = self._per_layer("attention.head_count")
        most = max(heads) if heads else 0
        default = self._optional("embedding_length", 0) // most if most else 0
        key = self._optional("attention.key_length", default)
        value = self._optional("attention.value_length", default)
        if not key:
            raise _UnknownError("it does not say how wide its attention heads are")
        narrow_key = self._optional("attention.key_length_swa", key)
        return (key, value), (narrow_key, self._optional("attention.value_length_swa", value))

    def _kv_heads(self, count: int) -> tuple[int, ...]:
        found = self._per_layer("attention.head_count_kv") or self._per_layer("attention.head_count")
        if not found:
            raise _UnknownError("it does not say how many attention heads it has")
        if len(found) == 1:
            return found * count
        if len(found) < count:
            raise _UnknownError(f"it has {count} layers and {len(found)} numbers of heads")
        return found

    def _windowed(self, count: int) -> tuple[bool, ...]:
        name = self._key("attention.sliding_window_pattern")
        if not self._optional("attention.sliding_window", 0):
            return (False,) * count
        if (listed := self._header.numbers(name)) is not None:
            if len(listed) < count:
                raise _UnknownError(f"it has {count} layers and {len(listed)} marks for windows")
            return tuple(bool(item) for item in listed[:count])
        every = self._header.number(name) or _PATTERNS.get(self._architecture, 1)
        return tuple(at % every < every - 1 for at in range(count))

    def _per_layer(self, name: str) -> tuple[int, ...]:
        """Return a number, or one per layer."""
        single = self._header.number(self._key(name))
        found = (single,) if single is not None else self._header.numbers(self._key(name))
        if found is None:
            return ()
        return tuple(_bounded(item) for item in found)

    def _needed(self, name: str) -> int:
        found = self._header.number(self._key(name))
        if found is None:
            raise _UnknownError(f"it has no {self._key(name)}")
        return found

    def _optional(self, name: str, default: int) -> int:
        found = self._header.number(self._key(name))
        return default if found is None else _bounded(found)

    def _key(self, name: str) -> str:
        return f"{self._architecture}.{name}"


def _bounded(number: int) -> int:
    if not 0 <= number <= _MAX_WIDTH:
        raise _UnknownError(f"it holds the number {number} where a width or count should be")
    return number
