"""Programs that start, end, kill or wait for one engine in the same moment (case B47)."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from opencoti.errors import BusyError
from opencoti.launch.engine import Engine, launch
from opencoti.launch.state import State
from opencoti.tier import Lease, local
from opencoti.tier.users import Mode, UserLock
from tests.conftest import RecordedConsole
from tests.integration.launch.conftest import GONE_S, wait_gone
from tests.integration.tier.conftest import TierBench

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the launcher reads /proc")


def require_another_engine(bench: TierBench, left: int) -> None:
    """Get a lease, and see that it is on an engine that stays, the only one, not on the one that was left."""
    with bench.tier().acquire() as lease:
        state = bench.state()
        assert state is not None
        assert not state.is_transient
        assert state.engine.pid != left
        assert wait_gone(left, 0)
        assert state.url == lease.url
        assert bench.tier().health().status == "ready"
        assert len(bench.processes()) == 1
    assert bench.tier().stop()
    assert bench.processes() == []


def test_starter_killed_while_an_engine_loads_that_takes_its_time_to_end(bench: TierBench) -> None:
    (bench.root / "mode").write_text(str(bench.resisting_artifact()))
    starter = bench.program("tier.acquire()")
    (bench.root / "resists").read_text()  # SIGTERM is ignored from here on
    assert bench.wait_until(lambda: bench.state() is not None, GONE_S)
    left = bench.state()
    assert left is not None
    bench.set_mode("good")
    starter.kill()
    require_another_engine(bench, left.engine.pid)


@pytest.mark.parametrize("is_forking", [True, False], ids=["fork", "exec"])
def test_keeper_is_killed_and_the_engine_survives_or_not(bench: TierBench, *, is_forking: bool) -> None:
    if is_forking:
        (bench.root / "mode").write_text(str(bench.forking_artifact("good")))
    bench.tier().acquire().release()
    left = bench.state()
    assert left is not None
    os.kill(left.keeper.pid, signal.SIGKILL)
    assert wait_gone(left.keeper.pid, GONE_S)
    if is_forking:
        assert left.condition() == "ready"
    bench.set_mode("good")
    require_another_engine(bench, left.engine.pid)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_starter_killed_around_the_moment_its_keeper_hears_that_the_engine_stays(
    bench: TierBench, moment: str
) -> None:
    """Before it, the keeper ends the engine, which takes a second here; after it, nobody has use for it."""
    bench.set_mode("ignores-sigterm" if moment == "before" else "good")
    script = (
        "from opencoti.launch.child import Child\n"
        "real = Child.detach\n"
        "def killed(self):\n"
        f"    {'real(self)' if moment == 'after' else 'pass'}\n"
        "    say(engine=self.engine.pid, keeper=self.keeper.pid)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "Child.detach = killed\n"
        "tier.acquire()\n"
    )
    starter = bench.program(script)
    left = starter.hear()
    starter.process.wait()
    bench.set_mode("good")
    require_another_engine(bench, left["engine"])
    assert wait_gone(left["keeper"], 0)


class Waiting:
    """Somebody in this process who waits for a lease; those who run are told apart by their consoles."""

    def __init__(self, bench: TierBench, **words: Any) -> None:
        self.console = RecordedConsole()
        self.tier = bench.tier(console=self.console.console, **words)
        self.lease: Future[Lease] = Future()
        threading.Thread(target=self._acquire, daemon=True).start()

    @property
    def has_looked(self) -> bool:
        return "waiting for the engine" in self.console.text

    def _acquire(self) -> None:
        try:
            self.lease.set_result(self.tier.acquire())
        except BaseException as exc:
            self.lease.set_exception(exc)


@contextmanager
def waiting_for(bench: TierBench, count: int, **words: Any) -> Iterator[list[Waiting]]:
    """Yield so many who have looked and could not have the engine; their leases are given back."""
    waiting = [Waiting(bench, **words) for _ in range(count)]
    assert bench.wait_until(lambda: all(one.has_looked for one in waiting))
    yield waiting
    for one in waiting:
        one.lease.result(timeout=50).release()


def require_one_engine(bench: TierBench, waiting: list[Waiting]) -> str:
    """See that all got leases on the same engine, the only one; return where it listens."""
    (url,) = {one.lease.result(timeout=50).url for one in waiting}
    assert len(bench.processes()) == 1
    return url


def test_those_who_wait_to_start_an_engine_join_the_one_that_another_started(bench: TierBench) -> None:
    """All have seen that nothing runs; one of them starts an engine and keeps it, the others share it."""
    lock = UserLock.try_take(bench.cache / "tiers" / "local" / "users", "alone")
    assert lock is not None
    with waiting_for(bench, 4) as waiting:
        lock.release()
        require_one_engine(bench, waiting)


def test_those_who_want_the_same_other_options_share_the_engine_that_one_of_them_started(
    bench: TierBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_TAKE_OVER_S", 40.0)
    lease = bench.tier().acquire()
    wide = replace(bench.options("good"), binary=bench.binary, parallel=2, timeout_s=30)
    with waiting_for(bench, 3, options=wide) as waiting:
        lease.release()
        assert require_one_engine(bench, waiting) != lease.url


def test_other_options_wait_while_the_engine_is_just_being_ended(
    bench: TierBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A keeper that ends an idle engine has the lock alone: nobody uses that engine, so it is no refusal."""
    monkeypatch.setattr(local, "_TAKE_OVER_S", 0.0)
    bench.tier().acquire().release()
    lock = UserLock.try_take(bench.cache / "tiers" / "local" / "users", "alone")
    assert lock is not None
    wide = replace(bench.options("good"), binary=bench.binary, parallel=2, timeout_s=30)
    waiting = Waiting(bench, options=wide)
    assert bench.wait_until(lambda: waiting.has_looked or waiting.lease.done())
    lock.release()
    with waiting.lease.result(timeout=50) as lease:
        assert lease.is_alive


