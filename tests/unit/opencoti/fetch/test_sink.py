"""Where the bytes of a range go: whatever the blocks are, right chunks are written once, wrong ones never."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opencoti.chunks import ChunkTable
from opencoti.fetch.board import MAX_WRONG, Board, ChunkRefused
from opencoti.fetch.sink import Sink, WrongEnd
from tests.integration.fetch.bench import table_of

CHUNK = 65_536
CONTENT = random.Random(3).randbytes(20 * CHUNK + 777)
TABLE = table_of(CONTENT, CHUNK)


@dataclass
class File:
    """The target of a sink."""

    board: Board
    table: ChunkTable
    handle: int
    checks_each: bool = False
    has_deferred: bool = False

    def bytes_of(self, number: int) -> bytes:
        start, size = self.table.span(number)
        return os.pread(self.handle, size, start)


@pytest.fixture
def target(tmp_path: Path) -> Iterator[File]:
    handle = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield File(board=Board(TABLE), table=TABLE, handle=handle)
    os.close(handle)


def feed(sink: Sink, data: bytes, sizes: list[int]) -> None:
    at = 0
    for size in [*sizes, len(data)]:
        if block := data[at : at + size]:
            sink.feed(block)
        at += size
    sink.flush()


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from([1, 100, 65_535, 65_536, 65_537, 200_000, 262_144, 700_000, 1 << 20])),
    st.integers(0, 20),
    st.integers(1, 21),
    st.sets(st.integers(0, 20), max_size=3),
)
def test_any_blocks_give_the_right_chunks_and_only_those(
    target: File, sizes: list[int], first: int, count: int, wrong: set[int]
) -> None:
    os.ftruncate(target.handle, 0)
    target.board = Board(TABLE)
    end = min(21, first + count)
    data = bytearray(CONTENT)
    for number in wrong:
        data[number * CHUNK + 5] ^= 1
    stop = min(end * CHUNK, len(CONTENT))
    sink = Sink(target, first * CHUNK, stop)
    feed(sink, bytes(data[first * CHUNK : stop]), sizes)
    sink.require_end()
    for number in range(21):
        is_expected = first <= number < end and number not in wrong
        assert target.board.is_there(number) == is_expected
        assert (target.bytes_of(number) == CONTENT[number * CHUNK : (number + 1) * CHUNK]) == is_expected


def test_more_or_less_than_the_range_is_told(target: File) -> None:
    with pytest.raises(WrongEnd) as caught:
        Sink(target, 0, CHUNK).feed(CONTENT[: CHUNK + 1])
    assert caught.value.is_beyond
    sink = Sink(target, 0, 2 * CHUNK)
    feed(sink, CONTENT[: 2 * CHUNK - 1], [])
    with pytest.raises(WrongEnd) as caught:
        sink.require_end()
    assert not caught.value.is_beyond
    assert target.board.missing_numbers() == list(range(1, 21))


def test_samples_are_the_first_chunk_and_one_in_so_many(target: File) -> None:
    data = bytes(len(CONTENT))
    sink = Sink(target, 2 * CHUNK, 7 * CHUNK, sample_every=8)
    sink.feed(data[: 5 * CHUNK])
    # The first one was a wrong sample, so each one behind it was looked at, too.
    assert target.checks_each
    assert target.board.missing_numbers() == list(range(21))
    target.checks_each = False
    sink = Sink(target, 2 * CHUNK, 21 * CHUNK - CHUNK, sample_every=8)
    sink.feed(CONTENT[2 * CHUNK : 3 * CHUNK] + data[3 * CHUNK : 20 * CHUNK])
    # Number 8 is the next sample; what came before it was believed.
    assert target.board.missing_numbers() == [0, 1, *range(8, 21)]


def test_chunk_that_is_wrong_too_often_is_refused(target: File) -> None:
    for _ in range(MAX_WRONG - 1):
        Sink(target, 0, CHUNK).feed(bytes(CHUNK))
    with pytest.raises(ChunkRefused):
        Sink(target, 0, CHUNK).feed(bytes(CHUNK))
