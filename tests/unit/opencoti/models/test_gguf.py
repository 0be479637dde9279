"""The header reader against good, broken and hostile files."""

from __future__ import annotations

import io
import os
import struct
import tracemalloc
from pathlib import Path

import pytest
from gguf.constants import GGML_QUANT_SIZES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ci.smoke.gguf_file import Tensor, Value, write_gguf
from opencoti.errors import ConfigError, OpencotiError
from opencoti.models.gguf import BLOCKS, Header, Passed, read_header
from tests.fakes.ollama_store import tiny_gguf
from tests.fakes.tiny_gemma import GemmaShape, bools, gemma_metadata, texts, uint32s

GOOD = tiny_gguf()


def write(folder: Path, data: bytes) -> Path:
    path = folder / "sha256-of-no-extension"
    path.write_bytes(data)
    return path


def gguf(metadata: dict[str, Value], tensors: tuple[Tensor, ...] = ()) -> bytes:
    buffer = io.BytesIO()
    write_gguf(buffer, metadata, tensors)
    return buffer.getvalue()


def why(folder: Path, data: bytes) -> str:
    with pytest.raises(ConfigError) as caught:
        read_header(write(folder, data))
    assert caught.value.error_id == "gguf-malformed"
    return caught.value.why


def outcome(path: Path) -> str:
    try:
        return "read" if isinstance(read_header(path), Header) else "?"
    except OpencotiError as error:
        return error.error_id


def test_values_of_every_kind_are_read(tmp_path: Path) -> None:
    numbers = (
        (0, b"\xff", 255),
        (1, b"\xff", -1),
        (2, b"\xff\xff", 65535),
        (3, b"\xfe\xff", -2),
        (4, b"\x01\0\0\0", 1),
        (5, b"\xff\xff\xff\xff", -1),
        (6, struct.pack("<f", 1.5), 1.5),
        (7, b"\x01", True),
        (10, struct.pack("<Q", 1 << 63), 1 << 63),
        (11, struct.pack("<q", -5), -5),
        (12, struct.pack("<d", 0.1), 0.1),
    )
    metadata = {f"k{kind}": Value(kind=kind, raw=raw) for kind, raw, _ in numbers}
    metadata |= {"text": Value.string("grüße"), "list": uint32s([3, 1, 2]), "marks": bools([True, False])}
    header = read_header(write(tmp_path, gguf(metadata)))
    assert {f"k{kind}": value for kind, _, value in numbers}.items() <= header.values.items()
    assert header.text("text") == "grüße"
    assert header.numbers("list") == (3, 1, 2)
    assert header.numbers("marks") == (1, 0)
    assert (header.number("k7"), header.number("k4"), header.number("text")) == (None, 1, None)


def test_vocabularies_and_long_texts_are_counted_and_not_kept(tmp_path: Path) -> None:
    words = texts([f"word{at}" for at in range(5000)])
    metadata = {
        "words": words,
        "template": Value.string("x" * 5000),
        "scores": uint32s(list(range(5000))),
        "after": Value.uint32(7),
    }
    header = read_header(write(tmp_path, gguf(metadata)))
    assert header.values["words"] == Passed(length=5000)
    assert header.values["template"] == Passed(length=5000)
    assert header.values["scores"] == Passed(length=5000)
    assert header.number("after") == 7


def test_texts_across_the_edges_of_windows_are_passed_over(tmp_path: Path) -> None:
    words = texts(["y" * (300_000 + at) for at in range(12)])
    header = read_header(write(tmp_path, gguf({"words": words, "after": Value.uint32(9)})))
    assert header.number("after") == 9


def test_weights_are_measured_and_a_cut_off_file_is_found(tmp_path: Path) -> None:
    data = tiny_gguf(tensors=3)
    header = read_header(write(tmp_path, data))
    assert (header.tensors, header.weights_bytes, header.file_bytes) == (3, 48, len(data))
    # The last tensor is padded to 32 bytes; what is missing beyond the padding is missing from the weights.
    assert why(tmp_path, data[:-17]).startswith("it is cut off: ")
    read_header(write(tmp_path, data[:-16]))


