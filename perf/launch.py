"""The launcher against starting the engine by hand: from nothing to the first token, and its memory.

They take turns, so that a busy moment of the machine falls on all of them: start the artifact with the tiny
model, wait until it is healthy, have one token made. The difference of each pair is what counts. "By hand" is
the least that a program can do: start, ask every 4 ms, ask for a token.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ci.artifacts import newest_artifact
from ci.context import Context
from ci.paths import Layout
from ci.smoke.model import VOCABULARY, cached_model
from opencoti import procfs
from opencoti.errors import BuildError
from opencoti.launch import LaunchOptions, launch
from opencoti.launch.probe import Address, NoAnswerError, ask
from perf.measure import Report, Sample

LIMIT_MS = 50.0
LIMIT_MB = 60.0
_POLL_S = 0.004
_TOKEN = {"prompt": "a", "max_tokens": 1}


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is started, and in which surroundings."""

    artifact: Path
    model: Path
    environ: Mapping[str, str]

    @property
    def options(self) -> LaunchOptions:
        """The same engine for the launcher."""
        return LaunchOptions(binary=self.artifact, model=self.model)


@contextmanager
def prepared(layout: Layout) -> Iterator[Case]:
    """Make a case with a home of its own, in which the artifact is extracted already."""
    with tempfile.TemporaryDirectory(prefix="opencoti-bench-") as scratch:
        environ = {
            "HOME": scratch,
            "PATH": os.environ["PATH"],
            "OPENCOTI_CACHE_DIR": f"{scratch}/cache",
            "PYTHONPATH": str(layout.root),
        }
        model = cached_model(layout, layout.sources / "llama.cpp" / VOCABULARY)
        yield Case(artifact=newest_artifact(layout), model=model, environ=environ)


def run(context: Context, *, runs: int) -> Report:
    """Measure pairs: by hand, then with the launcher, and with its command."""
    with prepared(context.layout) as case:
        ways = {
            "by hand": by_hand,
            "opencoti.launch": by_launcher,
            "python -m opencoti.launch start": by_command,
        }
        seconds = in_turns(case, ways, runs=runs)
        memory = launcher_memory(case)
    samples = [Sample(name=name, seconds=tuple(found)) for name, found in seconds.items()]
    hand = seconds["by hand"]
    more = {
        name: statistics.median(a - b for a, b in zip(found, hand, strict=True)) * 1000
        for name, found in seconds.items()
        if name != "by hand"
    }
    facts: dict[str, object] = {f"{name} adds": f"{ms:.1f} ms" for name, ms in more.items()}
    facts |= {name: f"{size / 1e6:.1f} MB" for name, size in memory.items()}
    facts["limits"] = f"launcher adds at most {LIMIT_MS:.0f} ms and holds less than {LIMIT_MB:.0f} MB"
    return Report(title="launch to first token", samples=samples, facts=facts)


def in_turns(case: Case, ways: Mapping[str, Callable[[Case], float]], *, runs: int) -> dict[str, list[float]]:
    """Return the seconds of each way, after one round that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(runs + 1):
        for name, way in ways.items():
            found = way(case)
            if number:
                seconds[name].append(found)
    return seconds


def by_hand(case: Case) -> float:
    """Start the artifact and make one token; return how long that took."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = [str(case.artifact), "--model", str(case.model), "--host", "127.0.0.1", "--port", str(port)]
    started = time.perf_counter()
    with subprocess.Popen(
        argv, env=dict(case.environ), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as engine:
        try:
            address = Address(host="127.0.0.1", port=port)
            _wait_healthy(engine, address)
            ask(address, "/v1/completions", body=_TOKEN, timeout_s=60)
            return time.perf_counter() - started
        finally:
            engine.terminate()


def _wait_healthy(engine: subprocess.Popen[bytes], address: Address) -> None:
    while engine.poll() is None:
        try:
            if ask(address, "/health", timeout_s=5).status == 200:
                return
        except NoAnswerError:
            pass
        time.sleep(_POLL_S)
    raise BuildError("bench-command-failed", "the engine ended before it was ready")


def by_launcher(case: Case) -> float:
    """Launch the artifact, which makes one token; return how long that took."""
    started = time.perf_counter()
    with launch(case.options, environ=case.environ):
        return time.perf_counter() - started


def by_command(case: Case) -> float:
    """Launch it from a shell; return how long that took."""
    python = [sys.executable, "-m", "opencoti.launch"]
    words = ["start", "--binary", str(case.artifact), "--model", str(case.model), "--quiet"]
    started = time.perf_counter()
    try:
        _command([*python, *words], case)
        return time.perf_counter() - started
    finally:
        _command([*python, "stop", "--all", "--quiet"], case)


def _command(argv: list[str], case: Case) -> None:
    done = subprocess.run(argv, env=dict(case.environ), capture_output=True, check=False)
    if done.returncode:
        raise BuildError("bench-command-failed", f"{argv[3]} ended with {done.returncode}")


def launcher_memory(case: Case) -> dict[str, int]:
    """Return what the processes of a running `launch run` hold, without the engine, in bytes."""
    argv = [sys.executable, "-m", "opencoti.launch", "run", "--binary", str(case.artifact)]
    with subprocess.Popen(
        [*argv, "--model", str(case.model), "--quiet"],
        env=dict(case.environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as command:
        try:
            assert command.stdout is not None
            command.stdout.readline()
            from opencoti.launch.state import engines_folder, known_states

            (state,) = known_states(engines_folder(case.environ))
            found = {
                "launcher holds": procfs.resident_bytes(command.pid),
                "keeper holds": procfs.resident_bytes(state.keeper.pid),
            }
            return {**found, "both hold": sum(found.values())}
        finally:
            command.terminate()
