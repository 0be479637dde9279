"""A server on loopback for downloads: nginx where it is installed, else our own `perf.file_server`."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from opencoti.errors import BuildError

_READY_S = 30.0
_CONFIG = """
daemon off; master_process off; pid {scratch}/pid; error_log {scratch}/error.log;
events {{ worker_connections 256; }}
http {{
  access_log off; sendfile on; tcp_nopush on; keepalive_requests 100000;
  client_body_temp_path {scratch}/1; proxy_temp_path {scratch}/2; fastcgi_temp_path {scratch}/3;
  uwsgi_temp_path {scratch}/4; scgi_temp_path {scratch}/5;
  server {{ listen 127.0.0.1:{port}; root {folder}; }}
}}
"""


@dataclass(frozen=True, kw_only=True)
class Served:
    """A folder that can be downloaded from: `name` says by which server."""

    base: str
    name: str


@contextmanager
def serving(folder: Path, scratch: Path) -> Iterator[Served]:
    """Serve a folder at full speed while the block runs; `scratch` takes what nginx writes.

    Raises:
        BuildError: `bench-server-failed`.
    """
    program = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin") or shutil.which("nginx")
    if program is None:
        with serving_by_ourselves(folder) as base:
            yield Served(base=base, name="perf.file_server (nginx is not installed)")
        return
    with _nginx(program, folder, scratch) as base:
        yield Served(base=base, name="nginx")


@contextmanager
def serving_by_ourselves(folder: Path, *options: str) -> Iterator[str]:
    """Serve a folder with `perf.file_server` and its options; give the base address."""
    argv = [sys.executable, "-m", "perf.file_server", str(folder), *options]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.stdin.close()


@contextmanager
def _nginx(program: str, folder: Path, scratch: Path) -> Iterator[str]:
    scratch.mkdir()
    port = _free_port()
    config = scratch / "nginx.conf"
    config.write_text(_CONFIG.format(scratch=scratch, port=port, folder=folder))
    with subprocess.Popen([program, "-p", scratch, "-c", config], stderr=subprocess.DEVNULL) as server:
        try:
            _await(server, port, scratch)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _await(server: subprocess.Popen[bytes], port: int, scratch: Path) -> None:
    deadline = time.monotonic() + _READY_S
    while server.poll() is None and time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    log = scratch / "error.log"
    raise BuildError(
        "bench-server-failed",
        "nginx does not serve",
        why=log.read_text()[-300:] if log.exists() else f"it ended with {server.poll()}",
        hint="remove nginx to measure with our own server",
    )