def test_sizes_of_tensor_types_are_those_of_the_reference_package() -> None:
    # Type 9 is for intermediate results only and in no file.
    reference = {int(kind): size for kind, size in GGML_QUANT_SIZES.items() if int(kind) != 9}
    assert reference.items() <= BLOCKS.items()


def test_every_prefix_of_a_file_is_refused(tmp_path: Path) -> None:
    end = read_header(write(tmp_path, GOOD)).header_bytes
    for length in range(end):
        why(tmp_path, GOOD[:length])


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "it is empty"),
        (bytes(4096), "it does not start with GGUF"),
        (b"<html>not found</html>", "it does not start with GGUF"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(16), "its version is 1"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(16), "its version is 50331648"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), "it claims"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 40, 0), "it claims"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1 << 62), "a name has"),
        (gguf({"a": Value(kind=99, raw=b"")}), "a value has type 99"),
        (gguf({"a": Value(kind=9, raw=struct.pack("<IQ", 9, 1))}), "a list holds values of type 9"),
        (gguf({"a": Value(kind=9, raw=struct.pack("<IQ", 0, 1 << 50))}), "a list claims"),
        (gguf({"a": Value(kind=8, raw=struct.pack("<Q", (1 << 64) - 1))}), "it ends at byte"),
        (gguf({"a": Value(kind=9, raw=struct.pack("<IQQ", 8, 3, 1 << 63))}), "it ends at byte"),
        (gguf({"general.alignment": Value.uint32(0)}), "its alignment"),
        (gguf({"general.alignment": Value.uint32(48)}), "its alignment"),
    ],
)
def test_hostile_headers_say_what_is_wrong(tmp_path: Path, data: bytes, text: str) -> None:
    assert text in why(tmp_path, data)


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    entry = struct.pack("<Q", 1) + b"a" + struct.pack("<II", 4, 1)
    assert why(tmp_path, b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + entry * 2) == "a key stands twice"


def test_a_pipe_and_a_folder_are_no_model_and_do_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "absent"):
        with pytest.raises(OpencotiError):
            read_header(path)


def test_a_huge_sparse_file_costs_no_memory(tmp_path: Path) -> None:
    # A list that claims very many texts, over a file of zeros: every text is empty.
    head = gguf({"words": Value(kind=9, raw=struct.pack("<IQ", 8, 400_000))}).rstrip(b"\0")
    path = write(tmp_path, head)
    os.truncate(path, 1 << 30)
    tracemalloc.start()
    read_header(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5 << 20


_METADATA = st.dictionaries(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20),
    st.one_of(
        st.integers(0, 2**32 - 1).map(Value.uint32),
        st.floats(width=32, allow_nan=False).map(Value.float32),
        st.text(st.characters(codec="utf-8"), max_size=50).map(Value.string),
        st.lists(st.integers(0, 2**32 - 1), max_size=30).map(uint32s),
        st.lists(st.text(st.characters(codec="utf-8"), max_size=9), max_size=9).map(texts),
    ),
    max_size=12,
)
_FUZZ = settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])


@_FUZZ
@given(metadata=_METADATA)
def test_what_was_written_is_read_back(tmp_path: Path, metadata: dict[str, Value]) -> None:
    header = read_header(write(tmp_path, gguf(metadata)))
    assert header.values.keys() == metadata.keys()
    for name, value in metadata.items():
        if value.kind == 4:
            assert header.number(name) == int.from_bytes(value.raw, "little")


@_FUZZ
@given(data=st.data())
def test_damaged_headers_are_refused_or_read_and_nothing_else(tmp_path: Path, data: st.DataObject) -> None:
    good = gguf({**gemma_metadata(GemmaShape()), "words": texts(["a", "bb", "ccc"])})
    content = bytearray(good)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))]
    assert outcome(write(tmp_path, bytes(content))) in ("read", "gguf-malformed")


@_FUZZ
@given(tail=st.binary(max_size=400))
def test_anything_behind_the_magic_is_refused_or_read(tmp_path: Path, tail: bytes) -> None:
    assert outcome(write(tmp_path, b"GGUF\3\0\0\0" + tail)) in ("read", "gguf-malformed")
