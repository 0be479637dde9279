"""Patience with servers, on fake clocks."""

from __future__ import annotations

import pytest

from opencoti.fetch.answers import TransferFailure
from opencoti.fetch.pace import Patience, SpeedGuard, repeat
from opencoti.fetch.settings import Limits

LIMITS = Limits(timeout_s=10, min_bytes_per_s=100, tries=3, longest_wait_s=60)
MIB = 1 << 20


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_case_b41_trickle_below_the_minimum_speed_is_a_stall() -> None:
    clock = Clock()
    guard = SpeedGuard(LIMITS, clock)
    for second in range(1, 10):
        clock.now = second
        guard.feed(1)
    clock.now = 10
    with pytest.raises(TransferFailure, match="only 10 bytes in 10"):
        guard.feed(1)


def test_speed_counts_in_windows_so_an_early_burst_excuses_nothing() -> None:
    clock = Clock()
    guard = SpeedGuard(LIMITS, clock)
    guard.feed(MIB)
    clock.now = 10
    guard.feed(0)
    clock.now = 20
    with pytest.raises(TransferFailure):
        guard.feed(999)


def test_just_fast_enough_goes_on() -> None:
    clock = Clock()
    guard = SpeedGuard(LIMITS, clock)
    for window in range(1, 5):
        clock.now = window * 10
        guard.feed(1000)


def run(failures: list[TransferFailure | None], reached: list[int] | None = None) -> tuple[int, list[float]]:
    """Run attempts that fail as told; return how many there were and the pauses between them."""
    sizes = iter(reached or [])
    size = [0]
    count = [0]
    pauses: list[float] = []

    def attempt() -> None:
        count[0] += 1
        size[0] = next(sizes, size[0])
        failure = failures.pop(0) if failures else TransferFailure("dead")
        if failure is not None:
            raise failure

    patience = Patience(LIMITS, lambda: size[0])
    try:
        repeat(attempt, patience, sleep=pauses.append, announce=lambda failure, pause_s: None)
    except TransferFailure:
        return -count[0], pauses
    return count[0], pauses


def test_attempts_without_gain_are_bounded() -> None:
    count, pauses = run([])
    assert count == -3
    assert len(pauses) == 2
    assert all(0 <= pause <= 20 for pause in pauses)


def test_attempts_that_bring_new_bytes_count_anew() -> None:
    count, _ = run([], reached=[MIB, 2 * MIB, 3 * MIB])
    assert count == -6


def test_going_over_the_same_bytes_again_is_no_gain() -> None:
    count, _ = run([], reached=[MIB, 0, MIB, 0, MIB])
    assert count == -4


def test_pause_is_at_least_what_the_server_asks() -> None:
    count, pauses = run([TransferFailure("busy", retry_after_s=42), None])
    assert (count, pauses[0] >= 42) == (2, True)


def test_server_that_asks_for_too_long_a_pause_is_given_up() -> None:
    count, pauses = run([TransferFailure("busy", retry_after_s=61), None])
    assert (count, pauses) == (-1, [])


def test_useless_range_is_followed_by_the_whole_at_once() -> None:
    count, pauses = run([TransferFailure("odd", is_range_useless=True), None])
    assert (count, pauses) == (2, [0.0])
