"""One engine for many programs: real processes, killed at every moment that matters (case B47)."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from dataclasses import replace

import pytest

from opencoti.errors import BusyError, MissingError, OpencotiError
from opencoti.launch.probe import Address, ask
from opencoti.launch.ready import Cancelled
from opencoti.tier import Health, TierProvider
from opencoti.tier.users import UserLock
from tests.integration.launch.conftest import GONE_S, is_open, wait_gone
from tests.integration.tier.conftest import TierBench

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the launcher reads /proc")

HOLD = "lease = tier.acquire(); say(url=lease.url, engine=lease.model, pid=os.getpid()); signal.pause()"
USE = "with tier.acquire() as lease: say(url=lease.url, healthy=is_healthy(lease))"


def test_nothing_runs_before_somebody_needs_it(bench: TierBench) -> None:
    tier = bench.tier()
    assert tier.health() == Health(status="stopped")
    assert tier.health().is_usable
    assert tier.capabilities.slots is None
    assert bench.processes() == []


def test_first_lease_starts_the_engine_and_the_second_finds_it(bench: TierBench) -> None:
    tier = bench.tier()
    assert isinstance(tier, TierProvider)
    with tier.acquire() as lease, bench.tier().acquire() as other:
        assert lease.url == other.url
        assert lease.model == "tiny.gguf"
        assert lease.is_alive
        assert tier.health() == Health(status="ready", url=lease.url, model="tiny.gguf")
        with lease.client() as client:
            assert client.models() == ("tiny.gguf",)
    assert not lease.is_alive
    assert tier.stop()
    assert not tier.stop()
    bench.require_nothing_left()


def test_programs_that_start_at_once_share_one_engine(bench: TierBench) -> None:
    programs = [bench.program(HOLD) for _ in range(5)]
    heard = [program.hear() for program in programs]
    assert len({item["url"] for item in heard}) == 1
    assert len(bench.processes()) == 1
    with pytest.raises(BusyError) as caught:
        bench.tier().stop()
    assert caught.value.error_id == "tier-in-use"


def test_engine_outlives_the_program_that_started_it(bench: TierBench) -> None:
    first = bench.program(HOLD)
    url = first.hear()["url"]
    second = bench.program(HOLD)
    assert second.hear()["url"] == url
    first.kill()
    assert bench.program(USE).hear() == {"url": url, "healthy": True}


def test_engine_ends_some_time_after_the_last_user_was_killed(bench: TierBench) -> None:
    holder = bench.program(HOLD, idle_s=0.3)
    holder.hear()
    state = bench.state()
    assert state is not None
    holder.kill()
    assert wait_gone(state.engine.pid, GONE_S)
    assert wait_gone(state.keeper.pid, GONE_S)
    assert not is_open(state.port)
    bench.require_nothing_left()


def test_engine_stays_while_somebody_holds_it_however_short_the_rest(bench: TierBench) -> None:
    tier = bench.tier(idle_s=0)
    with tier.acquire() as lease:
        state = bench.state()
        assert state is not None
        # Two looks of the keeper and more.
        assert not wait_gone(state.engine.pid, 1.3)
        assert lease.is_alive
    assert wait_gone(state.keeper.pid, GONE_S)
    assert tier.health().status == "stopped"
    bench.require_nothing_left()


def test_next_user_after_the_rest_starts_another_engine(bench: TierBench) -> None:
    tier = bench.tier(idle_s=0)
    tier.acquire().release()
    first = bench.state()
    assert first is not None
    assert wait_gone(first.keeper.pid, GONE_S)
    with tier.acquire():
        second = bench.state()
    assert second is not None
    assert second.engine.pid != first.engine.pid


def test_nobody_ever_gets_an_engine_that_is_just_ending(bench: TierBench) -> None:
    """The rest is so short that each lease races with the keeper's decision to end the engine."""
    script = (
        "for _ in range(12):\n"
        "    with tier.acquire() as lease:\n"
        "        assert is_healthy(lease)\n"
        "        time.sleep(0.01 * (os.getpid() % 7))\n"
        "    time.sleep(0.05 * (os.getpid() % 5))\n"
        "say(done=True)"
    )
    programs = [bench.program(script, idle_s=0) for _ in range(3)]
    assert [program.hear() for program in programs] == [{"done": True}] * 3


def test_starter_killed_while_the_engine_loads_leaves_the_start_to_the_next(bench: TierBench) -> None:
    bench.set_mode("never-ready")
    starter = bench.program(HOLD)
    assert bench.wait_until(lambda: bench.processes() and bench.state())
    waiting = bench.program(HOLD)
    loading = bench.state()
    assert loading is not None
    assert bench.wait_until(lambda: bench.tier().health().status == "starting")
    bench.set_mode("good")
    starter.kill()
    assert waiting.hear()["url"]
    assert wait_gone(loading.engine.pid, GONE_S)
    assert len(bench.processes()) == 1


