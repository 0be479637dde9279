"""Patience: how often, how fast, and how long in all. No real time passes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from opencoti.errors import NetworkError
from release.remote.limits import Clock, Limits, Patience
from release.remote.model import PassingError
from tests.conftest import RecordedConsole
from tests.fakes.github.state import FakeClock


def patience(fake: FakeClock, **limits: object) -> Patience:
    clock = Clock(monotonic=fake.monotonic, now=fake.now, sleep=fake.sleep)
    return Patience(console=RecordedConsole().console, limits=Limits(**limits), clock=clock)  # type: ignore[arg-type]


def failing(times: int, *, wait_s: float | None = None) -> Callable[[], str]:
    left = times

    def act() -> str:
        nonlocal left
        left -= 1
        if left >= 0:
            raise PassingError("bad weather", wait_s=wait_s)
        return "done"

    return act


def test_pauses_double_up_to_their_limit() -> None:
    fake = FakeClock()
    assert patience(fake, tries=7, longest_backoff_s=10.0).read("x", failing(6)) == "done"
    assert fake.slept == [1, 2, 4, 8, 10, 10]


def test_after_the_last_try_it_says_why() -> None:
    with pytest.raises(NetworkError, match="3 attempts failed, the last one: bad weather") as caught:
        patience(FakeClock(), tries=3).read("do it", failing(9))
    assert caught.value.error_id == "remote-failed"


def test_a_wait_that_was_asked_for_is_kept_exactly() -> None:
    fake = FakeClock()
    patience(fake).read("x", failing(2, wait_s=17.0))
    assert fake.slept == [17, 17]


def test_all_waits_of_a_run_share_one_ceiling() -> None:
    fake = FakeClock()
    mine = patience(fake, total_wait_s=50.0)
    mine.read("x", failing(1, wait_s=30.0))
    with pytest.raises(NetworkError) as caught:
        mine.read("y", failing(1, wait_s=30.0))
    assert caught.value.error_id == "remote-wait-too-long"
    assert fake.slept == [30]


def test_a_write_whose_answer_was_lost_is_looked_up_before_it_is_repeated() -> None:
    looks: list[str | None] = [None, "found"]
    tries = 0

    def act() -> str:
        nonlocal tries
        tries += 1
        raise PassingError("lost")

    fake = FakeClock()
    assert patience(fake).write("x", act, lambda: looks.pop(0)) == "found"
    assert (tries, looks) == (2, [])


def test_a_write_that_was_turned_away_is_repeated_without_a_look() -> None:
    def look() -> str | None:
        raise AssertionError("nothing was done, so there is nothing to look for")

    assert patience(FakeClock()).write("x", failing(1, wait_s=5.0), look) == "done"


def test_writes_keep_their_distance_and_their_number_per_hour() -> None:
    fake = FakeClock()
    mine = patience(fake, write_gap_s=2.0, writes_per_hour=5, total_wait_s=1e6)
    for _ in range(6):
        mine.write("x", lambda: "done", lambda: None)
    assert fake.slept[:4] == [2, 2, 2, 2]
    assert fake.at >= 3600
    before = fake.at
    mine.read("y", lambda: "done")
    assert fake.at == before
