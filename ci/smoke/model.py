"""A tiny random model with a real vocabulary: enough for the server to load, tokenise and answer.

The weights are noise, so the text is too; what can be tested with it is everything but the quality of the
text. The bytes depend on the vocabulary and the seed only, on every machine and with every numpy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ci.cachefile import kept_file
from ci.paths import Layout
from ci.smoke.gguf_file import MalformedGgufError, Tensor, Value, read_metadata, write_gguf
from opencoti.errors import ConfigError, storage_error
from opencoti.files import atomic_file
from opencoti.hashing import sha256_bytes, sha256_file

GENERATOR_VERSION: Final = 1
VOCABULARY: Final = Path("models") / "ggml-vocab-qwen2.gguf"
# A Vulkan device may refuse tensors of more than 128 MiB: with this one the logits of a batch are smaller.
SMALL_VOCABULARY: Final = Path("models") / "ggml-vocab-deepseek-coder.gguf"

_ARCHITECTURE: Final = "qwen2"
# Those whose files of the pinned source have a tokenizer that a qwen2 model can have as well.
_VOCABULARIES: Final = (_ARCHITECTURE, "llama")
_F32: Final = 0  # numbers of GGML's tensor types
_Q8_0: Final = 8
_Q8_BLOCK: Final = 32  # values per Q8_0 block: a float16 scale, then 32 signed bytes
_MOSTLY_Q8_0: Final = 7  # number of the file type
_CHAT_TEMPLATE: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Dimensions of the tiny model; widths are multiples of a quantisation block."""

    layers: int = 2
    width: int = 64
    feed_forward: int = 128
    heads: int = 2
    kv_heads: int = 1
    context: int = 2048

    @property
    def kv_width(self) -> int:
        """Width of keys and values."""
        return self.width // self.heads * self.kv_heads


WIDE: Final = Shape(layers=4, width=256, feed_forward=512, heads=4, kv_heads=2, context=1 << 17)
"""Wide enough that attention over a long context costs what it costs in real models: most of the time."""


def cached_model(layout: Layout, vocab_gguf: Path, *, seed: int = 0, shape: Shape | None = None) -> Path:
    """Return the model of this vocabulary and shape from the build cache; make it when it is not there.

    Without a `shape` it is the tiny one.

    Raises:
        ConfigError: `vocabulary-missing`, `vocabulary-malformed`.
        StorageError: the cache cannot be written.
    """
    if not vocab_gguf.is_file():
        raise ConfigError(
            "vocabulary-missing",
            f"there is no vocabulary {vocab_gguf}",
            hint="unpack the pinned source first: `./noxw -s vendor`",
        )
    key = sha256_bytes(f"{sha256_file(vocab_gguf)} {GENERATOR_VERSION} {seed} {shape or Shape()}".encode())
    name = "tiny" if shape is None else f"wide{shape.width}"
    path = layout.cache / "models" / f"{name}-{_ARCHITECTURE}-{key[:16]}.gguf"
    return kept_file(path, lambda out: make_tiny_model(vocab_gguf, out, seed=seed, shape=shape))


def make_tiny_model(vocab_gguf: Path, out: Path, *, seed: int = 0, shape: Shape | None = None) -> Path:
    """Write a random model with the vocabulary of `vocab_gguf`; the same arguments give the same bytes.

    Args:
        vocab_gguf: a GGUF file of a qwen2 or llama tokenizer; tensors in it are ignored.
        out: the file to write, whole or not at all.
        seed: another seed gives other weights.
        shape: its dimensions, those of the tiny one if not given.

    Raises:
        ConfigError: `vocabulary-malformed`.
        StorageError: `out` cannot be written.
    """
    shape = shape or Shape()
    vocabulary = read_vocabulary(vocab_gguf)
    tokens = vocabulary["tokenizer.ggml.tokens"].length
    tensors = list(_tensors(shape, tokens, Noise(seed)))
    with atomic_file(out) as file:
        write_gguf(file, _metadata(shape) | vocabulary, tensors)
    return out


def read_vocabulary(path: Path) -> dict[str, Value]:
    """Return the tokenizer's keys of a GGUF file.

    Raises:
        ConfigError: `vocabulary-malformed`.
        StorageError: it cannot be read.
    """
    try:
        metadata = read_metadata(path.read_bytes())
    except OSError as exc:
        raise storage_error(exc, f"cannot read {path}") from exc
    except MalformedGgufError as exc:
        raise _malformed(path, str(exc)) from exc
    architecture = metadata.get("general.architecture", Value.string("")).text
    if architecture not in _VOCABULARIES:
        raise _malformed(path, f"its architecture is {architecture[:40]!r}, not {' or '.join(_VOCABULARIES)}")
    vocabulary = {name: value for name, value in metadata.items() if name.startswith("tokenizer.ggml.")}
    if "tokenizer.ggml.tokens" not in vocabulary or not vocabulary["tokenizer.ggml.tokens"].length:
        raise _malformed(path, "it holds no tokens")
    return vocabulary