@pytest.mark.parametrize("moment", ["before", "after"])
def test_starter_killed_around_the_moment_it_lets_the_engine_go(bench: TierBench, moment: str) -> None:
    script = (
        "from opencoti.launch.child import Child\n"
        "let_go = Child.detach\n"
        "def killed(self):\n"
        f"    {'let_go(self)' if moment == 'after' else 'pass'}\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "Child.detach = killed\n"
        "tier.acquire()"
    )
    starter = bench.program(script, idle_s=2)
    assert starter.process.wait(30) == -signal.SIGKILL
    assert bench.program(USE).hear()["healthy"]
    assert bench.wait_until(lambda: len(bench.processes()) == 1)
    state = bench.state()
    assert state is not None
    assert not state.is_transient


def test_engine_that_died_is_replaced(bench: TierBench) -> None:
    tier = bench.tier()
    lease = tier.acquire()
    bench.lose_engine()
    assert not lease.is_alive
    lease.release()
    assert tier.health().status == "stopped"
    with tier.acquire() as new:
        assert new.is_alive
        assert is_open(int(new.url.rsplit(":", 1)[1]))


def test_engine_with_other_options_is_replaced_only_while_nobody_uses_it(bench: TierBench) -> None:
    tier = bench.tier()
    wide = replace(
        bench.options("good"), binary=bench.binary, parallel=2, arguments=("--ctx-size", "64"), timeout_s=30
    )
    other = bench.tier(options=wide)
    with tier.acquire():
        before = bench.state()
        with pytest.raises(BusyError) as caught:
            other.acquire()
        assert caught.value.error_id == "tier-other-options"
        with bench.tier(options=wide, name="wide").acquire() as elsewhere:
            assert elsewhere.is_alive
    assert before is not None
    with other.acquire():
        after = bench.state()
        assert after is not None
        assert after.fingerprint != before.fingerprint
        assert wait_gone(before.engine.pid, GONE_S)


def test_failed_start_is_told_and_leaves_nothing(bench: TierBench) -> None:
    bench.set_mode("dies-at-start")
    with pytest.raises(MissingError) as caught:
        bench.tier().acquire()
    assert caught.value.error_id == "engine-died"
    bench.require_nothing_left()
    bench.set_mode("good")
    with bench.tier().acquire() as lease:
        assert lease.is_alive


def test_waiting_for_others_ends(bench: TierBench) -> None:
    lock = UserLock.try_take(bench.cache / "tiers" / "local" / "users", "alone")
    assert lock is not None
    tier = bench.tier(wait_s=0.05)
    assert tier.health().status == "starting"
    with pytest.raises(BusyError) as caught:
        tier.acquire()
    assert caught.value.error_id == "tier-busy"
    lock.release()


def test_start_that_nobody_wants_any_more_is_given_up(bench: TierBench) -> None:
    bench.set_mode("never-ready")
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(Cancelled):
        bench.tier().acquire(cancel=cancel)
    bench.require_nothing_left()


def test_asynchronous_lease_and_its_cancellation(bench: TierBench) -> None:
    async def main() -> None:
        tier = bench.tier()
        async with await tier.acquire_async() as lease, lease.async_client() as client:
            assert await client.models() == ("tiny.gguf",)
        tier.stop()
        bench.set_mode("never-ready")
        task = asyncio.create_task(tier.acquire_async())
        while not bench.processes():
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    bench.require_nothing_left()


def test_folder_that_cannot_be_written_is_told(bench: TierBench) -> None:
    bench.cache.write_text("a file where the folder should be")
    tier = bench.tier()
    assert tier.health().status == "failed"
    with pytest.raises(OpencotiError) as caught:
        tier.acquire()
    assert caught.value.exit_code == 8


def test_forked_child_does_not_keep_a_lease_that_was_given_back(bench: TierBench) -> None:
    script = (
        "lease = tier.acquire()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    signal.pause()\n"
        "lease.release()\n"
        "say(child=child)\n"
    )
    child = bench.program(script, idle_s=0.1).hear()["child"]
    state = bench.state()
    try:
        assert state is None or wait_gone(state.engine.pid, GONE_S)
    finally:
        os.kill(child, signal.SIGKILL)


def test_measured_capabilities_come_with_the_lease(bench: TierBench) -> None:
    with bench.tier().acquire() as lease:
        port = int(lease.url.rsplit(":", 1)[1])
        assert ask(Address(host="127.0.0.1", port=port), "/props", timeout_s=5).status == 200
        assert lease.capabilities.has_chat
        assert lease.capabilities.reuse == "slots"
