"""Launches of one name that come between each other, with real processes (case B47)."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from opencoti import procfs
from opencoti.errors import MissingError, StorageError
from opencoti.launch.child import Child, ChildPlan
from opencoti.launch.options import LaunchOptions, Sharing
from opencoti.launch.ready import Waiter
from opencoti.launch.state import STATE_NAME, read_state
from opencoti.launch.stopping import stop_engine
from tests.conftest import RecordedConsole
from tests.fakes.engine import Mode
from tests.integration.launch.conftest import GONE_S, Bench, is_open, wait_gone

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the launcher reads /proc")


def test_name_of_a_shared_engine_is_had_once_the_engine_of_a_killed_starter_has_ended(bench: Bench) -> None:
    """The starter dies before it wrote down anything: only the lock tells that something is ending."""
    bench.resisting_artifact().rename(bench.root / "chosen.llamafile")
    script = (
        "from dataclasses import replace\n"
        "from opencoti.launch import engine\n"
        "def killed(*_):\n"
        "    open(root / 'resists').read()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "engine.write_state = killed\n"
        "launch(replace(options, name='e'))\n"
    )
    with bench.launched_elsewhere(script) as starter:
        assert starter.wait(60) == -signal.SIGKILL
    assert not (bench.engines / "e" / STATE_NAME).exists()
    sharing = Sharing(fingerprint="f", users_lock=bench.root / "users", idle_s=None)
    with bench.launch("good", name="e", sharing=sharing) as engine:
        assert is_open(engine.port)
        assert read_state(bench.engines / "e") == engine.state
        assert len(bench.processes()) == 1
    bench.require_nothing_left()


def test_engine_whose_notes_cannot_be_written_when_it_is_let_go_is_ended(bench: Bench) -> None:
    engine = bench.launch("good", name="e")
    (bench.engines / "e" / f".{STATE_NAME}.tmp").mkdir()  # as a full disk, for every user
    with engine:
        with pytest.raises(StorageError):
            engine.detach()
        assert wait_gone(engine.pid, GONE_S)
        assert bench.processes() == []
        assert engine.state.is_transient
    bench.require_nothing_left()


def test_launcher_leaves_the_folder_to_the_next_launch_of_its_name(bench: Bench) -> None:
    with bench.launch("good", name="e") as first:
        stop_engine(bench.engines, first.state, grace_s=GONE_S)
        second = bench.launch("good", name="e")
    assert read_state(bench.engines / "e") == second.state
    second.stop()
    bench.require_nothing_left()


def test_second_stop_leaves_the_folder_to_the_next_launch_of_its_name(bench: Bench) -> None:
    with bench.launch("good", name="e") as first:
        first.stop()
        second = bench.launch("good", name="e")
    assert read_state(bench.engines / "e") == second.state
    second.stop()
    bench.require_nothing_left()


class LateChild(Child):
    """An engine of which it is known only after a while that it has ended, as on a busy machine."""

    def __init__(self, process: subprocess.Popen[bytes], plan: ChildPlan) -> None:
        super().__init__(process, plan)
        who = procfs.identify(process.pid)
        assert who is not None
        self.engine = who
        self.process = process

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait: who waits a moment sees no end, who waits a second sees one without any news of it."""
        if timeout_s is not None and timeout_s < 2:
            if timeout_s >= 0.5:
                self.process.wait(GONE_S)
            return False
        self.code = self.process.wait(timeout_s)
        return True


@pytest.fixture
def late_child(bench: Bench) -> Iterator[LateChild]:
    mode: Mode = "dies-answering"
    words = [str(bench.artifact(mode)), "--model", str(bench.model), "--alias", "a"]
    words += ["--host", "127.0.0.1", "--port", "0"]
    plan = ChildPlan(
        argv=words,
        env=bench.environ,
        cwd=bench.root,
        folder=bench.root,
        log=bench.root / "log",
        lock=-1,
        mark="ab" * 16,
        is_ape=False,
        max_log_bytes=1 << 20,
    )
    with open(plan.log, "wb") as log, subprocess.Popen(words, env=bench.environ, stderr=log) as process:
        yield LateChild(process, plan)
        process.kill()


def test_news_of_a_death_that_comes_late_is_waited_for(
    bench: Bench, late_child: LateChild, recorded: RecordedConsole
) -> None:
    options = LaunchOptions(model=bench.model, timeout_s=60)
    waiter = Waiter(
        late_child, options, log=bench.root / "log", alias="a", api_key="", console=recorded.console
    )
    with pytest.raises(MissingError) as caught:
        waiter.wait()
    assert caught.value.error_id == "engine-died"
    assert "7" in caught.value.what
