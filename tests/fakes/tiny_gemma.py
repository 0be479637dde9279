"""A tiny random Gemma 4 with the real one's head sizes: 512, and 256 in layers with a window.

Imitates the shape only: what is measured with it is the memory that the engine takes for its cache. The
vocabulary is that of the tiny model which the smoke test uses.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass
from pathlib import Path

from ci.smoke.gguf_file import ARRAY, STRING, Tensor, Value, read_metadata, write_gguf

_F32 = 0
_F16 = 1
_BOOL = 7


@dataclass(frozen=True, kw_only=True)
class GemmaShape:
    """Dimensions; every third layer has no window."""

    layers: int = 6
    width: int = 64
    heads: int = 4
    full_kv_heads: int = 1
    windowed_kv_heads: int = 4
    full_dim: int = 512
    windowed_dim: int = 256
    window: int = 512
    context: int = 8192

    def is_windowed(self, layer: int) -> bool:
        return layer % 3 != 2


def bools(items: list[bool]) -> Value:
    return Value(kind=ARRAY, raw=struct.pack("<IQ", _BOOL, len(items)) + bytes(items))


def uint32s(items: list[int]) -> Value:
    return Value(kind=ARRAY, raw=struct.pack("<IQ", 4, len(items)) + struct.pack(f"<{len(items)}I", *items))


def texts(items: list[str]) -> Value:
    body = b"".join(Value.string(item).raw for item in items)
    return Value(kind=ARRAY, raw=struct.pack("<IQ", STRING, len(items)) + body)


def make_tiny_gemma(vocabulary: Path, out: Path, shape: GemmaShape | None = None) -> Path:
    """Write the model; `vocabulary` is a GGUF file with a tokenizer."""
    shape = shape or GemmaShape()
    tokenizer = {
        name: value
        for name, value in read_metadata(vocabulary.read_bytes()).items()
        if name.startswith("tokenizer.")
    }
    count = tokenizer["tokenizer.ggml.tokens"].length
    with open(out, "wb") as file:
        write_gguf(file, {**gemma_metadata(shape), **tokenizer}, _tensors(shape, count))
    return out


def gemma_metadata(shape: GemmaShape) -> dict[str, Value]:
    windowed = [shape.is_windowed(at) for at in range(shape.layers)]
    own = {
        "block_count": Value.uint32(shape.layers),
        "context_length": Value.uint32(shape.context),
        "embedding_length": Value.uint32(shape.width),
        "feed_forward_length": Value.uint32(64),
        "embedding_length_per_layer_input": Value.uint32(0),
        "attention.head_count": Value.uint32(shape.heads),
        "attention.head_count_kv": uint32s(
            [shape.windowed_kv_heads if item else shape.full_kv_heads for item in windowed]
        ),
        "attention.key_length": Value.uint32(shape.full_dim),
        "attention.value_length": Value.uint32(shape.full_dim),
        "attention.key_length_swa": Value.uint32(shape.windowed_dim),
        "attention.value_length_swa": Value.uint32(shape.windowed_dim),
        "attention.sliding_window": Value.uint32(shape.window),
        "attention.sliding_window_pattern": bools(windowed),
        "attention.layer_norm_rms_epsilon": Value.float32(1e-6),
        "rope.dimension_count": Value.uint32(shape.full_dim),
        "rope.dimension_count_swa": Value.uint32(shape.windowed_dim),
        "rope.freq_base": Value.float32(1e6),
        "rope.freq_base_swa": Value.float32(1e4),
    }
    return {
        "general.architecture": Value.string("gemma4"),
        "general.name": Value.string("tiny-gemma4"),
        **{f"gemma4.{name}": value for name, value in own.items()},
    }


def _tensors(shape: GemmaShape, tokens: int) -> list[Tensor]:
    dice = random.Random(4)
    result = [
        _matrix("token_embd.weight", shape.width, tokens, dice),
        _ones("output_norm.weight", shape.width),
    ]
    for layer in range(shape.layers):
        result += _layer(shape, layer, dice)
    return result


def _layer(shape: GemmaShape, layer: int, dice: random.Random) -> list[Tensor]:
    is_windowed = shape.is_windowed(layer)
    dim = shape.windowed_dim if is_windowed else shape.full_dim
    kv = dim * (shape.windowed_kv_heads if is_windowed else shape.full_kv_heads)
    prefix = f"blk.{layer}"
    result = [
        _matrix(f"{prefix}.attn_q.weight", shape.width, dim * shape.heads, dice),
        _matrix(f"{prefix}.attn_k.weight", shape.width, kv, dice),
        _matrix(f"{prefix}.attn_v.weight", shape.width, kv, dice),
        _matrix(f"{prefix}.attn_output.weight", dim * shape.heads, shape.width, dice),
        _matrix(f"{prefix}.ffn_gate.weight", shape.width, 64, dice),
        _matrix(f"{prefix}.ffn_up.weight", shape.width, 64, dice),
        _matrix(f"{prefix}.ffn_down.weight", 64, shape.width, dice),
        _ones(f"{prefix}.attn_q_norm.weight", dim),
        _ones(f"{prefix}.attn_k_norm.weight", dim),
    ]
    names = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
    result += [_ones(f"{prefix}.{name}.weight", shape.width) for name in names]
    if not is_windowed and layer == 2:
        result.append(_ones("rope_freqs.weight", dim // 2))
    return result


def _ones(name: str, count: int) -> Tensor:
    return Tensor(name=name, shape=(count,), kind=_F32, data=struct.pack(f"<{count}f", *[1.0] * count))


def _matrix(name: str, columns: int, rows: int, dice: random.Random) -> Tensor:
    # Noise out of a table of 4096 small half-precision numbers: quick, and no number is odd.
    table = b"".join(struct.pack("<e", dice.uniform(-0.1, 0.1)) for _ in range(4096))
    size = columns * rows * 2
    return Tensor(name=name, shape=(columns, rows), kind=_F16, data=(table * (size // len(table) + 1))[:size])