def _malformed(path: Path, why: str) -> ConfigError:
    return ConfigError(
        "vocabulary-malformed",
        f"cannot use the vocabulary {path}",
        why=why,
        hint="unpack the pinned source again: `./noxw -s vendor`",
    )


def _metadata(shape: Shape) -> dict[str, Value]:
    own = {
        "block_count": Value.uint32(shape.layers),
        "context_length": Value.uint32(shape.context),
        "embedding_length": Value.uint32(shape.width),
        "feed_forward_length": Value.uint32(shape.feed_forward),
        "attention.head_count": Value.uint32(shape.heads),
        "attention.head_count_kv": Value.uint32(shape.kv_heads),
        "attention.layer_norm_rms_epsilon": Value.float32(1e-6),
        "rope.freq_base": Value.float32(10000.0),
    }
    return {
        "general.architecture": Value.string(_ARCHITECTURE),
        "general.name": Value.string("opencoti-tiny"),
        "general.file_type": Value.uint32(_MOSTLY_Q8_0),
        **{f"{_ARCHITECTURE}.{name}": value for name, value in own.items()},
        "tokenizer.chat_template": Value.string(_CHAT_TEMPLATE),
    }


def _tensors(shape: Shape, tokens: int, noise: Noise) -> Iterator[Tensor]:
    yield noise.matrix("token_embd.weight", tokens, shape.width, spread=0.5)
    # Input and output share one matrix, which would make each token predict itself: random signs in
    # between break that.
    yield noise.signs("output_norm.weight", shape.width)
    for layer in range(shape.layers):
        yield from _layer(shape, f"blk.{layer}", noise)


def layer_matrices(
    noise: Noise, prefix: str, *, width: int, feed_forward: int, kv_width: int
) -> Iterator[Tensor]:
    """Yield the seven matrices that a layer has in every architecture made here, named `prefix`.…"""
    for name, rows, columns in (
        ("attn_q", width, width),
        ("attn_k", kv_width, width),
        ("attn_v", kv_width, width),
        ("attn_output", width, width),
        ("ffn_gate", feed_forward, width),
        ("ffn_up", feed_forward, width),
        ("ffn_down", width, feed_forward),
    ):
        yield noise.matrix(f"{prefix}.{name}.weight", rows, columns, spread=0.3)


def _layer(shape: Shape, prefix: str, noise: Noise) -> Iterator[Tensor]:
    width, kv_width = shape.width, shape.kv_width
    yield from layer_matrices(noise, prefix, width=width, feed_forward=shape.feed_forward, kv_width=kv_width)
    for name, size in (("attn_q", width), ("attn_k", kv_width), ("attn_v", kv_width)):
        yield _vector(f"{prefix}.{name}.bias", [0.0] * size)
    for name in ("attn_norm", "ffn_norm"):
        yield _vector(f"{prefix}.{name}.weight", [1.0] * width)


def _vector(name: str, values: list[float]) -> Tensor:
    import struct

    return Tensor(name=name, shape=(len(values),), kind=_F32, data=struct.pack(f"<{len(values)}f", *values))


class Noise:
    """Random numbers from the raw stream of PCG64, the part of numpy that never changes."""

    def __init__(self, seed: int) -> None:
        import numpy as np

        self._stream = np.random.PCG64(seed)

    def _bytes(self, count: int) -> bytes:
        return self._stream.random_raw(-(-count // 8)).astype("<u8").tobytes()[:count]

    def matrix(self, name: str, rows: int, columns: int, *, spread: float) -> Tensor:
        """Return a Q8_0 matrix with values in ±`spread`."""
        import numpy as np

        blocks = rows * columns // _Q8_BLOCK
        data = np.empty((blocks, 2 + _Q8_BLOCK), dtype=np.uint8)
        data[:, :2] = np.array([spread / 128], dtype="<f2").view(np.uint8)
        data[:, 2:] = np.frombuffer(self._bytes(rows * columns), dtype=np.uint8).reshape(blocks, _Q8_BLOCK)
        return Tensor(name=name, shape=(columns, rows), kind=_Q8_0, data=data.tobytes())

    def signs(self, name: str, count: int) -> Tensor:
        """Return a vector of +1 and -1."""
        return _vector(name, [1.0 if byte & 1 else -1.0 for byte in self._bytes(count)])
