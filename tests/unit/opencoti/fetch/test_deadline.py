"""Calls that end in time, that fail, and that are left alone."""

from __future__ import annotations

import threading

import pytest

from opencoti.fetch.deadline import run_within

LONG_S = 60.0


def refuse(result: object) -> None:
    raise AssertionError(f"{result} was discarded")


def test_result_and_failure_reach_who_waits() -> None:
    assert run_within(LONG_S, lambda: 7, refuse) == 7
    assert run_within(LONG_S, lambda: None, refuse) is None
    with pytest.raises(ValueError, match="gone"):
        run_within(LONG_S, lambda: int("gone"), refuse)


def test_result_that_comes_too_late_is_discarded() -> None:
    may_end, is_discarded = threading.Event(), threading.Event()
    late: list[int] = []

    def act() -> int:
        may_end.wait(LONG_S)
        return 7

    def discard(result: int) -> None:
        late.append(result)
        is_discarded.set()

    with pytest.raises(TimeoutError):
        run_within(0.01, act, discard)
    assert late == []
    may_end.set()
    assert is_discarded.wait(LONG_S)
    assert late == [7]
