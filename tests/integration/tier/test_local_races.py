"""Starters and keepers of a shared engine that are killed before another program has its turn (case B47)."""

from __future__ import annotations

import os
import signal
import sys

import pytest

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
