"""The tiny model: the same bytes every time, readable by the reference reader, refused vocabularies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.paths import Layout
from ci.smoke.gguf_file import MalformedGgufError, Value, read_metadata, write_gguf
from ci.smoke.model import cached_model, make_tiny_model
from opencoti.errors import ConfigError
from opencoti.hashing import sha256_file


def test_the_same_seed_gives_the_same_bytes(vocabulary: Path, tmp_path: Path) -> None:
    first = make_tiny_model(vocabulary, tmp_path / "1.gguf")
    again = make_tiny_model(vocabulary, tmp_path / "2.gguf")
    other = make_tiny_model(vocabulary, tmp_path / "3.gguf", seed=1)
    assert first.read_bytes() == again.read_bytes()
    assert first.stat().st_size == other.stat().st_size
    assert sha256_file(first) != sha256_file(other)


def test_the_bytes_are_those_of_every_machine(vocabulary: Path, tmp_path: Path) -> None:
    """Changes when the generator does: then raise GENERATOR_VERSION and put the new digest here."""
    path = make_tiny_model(vocabulary, tmp_path / "model.gguf")
    assert sha256_file(path) == "b9ec34fa11a59df537a9515da9224ddf04191bfb39434bc89836b1b79bc11e93"


def test_the_reference_reader_agrees(vocabulary: Path, tmp_path: Path) -> None:
    from gguf import GGUFReader

    reader = GGUFReader(make_tiny_model(vocabulary, tmp_path / "model.gguf"))

    def value(name: str) -> object:
        field = reader.get_field(name)
        assert field is not None, name
        return field.contents()

    assert value("general.architecture") == "qwen2"
    assert value("qwen2.block_count") == 2
    assert value("qwen2.embedding_length") == 64
    assert value("tokenizer.ggml.eos_token_id") == 95
    tokens = value("tokenizer.ggml.tokens")
    assert isinstance(tokens, list)
    assert (len(tokens), tokens[7]) == (96, "é7")
    assert "add_generation_prompt" in str(value("tokenizer.chat_template"))
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert len(tensors) == 2 + 2 * 12
    embedding = tensors["token_embd.weight"]
    assert (embedding.tensor_type.name, [int(size) for size in embedding.shape]) == ("Q8_0", [64, 96])
    assert [int(size) for size in tensors["blk.1.attn_k.weight"].shape] == [64, 32]
    assert set(tensors["output_norm.weight"].data.tolist()) == {1.0, -1.0}


def test_the_cache_is_keyed_by_the_content_of_the_vocabulary(vocabulary: Path, layout: Layout) -> None:
    first = cached_model(layout, vocabulary)
    assert first.parent == layout.cache / "models"
    made = first.stat().st_ino
    assert cached_model(layout, vocabulary).stat().st_ino == made
    assert cached_model(layout, vocabulary, seed=1) != first
    with open(vocabulary, "ab") as file:
        file.write(b"\0")
    assert cached_model(layout, vocabulary) != first


def test_a_missing_vocabulary_says_how_to_get_it(layout: Layout) -> None:
    with pytest.raises(ConfigError) as caught:
        cached_model(layout, layout.sources / "llama.cpp" / "models" / "v.gguf")
    assert caught.value.error_id == "vocabulary-missing"
    assert "vendor" in caught.value.hint


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"general.architecture": Value.string("qwen2")},
        {"general.architecture": Value.string("bert"), "tokenizer.ggml.tokens": Value.string("x")},
        {"general.architecture": Value.uint32(7)},
    ],
)
def test_a_file_without_the_right_vocabulary_is_refused(metadata: dict[str, Value], tmp_path: Path) -> None:
    path = tmp_path / "v.gguf"
    with open(path, "wb") as file:
        write_gguf(file, metadata, [])
    with pytest.raises(ConfigError) as caught:
        make_tiny_model(path, tmp_path / "out.gguf")
    assert caught.value.error_id == "vocabulary-malformed"
    assert os.listdir(tmp_path) == ["v.gguf"]


def test_every_truncation_is_refused(vocabulary: Path) -> None:
    data = vocabulary.read_bytes()
    wanted = read_metadata(data)
    end = data.rindex(b"replaced") + len(b"replaced")
    for size in range(end):
        with pytest.raises(MalformedGgufError):
            read_metadata(data[:size])
    assert read_metadata(data[:end]) == wanted


@given(st.data())
def test_changed_bytes_are_read_or_refused(data: st.DataObject) -> None:
    base = bytearray(_small_file())
    for _ in range(data.draw(st.integers(1, 4))):
        base[data.draw(st.integers(0, len(base) - 1))] = data.draw(st.integers(0, 255))
    try:
        read = read_metadata(bytes(base))
    except MalformedGgufError:
        return
    assert len(read) <= 4


def _small_file() -> bytes:
    import io

    from tests.unit.smoke.conftest import int_array, string_array

    file = io.BytesIO()
    metadata = {
        "a": Value.uint32(1),
        "b": string_array(["x", "yz"]),
        "c": int_array([1, 2]),
        "d": Value.string("e"),
    }
    write_gguf(file, metadata, [])
    return file.getvalue()
