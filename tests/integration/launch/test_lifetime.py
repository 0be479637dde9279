"""How engines end: with their block, with their launcher however it dies, and by order of another process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from opencoti import procfs
from opencoti.errors import BusyError, MissingError
from opencoti.launch import launch_async
from opencoti.launch.engine import launch
from opencoti.launch.ready import Cancelled
from opencoti.launch.state import known_states, read_state
from opencoti.launch.stopping import stop_engine
from tests.conftest import ROOT
from tests.fakes.engine import Mode
from tests.integration.launch.conftest import GONE_S, Bench, is_open, wait_gone

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the launcher reads /proc")


def test_engine_is_ready_in_its_block_and_gone_after_it(bench: Bench) -> None:
    with bench.launch("good") as engine:
        assert engine.url == f"http://127.0.0.1:{engine.port}"
        assert is_open(engine.port)
        state = read_state(bench.engines / engine.state.name)
        assert state == engine.state
        assert state is not None
        assert state.condition() == "ready"
    assert not is_open(engine.port)
    assert engine.exit_code == 0
    bench.require_nothing_left()


def test_stopping_twice_is_stopping_once(bench: Bench) -> None:
    engine = bench.launch("good")
    assert engine.stop() == 0
    assert engine.stop() == 0


def test_engine_that_ignores_sigterm_is_killed_after_its_grace(bench: Bench) -> None:
    engine = bench.launch("ignores-sigterm")
    assert engine.stop(grace_s=0.2) == -signal.SIGKILL
    bench.require_nothing_left()


@pytest.mark.parametrize("mode", ["leaves-child", "leaves-detached-child"])
def test_what_the_engine_leaves_is_ended_too(bench: Bench, mode: Mode) -> None:
    engine = bench.launch(mode)
    assert len(bench.processes()) == 2
    engine.stop()
    bench.require_nothing_left()


def test_death_of_the_engine_is_noticed_and_explained(bench: Bench) -> None:
    with bench.launch("good") as engine:
        os.kill(engine.pid, signal.SIGSEGV)
        assert engine.wait(GONE_S)
        with pytest.raises(MissingError) as caught:
            engine.require_alive()
        assert "SIGSEGV" in caught.value.what
    bench.require_nothing_left()


def test_several_launches_at_once_do_not_disturb_each_other(bench: Bench) -> None:
    with bench.launch("good") as one, bench.launch("good") as two:
        assert one.port != two.port
        assert len(list(known_states(bench.engines))) == 2
        one.stop()
        assert is_open(two.port)


def test_second_launch_of_a_name_says_where_the_first_is(bench: Bench) -> None:
    with bench.launch("good", name="mine") as engine:
        with pytest.raises(BusyError) as caught:
            bench.launch("good", name="mine")
        assert caught.value.error_id == "engine-name-taken"
        assert engine.url in caught.value.why


def test_launch_from_a_thread_outlives_the_thread(bench: Bench) -> None:
    found = []
    thread = threading.Thread(target=lambda: found.append(bench.launch("good")))
    thread.start()
    thread.join()
    with found[0] as engine:
        assert not engine.wait(0.3)
        assert is_open(engine.port)


@contextmanager
def launcher(
    bench: Bench, mode: Mode, *, is_forking: bool
) -> Iterator[tuple[subprocess.Popen[str], dict[str, int]]]:
    """Another process that launched an engine and waits."""
    made = bench.forking_artifact(mode) if is_forking else bench.artifact(mode)
    made.rename(bench.root / "chosen.llamafile")
    script = (
        "import json\n"
        "engine = launch(options)\n"
        "print(json.dumps({'engine': engine.state.engine.pid, 'keeper': engine.state.keeper.pid,"
        " 'port': engine.port}), flush=True)\n"
        "signal.pause()\n"
    )
    with bench.launched_elsewhere(script) as process:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())
        process.kill()


@pytest.mark.parametrize("is_forking", [False, True], ids=["exec", "fork"])
@pytest.mark.parametrize("mode", ["good", "ignores-sigterm"])
def test_engine_ends_when_its_launcher_is_killed_case_b47(bench: Bench, mode: Mode, is_forking: bool) -> None:
    with launcher(bench, mode, is_forking=is_forking) as (process, found):
        process.kill()
        assert wait_gone(found["engine"], GONE_S)
        assert wait_gone(found["keeper"], GONE_S)
    assert not is_open(found["port"])
    bench.require_nothing_left()


def test_engine_ends_when_its_keeper_is_killed(bench: Bench) -> None:
    with bench.launch("good") as engine:
        os.kill(engine.state.keeper.pid, signal.SIGKILL)
        assert wait_gone(engine.pid, GONE_S)
        assert engine.wait(GONE_S)
    bench.require_nothing_left()


def test_engine_ends_when_launcher_and_keeper_are_killed_and_its_folder_with_the_next_launch(
    bench: Bench,
) -> None:
    with launcher(bench, "ignores-sigterm", is_forking=False) as (process, found):
        for pid in (found["keeper"], process.pid):
            os.kill(pid, signal.SIGKILL)
        assert wait_gone(found["engine"], GONE_S)
    assert bench.processes() == []
    assert len(list(bench.engines.iterdir())) == 1
    with bench.launch("good"):
        pass
    bench.require_nothing_left()


def test_engine_ends_when_its_launcher_is_killed_while_it_loads(bench: Bench) -> None:
    notes = bench.root / "pid"
    bench.artifact("never-ready", notes=notes).rename(bench.root / "chosen.llamafile")
    with bench.launched_elsewhere("launch(options)\n") as process:
        while not (notes.exists() and notes.read_text().strip()):
            assert process.poll() is None
            os.sched_yield()
        process.kill()
        assert wait_gone(int(notes.read_text()), GONE_S)


def test_second_interruption_during_the_grace_leaves_nothing(bench: Bench) -> None:
    bench.artifact("ignores-sigterm").rename(bench.root / "chosen.llamafile")
    script = (
        "from opencoti.launch.child import Child\n"
        "engine = launch(options)\n"
        "try:\n"
        "    print(engine.pid, flush=True)\n"
        "    signal.pause()\n"
        "except KeyboardInterrupt:\n"
        "    wait = Child.wait\n"
        "    def told(self, timeout_s=None):\n"
        "        print('stopping', flush=True)\n"
        "        return wait(self, timeout_s)\n"
        "    Child.wait = told\n"
        "    engine.stop(grace_s=60)\n"
    )
    with bench.launched_elsewhere(script) as process:
        assert process.stdout is not None
        engine = int(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "stopping\n"
        process.send_signal(signal.SIGINT)
        assert wait_gone(engine, GONE_S)
        process.wait(GONE_S)
    bench.require_nothing_left()


def test_forked_child_of_the_launcher_does_not_keep_the_engine_alive(bench: Bench) -> None:
    bench.artifact("good").rename(bench.root / "chosen.llamafile")
    script = (
        "engine = launch(options)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    signal.pause()\n"
        "print(engine.pid, child, flush=True)\n"
        "signal.pause()\n"
    )
    with bench.launched_elsewhere(script) as process:
        assert process.stdout is not None
        engine, child = map(int, process.stdout.readline().split())
        process.kill()
        gone = wait_gone(engine, GONE_S)
        os.kill(child, signal.SIGKILL)
        assert gone


def test_started_engine_outlives_its_launcher_and_is_stopped_by_name(bench: Bench) -> None:
    engine = launch(bench.options("good", name="e"), environ=bench.environ)
    with engine:
        state = engine.detach()
    assert is_open(state.port)
    assert not state.is_transient
    done = stop_engine(bench.engines, state, grace_s=10)
    assert done.outcome == "stopped"
    assert not is_open(state.port)
    assert bench.processes() == []
    assert list(bench.engines.iterdir()) == []


@pytest.mark.parametrize("mode", ["ignores-sigterm", "leaves-detached-child"])
def test_started_engine_that_resists_is_killed(bench: Bench, mode: Mode) -> None:
    state = launch(bench.options(mode), environ=bench.environ).detach()
    stop_engine(bench.engines, state, grace_s=0.3)
    assert bench.processes() == []


def test_started_engine_without_its_keeper_is_gone_or_stopped(bench: Bench) -> None:
    state = launch(bench.options("good"), environ=bench.environ).detach()
    os.kill(state.keeper.pid, signal.SIGKILL)
    assert wait_gone(state.engine.pid, GONE_S)
    assert state.condition() == "stale"


def test_asynchronous_launch_and_its_cancellation(bench: Bench) -> None:
    async def main() -> None:
        async with await launch_async(bench.options("good"), environ=bench.environ) as engine:
            assert is_open(engine.state.port)
        task = asyncio.create_task(launch_async(bench.options("never-ready"), environ=bench.environ))
        while not bench.processes():
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    bench.require_nothing_left()


def test_launch_that_nobody_wants_any_more_is_given_up(bench: Bench) -> None:
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(Cancelled):
        launch(bench.options("never-ready"), environ=bench.environ, cancel=cancel)
    bench.require_nothing_left()


class Shell:
    """The command line, in a process of its own."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "opencoti.launch", *words],
            env={**self.bench.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.bench.root,
        )

    def run(self, *words: str) -> tuple[int, str, str]:
        with self.start(*words) as process:
            out, err = process.communicate(timeout=60)
        return process.returncode, out.strip(), err


