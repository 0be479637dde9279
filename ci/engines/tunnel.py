"""A daemon on another machine over ssh: its socket, forwarded to one of ours by the `ssh` program.

`ssh` reads the user's own configuration, keys and agent. It never asks anything, since nobody may be there to
answer. It ends with `close`, and by the kernel when this process dies.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import weakref
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from ci import process
from ci.engines.endpoint import Endpoint
from opencoti.errors import MissingError, NetworkError

_REMOTE_SOCKET: Final = "/var/run/docker.sock"
_READY: Final = "opencoti-tunnel-ready"
# A host or user that starts with a dash would be an option of ssh.
_OPTIONS: Final = (
    "BatchMode=yes",
    "ConnectTimeout=15",
    "ServerAliveInterval=15",
    "ServerAliveCountMax=4",
    "ExitOnForwardFailure=yes",
    "StreamLocalBindUnlink=yes",
    "ControlPath=none",
    "PermitLocalCommand=yes",
    f"LocalCommand=echo {_READY}",
)
_LINES_SHOWN: Final = 3


class Tunnel:
    """A running `ssh`; `endpoint` is its near end."""

    def __init__(self, endpoint: Endpoint, child: subprocess.Popen[bytes], folder: Path) -> None:
        self.endpoint = endpoint
        self._close = weakref.finalize(self, _end, child, folder)

    def close(self) -> None:
        """End it."""
        self._close()


def open_tunnel(endpoint: Endpoint, *, program: str = "ssh") -> Tunnel:
    """Forward the socket of `ssh://[user@]host[:port][/path/of/the/socket]`; returns when it is connected.

    Raises:
        MissingError: `docker-ssh-malformed`, or `program-missing`: there is no `ssh`.
        NetworkError: `docker-ssh-failed`, with what ssh said.
    """
    folder = Path(tempfile.mkdtemp(prefix="opencoti-ssh-"))
    log = folder / "log"
    try:
        command = ssh_command(endpoint, folder / "docker.sock", program=_find(program))
        with open(log, "wb") as file:
            child = process.spawn(command, log=file)
        if not _is_ready(child, log):
            raise _failed(endpoint, log)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    near = Endpoint(url=f"unix://{folder}/docker.sock", origin=endpoint.origin, shown=endpoint.url)
    return Tunnel(near, child, folder)


def ssh_command(endpoint: Endpoint, near: Path, *, program: str) -> list[str]:
    """Return the command that forwards the socket of an address to `near`.

    Raises:
        MissingError: `docker-ssh-malformed`.
    """
    parts = urlsplit(endpoint.url)
    host, user = parts.hostname or "", parts.username or ""
    try:
        port = parts.port
    except ValueError:
        host, port = "", None
    if not host or host.startswith("-") or user.startswith("-") or parts.password or parts.query:
        raise MissingError(
            "docker-ssh-malformed",
            f"cannot use the container engine at {endpoint.origin}",
            why="the address is not ssh://[user@]host[:port][/path/of/the/socket]",
            hint=f"correct {endpoint.origin}; keys and passwords are ssh's own business",
        )
    options = [word for option in _OPTIONS for word in ("-o", option)]
    place = parts.path.rstrip("/") or _REMOTE_SOCKET
    where = (["-l", user] if user else []) + (["-p", str(port)] if port else [])
    return [program, "-NT", *options, "-L", f"{near}:{place}", *where, "--", host]


def _find(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise MissingError(
            "program-missing",
            f"cannot run {program}",
            why="it is not on PATH, and the container engine is to be reached through it",
            hint="install the OpenSSH client, or unset DOCKER_HOST",
        )
    return found


def _is_ready(child: subprocess.Popen[bytes], log: Path) -> bool:
    """Wait until ssh says that it is connected, or ends."""
    while True:
        if _READY in log.read_text(encoding="utf-8", errors="replace"):
            return True
        try:
            child.wait(timeout=0.05)
        except subprocess.TimeoutExpired:
            continue
        return False


def _failed(endpoint: Endpoint, log: Path) -> NetworkError:
    said = log.read_text(encoding="utf-8", errors="replace").split("\n")
    lines = [line.strip() for line in said if line.strip()][-_LINES_SHOWN:]
    return NetworkError(
        "docker-ssh-failed",
        f"cannot reach the container engine at {endpoint}",
        why=f"ssh said: {'; '.join(lines)[:300] or 'nothing'}",
        hint="`ssh` to that host must work without a question (a key or an agent, a known host)",
    )


def _end(child: subprocess.Popen[bytes], folder: Path) -> None:
    process.terminate(child)
    shutil.rmtree(folder, ignore_errors=True)
