"""Random models for tests of the engine: a long context, one with a sliding window, and a LoRA adapter."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from ci.paths import Layout
from ci.smoke.gguf_file import ARRAY, UINT32, Tensor, Value, write_gguf
from ci.smoke.model import SMALL_VOCABULARY, Noise, Shape, layer_matrices, make_tiny_model, read_vocabulary

LONG_CONTEXT: Final = 65536
SLIDING_WINDOW: Final = 512

# 1 KiB of keys and values per token, so that a MiB is 1024 tokens.
_SHAPE: Final = Shape(layers=4, kv_heads=2, context=LONG_CONTEXT)
_HEAD: Final = _SHAPE.width // _SHAPE.heads
# Every sixth layer of this architecture looks at the whole context, the others at the window.
_GEMMA_LAYERS: Final = 6
_UNEVEN: Final = (1, 1, 1, 4)
_UNEVEN_WIDTH: Final = 4 * _HEAD
# One block of the quantised tensors.
_RANK: Final = 32


def long_model(layout: Layout, out: Path) -> Path:
    """Write a tiny qwen2 model that was "trained" for 64k tokens."""
    return make_tiny_model(_vocabulary(layout), out, shape=_SHAPE)


def one_slot(layout: Layout, folder: Path, *more: str) -> tuple[str, ...]:
    """Write the long model; return the words of a server that reads it with one thread in one slot."""
    model = long_model(layout, folder / "long.gguf")
    return ("-m", str(model), "-t", "1", "-np", "1", "-c", str(LONG_CONTEXT), *more)


def sliding_model(layout: Layout, out: Path) -> Path:
    """Write a tiny gemma3 model: five layers with a sliding window, one without."""
    vocabulary = read_vocabulary(_vocabulary(layout))
    tokens = vocabulary["tokenizer.ggml.tokens"].length
    with out.open("wb") as file:
        write_gguf(file, _gemma_metadata() | vocabulary, list(_gemma_tensors(tokens, Noise(1))))
    return out


def tiny_adapter(out: Path, *, seed: int, begins_at: Sequence[int] = ()) -> Path:
    """Write a LoRA adapter for the tiny model that changes its keys and values beyond recognition.

    With `begins_at` it changes what comes after these tokens only (aLoRA).
    """
    shape = Shape()
    metadata = {
        "general.type": Value.string("adapter"),
        "general.architecture": Value.string("qwen2"),
        "adapter.type": Value.string("lora"),
        "adapter.lora.alpha": Value.float32(_RANK),
    }
    if begins_at:
        raw = struct.pack(f"<IQ{len(begins_at)}I", UINT32, len(begins_at), *begins_at)
        metadata["adapter.alora.invocation_tokens"] = Value(kind=ARRAY, raw=raw)
    noise = Noise(seed)
    names = [f"blk.{layer}.attn_{kind}.weight" for layer in range(shape.layers) for kind in "kv"]
    tensors = [
        part
        for name in names
        for part in (
            noise.matrix(f"{name}.lora_a", _RANK, shape.width, spread=0.5),
            noise.matrix(f"{name}.lora_b", shape.kv_width, _RANK, spread=0.5),
        )
    ]
    with out.open("wb") as file:
        write_gguf(file, metadata, tensors)
    return out


def _vocabulary(layout: Layout) -> Path:
    return layout.build / "src" / "elf" / SMALL_VOCABULARY


def _gemma_metadata() -> dict[str, Value]:
    own = {
        "block_count": Value.uint32(_GEMMA_LAYERS),
        "context_length": Value.uint32(LONG_CONTEXT),
        "embedding_length": Value.uint32(_SHAPE.width),
        "feed_forward_length": Value.uint32(_SHAPE.feed_forward),
        "attention.head_count": Value.uint32(_SHAPE.heads),
        "attention.head_count_kv": Value.uint32(_SHAPE.kv_heads),
        "attention.key_length": Value.uint32(_HEAD),
        "attention.value_length": Value.uint32(_HEAD),
        "attention.sliding_window": Value.uint32(SLIDING_WINDOW),
        "attention.layer_norm_rms_epsilon": Value.float32(1e-6),
        "rope.freq_base": Value.float32(10000.0),
    }
    return {
        "general.architecture": Value.string("gemma3"),
        **{f"gemma3.{name}": value for name, value in own.items()},
    }


def _gemma_tensors(tokens: int, noise: Noise) -> Iterator[Tensor]:
    width, forward, kv_width = _SHAPE.width, _SHAPE.feed_forward, _SHAPE.kv_width
    yield noise.matrix("token_embd.weight", tokens, width, spread=0.5)
    yield noise.signs("output_norm.weight", width)
    for layer in range(_GEMMA_LAYERS):
        prefix = f"blk.{layer}"
        yield from layer_matrices(noise, prefix, width=width, feed_forward=forward, kv_width=kv_width)
        for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            yield noise.signs(f"blk.{layer}.{name}.weight", width)
        for name in ("attn_q_norm", "attn_k_norm"):
            yield noise.signs(f"blk.{layer}.{name}.weight", _HEAD)


def uneven_model(layout: Layout, out: Path) -> Path:
    """Write a tiny deci model whose last layer has four times the keys and values of the others."""
    vocabulary = read_vocabulary(_vocabulary(layout))
    tokens = vocabulary["tokenizer.ggml.tokens"].length
    own = {
        "block_count": Value.uint32(len(_UNEVEN)),
        "context_length": Value.uint32(LONG_CONTEXT),
        "embedding_length": Value.uint32(_UNEVEN_WIDTH),
        "feed_forward_length": Value.uint32(_UNEVEN_WIDTH),
        "attention.head_count": Value.uint32(_UNEVEN_WIDTH // _HEAD),
        "attention.head_count_kv": Value(
            kind=ARRAY, raw=struct.pack(f"<IQ{len(_UNEVEN)}I", UINT32, len(_UNEVEN), *_UNEVEN)
        ),
        "rope.dimension_count": Value.uint32(_HEAD),
        "attention.layer_norm_rms_epsilon": Value.float32(1e-6),
    }
    metadata = {"general.architecture": Value.string("deci")}
    metadata |= {f"deci.{name}": value for name, value in own.items()}
    with out.open("wb") as file:
        write_gguf(file, metadata | vocabulary, list(_uneven_tensors(tokens, Noise(2))))
    return out


def _uneven_tensors(tokens: int, noise: Noise) -> Iterator[Tensor]:
    width = _UNEVEN_WIDTH
    yield noise.matrix("token_embd.weight", tokens, width, spread=0.5)
    yield noise.signs("output_norm.weight", width)
    for layer, kv_heads in enumerate(_UNEVEN):
        kv_width = kv_heads * _HEAD
        yield from layer_matrices(noise, f"blk.{layer}", width=width, feed_forward=width, kv_width=kv_width)
        for name in ("attn_norm", "ffn_norm"):
            yield noise.signs(f"blk.{layer}.{name}.weight", width)
