"""A small vocabulary file, so that the tests need no upstream tree."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from ci.smoke.gguf_file import ARRAY, STRING, Value, write_gguf


def string_array(items: list[str]) -> Value:
    body = b"".join(struct.pack("<Q", len(item.encode())) + item.encode() for item in items)
    return Value(kind=ARRAY, raw=struct.pack("<IQ", STRING, len(items)) + body)


def int_array(items: list[int]) -> Value:
    return Value(kind=ARRAY, raw=struct.pack(f"<IQ{len(items)}i", 5, len(items), *items))


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    """A qwen2 vocabulary of 96 tokens."""
    path = tmp_path / "vocabulary.gguf"
    metadata = {
        "general.architecture": Value.string("qwen2"),
        "qwen2.block_count": Value.uint32(32),
        "tokenizer.ggml.model": Value.string("gpt2"),
        "tokenizer.ggml.tokens": string_array([f"é{number}" for number in range(96)]),
        "tokenizer.ggml.token_type": int_array([1] * 96),
        "tokenizer.ggml.eos_token_id": Value.uint32(95),
        "tokenizer.chat_template": Value.string("replaced"),
    }
    with open(path, "wb") as file:
        write_gguf(file, metadata, [])
    return path
