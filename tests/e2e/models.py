"""Random models for tests of the engine: a long context, and one with a sliding window."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ci.paths import Layout
from ci.smoke.gguf_file import Tensor, Value, write_gguf
from ci.smoke.model import SMALL_VOCABULARY, Noise, Shape, make_tiny_model, read_vocabulary

LONG_CONTEXT: Final = 65536
SLIDING_WINDOW: Final = 512

# 1 KiB of keys and values per token, so that a MiB is 1024 tokens.
_SHAPE: Final = Shape(layers=4, kv_heads=2, context=LONG_CONTEXT)
_HEAD: Final = _SHAPE.width // _SHAPE.heads
# Every sixth layer of this architecture looks at the whole context, the others at the window.
_GEMMA_LAYERS: Final = 6


def long_model(layout: Layout, out: Path) -> Path:
    """Write a tiny qwen2 model that was "trained" for 64k tokens."""
    return make_tiny_model(_vocabulary(layout), out, shape=_SHAPE)


def sliding_model(layout: Layout, out: Path) -> Path:
    """Write a tiny gemma3 model: five layers with a sliding window, one without."""
    vocabulary = read_vocabulary(_vocabulary(layout))
    tokens = vocabulary["tokenizer.ggml.tokens"].length
    with out.open("wb") as file:
        write_gguf(file, _gemma_metadata() | vocabulary, list(_gemma_tensors(tokens, Noise(1))))
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
        for name, rows, columns in (
            ("attn_q", width, width),
            ("attn_k", kv_width, width),
            ("attn_v", kv_width, width),
            ("attn_output", width, width),
            ("ffn_gate", forward, width),
            ("ffn_up", forward, width),
            ("ffn_down", width, forward),
        ):
            yield noise.matrix(f"blk.{layer}.{name}.weight", rows, columns, spread=0.3)
        for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            yield noise.signs(f"blk.{layer}.{name}.weight", width)
        for name in ("attn_q_norm", "attn_k_norm"):
            yield noise.signs(f"blk.{layer}.{name}.weight", _HEAD)
