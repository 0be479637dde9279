"""A bench whose programs share the engine of one tier, each in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from opencoti.launch.options import LaunchOptions
from opencoti.launch.state import State, read_state
from opencoti.launch.stopping import stop_engine
from opencoti.tier.local import LocalTier
from tests.conftest import ROOT, RecordedConsole
from tests.fakes.engine import Mode
from tests.integration.launch.conftest import GONE_S, Bench, wait_gone

HEAD = """
import json, os, signal, sys, time
from pathlib import Path
from opencoti.launch.options import LaunchOptions
from opencoti.launch.probe import Address, ask
from opencoti.tier import LocalTier
root = Path(os.environ["BENCH"])
words = json.loads(sys.argv[2])
tier = LocalTier(LaunchOptions(binary=Path(sys.argv[1]), model=root / "tiny.gguf", timeout_s=30), **words)

def say(**data):
    print(json.dumps(data), flush=True)

def is_healthy(lease):
    host, port = lease.url.removeprefix("http://").split(":")
    return ask(Address(host=host, port=int(port)), "/health", timeout_s=10).status == 200
"""


@dataclass
class Program:
    """Another process that uses the tier; it says things as lines of JSON."""

    process: subprocess.Popen[str]

    def hear(self) -> dict[str, Any]:
        """Return the next thing it says."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the program ended"
        result: dict[str, Any] = json.loads(line)
        return result

    def kill(self) -> None:
        """End it without any warning."""
        self.process.kill()
        self.process.wait()


class TierBench(Bench):
    """Programs, and the engine that they share."""

    def __init__(self, root: Path, console: RecordedConsole) -> None:
        super().__init__(root, console)
        self.programs: list[Program] = []
        self.binary = root / "shared.llamafile"
        self.set_mode("good")

    def set_mode(self, mode: Mode) -> None:
        """Choose what the next engine does; the file that programs name stays the same one."""
        (self.root / "mode").write_text(str(self.artifact(mode)))
        if not self.binary.exists():
            self.binary.write_text('#!/bin/sh\nexec "$(cat "$BENCH/mode")" "$@"\n')
            self.binary.chmod(0o755)

    def program(self, script: str, **words: Any) -> Program:
        """Start a process that makes the tier and runs `script`."""
        process = subprocess.Popen(
            [sys.executable, "-c", HEAD + script, str(self.binary), json.dumps(words)],
            env={**self.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        self.programs.append(Program(process))
        return self.programs[-1]

    def tier(self, *, options: LaunchOptions | None = None, **words: Any) -> LocalTier:
        wanted = LaunchOptions(binary=self.binary, model=self.model, timeout_s=30)
        given = {"environ": self.environ, "console": self.console.console} | words
        return LocalTier(options or wanted, **given)

    def state(self, name: str = "local") -> State | None:
        return read_state(self.engines / f"tier-{name}")

    def lose_engine(self) -> None:
        """Have the engine die, as for want of memory."""
        state = self.state()
        assert state is not None
        os.kill(state.engine.pid, signal.SIGKILL)
        assert wait_gone(state.keeper.pid, GONE_S)

    def wait_until(self, is_so: Any, timeout_s: float = 15.0) -> bool:
        """Wait for something that another process does; tell whether it came."""
        end = time.monotonic() + timeout_s
        while not is_so():
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        return True

    def close(self) -> None:
        for program in self.programs:
            if program.process.stdout:
                program.process.stdout.close()
            program.kill()
        for folder in self.engines.glob("tier-*"):
            state = read_state(folder)
            if state is not None:
                stop_engine(self.engines, state, grace_s=1)
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, 9)


@pytest.fixture
def bench(tmp_path: Path, recorded: RecordedConsole) -> Iterator[TierBench]:
    bench = TierBench(tmp_path, recorded)
    yield bench
    bench.close()
