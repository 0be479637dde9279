"""Who fetches which chunks, what is left, and how far the file is complete from its start."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencoti.fetch.board import MAX_WRONG, Board, ChunkRefused, Run
from tests.integration.fetch.bench import table_of

SIZE = 10 * 4096 - 100  # ten chunks, the last one short
SPANS = {number: 4096 if number < 9 else 3996 for number in range(10)}


def board(*breaks: int) -> Board:
    return Board(table_of(bytes(SIZE)), breaks)


def test_runs_are_handed_out_in_order_and_once() -> None:
    it = board()
    assert [it.take(4), it.take(4), it.take(4)] == [
        Run(first=0, end=4), Run(first=4, end=8), Run(first=8, end=10),
    ]  # fmt: skip


def test_what_is_there_splits_runs_and_moves_the_frontier() -> None:
    it = board()
    it.mark(0, 2)
    it.mark(4, 5)
    assert it.wait_frontier(0, 0) == 2
    assert it.take(99) == Run(first=2, end=4)
    assert it.take(99) == Run(first=5, end=10)
    it.mark(2, 4)
    assert it.wait_frontier(3, 0) == 5
    assert it.there_bytes == 5 * 4096
    assert it.missing_bytes == SIZE - 5 * 4096


def test_given_back_chunks_are_the_next_ones_without_those_that_are_there() -> None:
    it = board()
    run = it.take(4)
    assert run is not None
    it.mark(1, 3)
    it.give_back(run)
    assert [it.take(9), it.take(9)] == [Run(first=0, end=1), Run(first=3, end=10)]


def test_runs_stop_where_the_next_part_of_a_split_file_begins() -> None:
    it = board(0, 3)
    assert [it.take(99), it.take(99)] == [Run(first=0, end=3), Run(first=3, end=10)]


def test_taking_waits_for_what_others_might_give_back_and_ends_with_the_work() -> None:
    it = board()
    run = it.take(99)
    assert run is not None
    taken: list[Run | None] = []
    waiter = threading.Thread(target=lambda: taken.append(it.take(99)))
    waiter.start()
    it.mark(0, 9)
    it.give_back(run)
    waiter.join(10)
    assert taken == [Run(first=9, end=10)]
    ender = threading.Thread(target=lambda: taken.append(it.take(99)))
    ender.start()
    it.stop(ValueError("first"))
    it.stop(ValueError("second"))
    ender.join(10)
    assert taken[1] is None
    assert str(it.failure) == "first"


def test_whoever_follows_is_woken_when_enough_is_there_and_when_the_work_ends() -> None:
    it = board()
    seen: list[int] = []
    follower = threading.Thread(target=lambda: seen.append(it.wait_frontier(3, 60)))
    follower.start()
    it.mark(1, 3)
    it.mark(0, 1)
    follower.join(30)
    assert seen == [3]
    follower = threading.Thread(target=lambda: seen.append(it.wait_frontier(4, 60)))
    follower.start()
    it.stop()
    follower.join(30)
    assert seen == [3, 3]


def test_nothing_is_taken_when_all_is_there() -> None:
    it = board()
    it.mark(0, 10)
    assert it.take(1) is None
    assert (it.missing_bytes, it.missing_numbers()) == (0, [])
    assert Board(table_of(b"")).take(1) is None


def test_chunk_that_is_wrong_again_and_again_is_refused() -> None:
    it = board()
    for _ in range(MAX_WRONG - 1):
        it.note_wrong(4)
    it.note_wrong(5)
    with pytest.raises(ChunkRefused) as caught:
        it.note_wrong(4)
    assert caught.value.number == 4


@given(st.lists(st.tuples(st.sampled_from(["take", "mark", "back"]), st.integers(0, 9), st.integers(1, 5))))
def test_no_chunk_is_lost_or_handed_out_twice(steps: list[tuple[str, int, int]]) -> None:
    it, held, there = board(), [], set()
    for what, at, count in steps:
        free = set(range(10)) - there - {n for run in held for n in range(run.first, run.end)}
        if what == "take" and free:
            run = it.take(count)
            assert run is not None
            assert set(range(run.first, run.end)) <= free
            assert run.end - run.first <= count
            held.append(run)
        elif what == "mark":
            end = min(10, at + count)
            it.mark(at, end)
            there |= set(range(at, end))
        elif held:
            it.give_back(held.pop(0))
    assert it.missing_numbers() == sorted(set(range(10)) - there)
    assert it.missing_bytes == sum(size for number, size in SPANS.items() if number not in there)
    assert it.wait_frontier(0, 0) == next((n for n in range(10) if n not in there), 10)
