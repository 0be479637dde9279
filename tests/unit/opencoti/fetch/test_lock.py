"""The lock of a target: with flock, without it, with dead and with quick neighbours."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from opencoti.errors import BusyError, StorageError
from opencoti.fetch.lock import STALE_AFTER_S, LockTools, real_tools, target_lock


def no_flock(handle: int) -> None:
    raise OSError(errno.ENOTSUP, "not on this file system")


class Time:
    """A clock that advances by what is slept, and may do something at each sleep."""

    def __init__(self, at_sleep: Callable[[], None] = lambda: None) -> None:
        self.now = 0.0
        self.at_sleep = at_sleep

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.at_sleep()

    def clock(self) -> float:
        return self.now


def beat_tools(time: Time) -> LockTools:
    return LockTools(flock=no_flock, sleep=time.sleep, clock=time.clock)


def test_second_waits_and_is_told_who_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    told: list[str] = []
    with target_lock(path, told.append):
        inner = target_lock(
            path, told.append, tools=LockTools(flock=real_tools().flock, sleep=lambda s: _stop())
        )
        with pytest.raises(KeyboardInterrupt), inner:
            pass
    assert told == [str(os.getpid())]
    with target_lock(path, told.append):
        pass
    assert path.exists()


def _stop() -> None:
    raise KeyboardInterrupt


def test_without_flock_a_free_lock_is_taken_and_given_back(tmp_path: Path) -> None:
    with target_lock(tmp_path / "lock", lambda holder: None, tools=beat_tools(Time())) as held:
        held.require_held()
        assert held.path.name == "lock.held"
    assert not held.path.exists()


def test_without_flock_a_dead_holder_blocks_for_the_stale_time_only(tmp_path: Path) -> None:
    (tmp_path / "lock.held").write_text("4242 dead\n")
    time, told = Time(), list[str]()
    with target_lock(tmp_path / "lock", told.append, tools=beat_tools(time)) as held:
        held.require_held()
    assert told == ["4242"]
    assert STALE_AFTER_S <= time.now < STALE_AFTER_S + 1
    assert sorted(os.listdir(tmp_path)) == ["lock"]


def test_without_flock_a_living_holder_is_waited_for(tmp_path: Path) -> None:
    other = tmp_path / "lock.held"
    other.write_text("4242 alive\n")
    beats = [0]

    def beat() -> None:
        beats[0] += 1
        if beats[0] == 1000:
            other.unlink()
        elif beats[0] < 1000:
            os.utime(other, ns=(beats[0], beats[0]))

    time = Time(beat)
    with target_lock(tmp_path / "lock", lambda holder: None, tools=beat_tools(time)):
        pass
    assert time.now == pytest.approx(100.0)


def test_holder_that_was_taken_over_notices_before_it_places_anything(tmp_path: Path) -> None:
    with target_lock(tmp_path / "lock", lambda holder: None, tools=beat_tools(Time())) as held:
        held.path.unlink()
        held.path.write_text("other")
        with pytest.raises(BusyError) as caught:
            held.require_held()
    assert (caught.value.error_id, caught.value.exit_code) == ("lock-lost", 9)
    assert held.path.read_text() == "other"


def test_lock_that_is_a_link_is_refused(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "lock").symlink_to(victim)
    with pytest.raises(StorageError), target_lock(tmp_path / "lock", lambda holder: None):
        pass
    assert victim.read_text() == "precious"