def words_of(bench: Bench, mode: Mode) -> list[str]:
    return ["--binary", str(bench.artifact(mode)), "--model", str(bench.model)]


def test_commands_from_start_to_stop(bench: Bench) -> None:
    shell = Shell(bench)
    code, url, err = shell.run("start", *words_of(bench, "good"), "--", "--ctx-size", "64")
    assert (code, url[:17]) == (0, "http://127.0.0.1:"), err
    code, out, _ = shell.run("status", "--json")
    found = json.loads(out)
    assert (code, found[0]["url"], found[0]["condition"]) == (0, url, "ready")
    argv = Path(f"/proc/{found[0]['engine']['pid']}/cmdline").read_text().split("\0")
    assert "--ctx-size" in argv
    code, out, _ = shell.run("logs", "--lines", "1")
    assert (code, "POST" in out or "GET" in out) == (0, True)
    assert shell.run("start", *words_of(bench, "good"))[0] == 9
    assert shell.run("stop")[:2] == (0, "engine: stopped")
    assert shell.run("status")[:2] == (0, "no engine")
    assert shell.run("stop")[0] == 4
    assert shell.run("stop", "--all")[:2] == (0, "nothing to stop")


def test_engine_whose_address_cannot_be_told_is_ended(bench: Bench) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "opencoti.launch", "start", *words_of(bench, "good")],
            env={**bench.environ, "PYTHONPATH": str(ROOT)},
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    assert done.returncode == 8
    bench.require_nothing_left()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_run_stays_until_it_is_told_to_end(bench: Bench, number: int, code: int) -> None:
    with Shell(bench).start("run", *words_of(bench, "good")) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().rsplit(":", 1)[1])
        process.send_signal(number)
        process.communicate(timeout=30)
    assert process.returncode == code
    assert not is_open(port)
    bench.require_nothing_left()


def test_run_says_when_the_engine_dies(bench: Bench) -> None:
    with Shell(bench).start("run", *words_of(bench, "good"), "--json") as process:
        assert process.stdout is not None
        line = ""
        while '"pid"' not in line:
            line = process.stdout.readline()
        (state,) = known_states(bench.engines)
        os.kill(state.engine.pid, signal.SIGABRT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 4
    assert "SIGABRT" in err


def test_usage_errors_have_their_code(bench: Bench) -> None:
    shell = Shell(bench)
    assert shell.run("start", "--gpu", "nvida")[0] == 2
    assert shell.run("start", "--host", "0.0.0.0")[0] == 2
    assert shell.run("start", "--bogus")[0] == 2
    assert shell.run("status", "none")[0] == 4
    assert procfs.identify(os.getpid()) is not None
