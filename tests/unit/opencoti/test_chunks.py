"""The `.chunks` sidecar: it covers every byte, and says where a file differs."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencoti import chunks
from opencoti.chunks import CHUNK_SIZE_BYTES, ChunkHasher, ChunkTable, parse_table, render_table
from opencoti.errors import ConfigError, OpencotiError, StorageError


def error_id(action: Callable[[], object]) -> str | None:
    """Return the id of the expected error that `action` raises; any other exception goes on."""
    try:
        action()
    except OpencotiError as error:
        return error.error_id
    return None


def make(data: bytes, chunk_size: int = 4096) -> ChunkTable:
    hasher = ChunkHasher(chunk_size)
    hasher.update(memoryview(data))
    return hasher.finish()


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 3 * 4096, 3 * 4096 + 1])
def test_chunks_cover_the_file_without_gaps(size: int) -> None:
    data = random.Random(size).randbytes(size)
    table = make(data)
    assert table.count == (size + 4095) // 4096
    assert table.file_size == size
    end = 0
    for number in range(table.count):
        start, length = table.span(number)
        assert start == end
        assert table.digest(number) == hashlib.sha256(data[start : start + length]).digest()
        end = start + length
    assert end == size


@given(st.lists(st.integers(0, 9000), max_size=6))
def test_the_table_does_not_depend_on_how_bytes_are_fed(sizes: list[int]) -> None:
    data = random.Random(1).randbytes(sum(sizes))
    hasher, at = ChunkHasher(4096), 0
    for size in sizes:
        hasher.update(memoryview(data[at : at + size]))
        at += size
    assert hasher.finish() == make(data)


def test_the_form_is_one_text_line_and_digests() -> None:
    table = make(b"x" * 5000)
    assert render_table(table).startswith(b"opencoti-chunks 1 4096 5000 2\n")
    assert len(render_table(table)) == 30 + 64
    assert parse_table(render_table(table), "sample") == table


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"chunks 1", b"chunks 2"),
        (b" 4096 ", b" 4095 "),
        (b" 4096 ", b" 2048 "),
        (b" 4096 ", b" 0 "),
        (b" 4096 ", b" 2097152 "),
        (b" 5000 ", b" 9000 "),
        (b" 5000 ", b" -1 "),
        (b" 5000 ", b" 99999999999999999999 "),
        (b" 2\n", b" 3\n"),
        (b" 2\n", b" 02\n"),
        (b" 2\n", b" 2\r\n"),
        (b" 2\n", b" 2\n!"),
    ],
)
def test_a_malformed_table_is_refused(old: bytes, new: bytes) -> None:
    data = render_table(make(b"x" * 5000))
    assert old in data[:40]
    with pytest.raises(ConfigError) as caught:
        parse_table(data.replace(old, new, 1), "sample")
    assert caught.value.error_id == "chunks-malformed"


@given(st.binary(max_size=200))
def test_any_bytes_raise_known_errors_only(data: bytes) -> None:
    for sample in (data, b"opencoti-chunks 1 4096 " + data, render_table(make(b"x" * 5000)) + data):
        assert error_id(partial(parse_table, sample, "sample")) in {None, "chunks-malformed"}


@pytest.mark.parametrize("threads", [None, 1, 5])
def test_differing_chunks_are_numbered(tmp_path: Path, threads: int | None) -> None:
    path = tmp_path / "file"
    data = bytearray(random.Random(2).randbytes(40 * CHUNK_SIZE_BYTES + 7))
    path.write_bytes(data)
    table = chunks.hash_file(path)
    assert table.count == 41
    assert chunks.verify_file(path, table, threads) == []
    for at in (0, 5 * CHUNK_SIZE_BYTES - 1, 40 * CHUNK_SIZE_BYTES):
        data[at] ^= 1
    path.write_bytes(data)
    assert chunks.verify_file(path, table, threads) == [0, 4, 40]


def test_what_is_cut_off_differs(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * (3 * CHUNK_SIZE_BYTES))
    table = chunks.hash_file(path)
    path.write_bytes(b"x" * (CHUNK_SIZE_BYTES + 1))
    assert chunks.verify_file(path, table) == [1, 2]


def test_progress_reaches_the_size(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * (3 << 20))
    seen: list[int] = []
    chunks.verify_file(path, chunks.hash_file(path), on_bytes=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 3 << 20


def test_a_sidecar_is_written_and_loaded(tmp_path: Path) -> None:
    table = make(b"x" * 5000)
    chunks.write(tmp_path / "file.chunks", table)
    assert chunks.load(tmp_path / "file.chunks") == table


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    for action in (chunks.load, chunks.hash_file, lambda path: chunks.verify_file(path, make(b"x"))):
        with pytest.raises(StorageError, match="absent"):
            action(tmp_path / "absent")