def test_stop_waits_while_the_engine_is_just_being_ended(
    bench: TierBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_TAKE_OVER_S", 0.0)
    bench.tier().acquire().release()
    lock = UserLock.try_take(bench.cache / "tiers" / "local" / "users", "alone")
    assert lock is not None
    take, looks = UserLock.try_take, 0

    def counted(path: Path, mode: Mode) -> UserLock | None:
        nonlocal looks
        looks += 1
        if looks == 5:
            lock.release()
        return take(path, mode)

    monkeypatch.setattr(UserLock, "try_take", counted)
    assert bench.tier().stop()
    assert looks >= 5


def test_lease_of_an_engine_that_died_keeps_nobody_from_another_one(bench: TierBench) -> None:
    """Whoever holds it may be busy with something else, or be the same program that wants the new one."""
    tier = bench.tier()
    old = tier.acquire()
    bench.lose_engine()
    with tier.acquire() as new:
        assert new.is_alive
        assert not old.is_alive
        old.release()
        with pytest.raises(BusyError) as caught:
            bench.tier().stop()
        assert caught.value.error_id == "tier-in-use"
    assert tier.stop()


def test_lease_never_hangs_on_a_lock_that_was_forgotten(
    bench: TierBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between lock and look the engine died, another program forgot its leases, and a third started one."""
    tier = bench.tier()
    bench.tier().acquire().release()
    take = UserLock.try_take

    def take_and_lose(path: Path, mode: Mode) -> UserLock | None:
        lock = take(path, mode)
        if mode == "shared" and lock is not None:
            monkeypatch.setattr(UserLock, "try_take", take)
            lock.forget()
        return lock

    monkeypatch.setattr(UserLock, "try_take", take_and_lose)
    with tier.acquire(), pytest.raises(BusyError) as caught:
        bench.tier().stop()
    assert caught.value.error_id == "tier-in-use"


def test_engine_that_dies_as_soon_as_it_is_let_go_is_not_started_for_ever(bench: TierBench) -> None:
    starts: list[int] = []

    def start(*given: Any, **words: Any) -> Engine:
        assert len(starts) < 40, "there is no end of it"
        engine = launch(*given, **words)
        let_go = engine.detach
        starts.append(engine.state.engine.pid)

        def detach() -> State:
            state = let_go()
            os.kill(state.engine.pid, signal.SIGKILL)
            assert wait_gone(state.keeper.pid, GONE_S)
            return state

        engine.detach = detach  # type: ignore[method-assign]
        return engine

    with pytest.raises(BusyError) as caught:
        bench.tier(start=start, wait_s=0.5).acquire()
    assert caught.value.error_id == "tier-busy"
    assert starts
    assert bench.processes() == []
