"""A bench with a stand-in engine, and the proofs that nothing is left."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from opencoti import procfs
from opencoti.errors import OpencotiError
from opencoti.launch.engine import Engine, launch
from opencoti.launch.environment import MARK_VARIABLE
from opencoti.launch.options import LaunchOptions
from tests.conftest import ROOT, RecordedConsole
from tests.fakes.engine import Mode, write_artifact

FORKING = "fork"
GONE_S = 30.0
"""How long a process may take to end whose end is certain, on a busy machine."""


class Bench:
    """A cache folder, a model and stand-in engines of one test."""

    def __init__(self, root: Path, console: RecordedConsole) -> None:
        self.root = root
        self.console = console
        self.cache = root / "cache"
        self.model = root / "tiny.gguf"
        self.model.write_bytes(b"GGUF")
        self.environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(root),
            "OPENCOTI_CACHE_DIR": str(self.cache),
            "BENCH": str(root),
        }

    @property
    def engines(self) -> Path:
        return self.cache / "engines"

    def artifact(self, mode: Mode, **words: object) -> Path:
        return write_artifact(self.root / f"{mode}.llamafile", mode, **words)  # type: ignore[arg-type]

    def forking_artifact(self, mode: Mode) -> Path:
        """A shell script that stays the parent of the engine, as some loaders do."""
        path = self.artifact(mode)
        path.write_text(path.read_text().replace("exec ", "") + "\nexit $?\n")
        return path

    def resisting_artifact(self) -> Path:
        """An engine that loads for ever; it writes to the pipe `resists` once it ends only by SIGKILL."""
        os.mkfifo(self.root / "resists")
        path = self.root / "resisting.llamafile"
        path.write_text('#!/bin/sh\ntrap "" TERM\necho > "$BENCH/resists"\nexec sleep 600\n')
        path.chmod(0o755)
        return path

    def options(self, mode: Mode, **words: object) -> LaunchOptions:
        options = LaunchOptions(binary=self.artifact(mode), model=self.model, timeout_s=30)
        return replace(options, **words)  # type: ignore[arg-type]

    def launch(self, mode: Mode, **words: object) -> Engine:
        return launch(self.options(mode, **words), self.console.console, environ=self.environ)

    def fail(self, mode: Mode, **words: object) -> OpencotiError:
        with pytest.raises(OpencotiError) as caught:
            self.launch(mode, **words)
        return caught.value

    def launched_elsewhere(self, script: str) -> subprocess.Popen[str]:
        """Run Python code in another process, after the lines that import the launcher."""
        head = (
            "import os, sys, signal\n"
            "from pathlib import Path\n"
            "from opencoti.launch import launch, LaunchOptions\n"
            "root = Path(os.environ['BENCH'])\n"
            "options = LaunchOptions(binary=Path(sys.argv[1]), model=root / 'tiny.gguf', timeout_s=30)\n"
        )
        return subprocess.Popen(
            [sys.executable, "-c", head + script, str(self.root / "chosen.llamafile")],
            env={**self.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )

    def processes(self) -> list[int]:
        """Every live process that belongs to a launch of this bench."""
        needle = f"BENCH={self.root}".encode()
        found = []
        for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
            with suppress(OSError):
                data = Path(f"/proc/{pid}/environ").read_bytes()
                if MARK_VARIABLE.encode() in data and needle in data and procfs.identify(pid):
                    found.append(pid)
        return found

    def require_nothing_left(self) -> None:
        assert self.processes() == []
        assert list(self.engines.glob("*")) == []
        assert is_childless()


def is_childless() -> bool:
    """No child of this process is left, zombies included."""
    try:
        pid, _ = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return True
    return pid == -1


def wait_gone(pid: int, timeout_s: float) -> bool:
    """Wait until a process has ended; tell whether it has."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        ready, _, _ = select.select([handle], [], [], timeout_s)
        return bool(ready)
    finally:
        os.close(handle)


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def bench(tmp_path: Path, recorded: RecordedConsole) -> Iterator[Bench]:
    bench = Bench(tmp_path, recorded)
    yield bench
    for pid in bench.processes():
        with suppress(ProcessLookupError):
            os.kill(pid, 9)
