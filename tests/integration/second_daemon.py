"""A second dockerd on a loopback port that sees no folder of the test: stands for one on another machine."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from ci.engines.client import EngineClient
from ci.engines.endpoint import Daemon, Endpoint, probe

# In a mount namespace of its own, with an empty folder over the one that is hidden.
_START = 'mount --make-rprivate / && mount -t tmpfs none "$1" && shift && exec "$@"'


@dataclass
class SecondDaemon:
    """A running daemon; `process` is it."""

    url: str
    process: subprocess.Popen[bytes]
    folder: Path

    @property
    def daemon(self) -> Daemon:
        return probe(Endpoint(url=self.url, origin="test"))

    def kill(self) -> None:
        """End it the hard way, as a crash would."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@contextmanager
def second_daemon(hidden: Path, *, data: Path | None = None) -> Iterator[SecondDaemon]:
    """Run a daemon that finds `hidden` empty while the block runs; `data` is where it keeps everything."""
    # Short, since its sockets lie there.
    folder = Path(tempfile.mkdtemp(prefix="ocd-", dir="/tmp"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    command = ["unshare", "-m", "sh", "-c", _START, "sh", str(hidden), "dockerd", "-H", url]
    command += ["--data-root", str(data or folder / "data"), "--exec-root", str(folder / "exec")]
    command += ["--pidfile", str(folder / "pid"), "--bridge=none", "--iptables=false"]
    command += ["-H", f"unix://{folder}/docker.sock", "--log-level=info"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        try:
            _wait_until_it_listens(process.stderr)
            with subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL):
                try:
                    yield SecondDaemon(url=url, process=process, folder=folder)
                finally:
                    process.terminate()
                    process.wait()
        finally:
            process.terminate()
            process.wait()
            _end_containers(folder)
            shutil.rmtree(folder, ignore_errors=True)


def _wait_until_it_listens(log: IO[bytes]) -> None:
    """Read the log up to the daemon's own word that it is ready; it ends when the daemon failed."""
    lines: list[bytes] = []
    for line in log:
        lines.append(line)
        if b"API listen on 127.0.0.1" in line:
            return
    pytest.fail("dockerd ended: " + b"".join(lines[-5:]).decode(errors="replace"))


def _end_containers(folder: Path) -> None:
    """End what a killed daemon left running; the programs that look after its containers name its folder."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (entry / "cmdline").read_bytes()
            if str(folder).encode() not in command or b"containerd-shim" not in command:
                continue
            children = (entry / "task" / entry.name / "children").read_text().split()
            # The first process of a container takes all others of it along.
            for pid in (*children, entry.name):
                os.kill(int(pid), signal.SIGKILL)


def copy_image(source: EngineClient, target: EngineClient, tag: str) -> None:
    """Bring an image from one daemon to another."""
    for _ in target.stream.load_image(source.stream.get_image(tag)):
        pass
