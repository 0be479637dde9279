"""A tiny random Mamba: a model whose memory is a state per layer, which cannot go back by one token.

Imitates the shape only. The vocabulary is that of the tiny model which the smoke test uses.
"""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Final

from ci.smoke.gguf_file import Tensor, Value, read_metadata, write_gguf

_F32: Final = 0
_LAYERS, _WIDTH, _INNER, _STATE, _RANK, _KERNEL = 2, 64, 128, 16, 4, 4  # inner is twice the width


def make_tiny_mamba(vocabulary: Path, out: Path, *, context: int = 8192) -> Path:
    """Write the model with the vocabulary of a GGUF file."""
    metadata = read_metadata(vocabulary.read_bytes())
    tokenizer = {name: value for name, value in metadata.items() if name.startswith("tokenizer.")}
    count = tokenizer["tokenizer.ggml.tokens"].length
    with open(out, "wb") as file:
        write_gguf(file, {**_metadata(context), **tokenizer}, _tensors(count))
    return out


def _metadata(context: int) -> dict[str, Value]:
    own = {
        "block_count": Value.uint32(_LAYERS),
        "context_length": Value.uint32(context),
        "embedding_length": Value.uint32(_WIDTH),
        "feed_forward_length": Value.uint32(0),
        "attention.head_count": Value.uint32(0),
        "attention.layer_norm_rms_epsilon": Value.float32(1e-5),
        "ssm.conv_kernel": Value.uint32(_KERNEL),
        "ssm.inner_size": Value.uint32(_INNER),
        "ssm.state_size": Value.uint32(_STATE),
        "ssm.time_step_rank": Value.uint32(_RANK),
    }
    return {
        "general.architecture": Value.string("mamba"),
        "general.name": Value.string("tiny-mamba"),
        **{f"mamba.{name}": value for name, value in own.items()},
    }


def _tensors(tokens: int) -> list[Tensor]:
    dice = random.Random(3)
    tensors = [
        _noise("token_embd.weight", (_WIDTH, tokens), -1.0, 1.0, dice),
        _noise("output_norm.weight", (_WIDTH,), 1.0, 1.0, dice),
    ]
    for layer in range(_LAYERS):
        tensors += [_noise(f"blk.{layer}.{name}", *rest, dice) for name, *rest in _LAYER]  # type: ignore[arg-type]
    return tensors


_LAYER: Final = (
    ("attn_norm.weight", (_WIDTH,), 1.0, 1.0),
    ("ssm_in.weight", (_WIDTH, 2 * _INNER), -0.3, 0.3),
    ("ssm_conv1d.weight", (_KERNEL, _INNER), -0.5, 0.5),
    ("ssm_conv1d.bias", (_INNER,), -0.1, 0.1),
    ("ssm_x.weight", (_INNER, _RANK + 2 * _STATE), -0.3, 0.3),
    ("ssm_dt.weight", (_RANK, _INNER), -0.3, 0.3),
    ("ssm_dt.bias", (_INNER,), -3.0, -1.0),
    ("ssm_a", (_STATE, _INNER), -1.0, -0.05),
    ("ssm_d", (_INNER,), -1.0, 1.0),
    ("ssm_out.weight", (_INNER, _WIDTH), -0.3, 0.3),
)


def _noise(name: str, shape: tuple[int, ...], low: float, high: float, dice: random.Random) -> Tensor:
    size = 1
    for length in shape:
        size *= length
    # A table that does not fit a row: rows differ, and making it takes no time.
    table = b"".join(struct.pack("<f", dice.uniform(low, high)) for _ in range(4093))
    data = (table * (size * 4 // len(table) + 1))[: size * 4]
    return Tensor(name=name, shape=shape, kind=_F32, data=data)
