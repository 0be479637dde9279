"""One engine process: started from an artifact, waited for, stopped, and proved gone.

The port is the engine's own choice (port 0) and is read off the kernel's socket table, so that nobody can
take it in between and no log has to be parsed. An answer counts only when it comes from a socket that a
process of this run holds (case B45).
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Protocol

from ci import process
from ci.smoke.emulation import Emulator
from ci.smoke.failures import died_error, log_tail, start_error
from ci.smoke.loopback import Loopback
from ci.smoke.scratch import MARK_VARIABLE, Scratch
from opencoti import procfs
from opencoti.errors import OpencotiError, VerificationError
from opencoti.formats import is_ape
from opencoti.procfs import Listener

_POLL_S: Final = 0.05
_PROBE_TIMEOUT_S: Final = 5.0
_CLEAN_EXITS: Final = (0, -signal.SIGTERM, 128 + signal.SIGTERM)
MAX_LOG_BYTES: Final = 256 << 20


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How long each phase may take, in seconds."""

    version_s: float = 120.0
    ready_s: float = 180.0
    request_s: float = 120.0
    stop_s: float = 15.0


class Child(Protocol):
    """The part of `subprocess.Popen` that a server needs."""

    pid: int

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end. Raises `subprocess.TimeoutExpired`."""


class Server:
    """A running engine. Whoever made it calls `stop` (proves the end) or `kill` (ends it at any price)."""

    def __init__(self, child: Child, *, scratch: Scratch, log: Path) -> None:
        self.child: Child = child
        self.log = log
        self.listener: Listener | None = None
        self.engine_pid = child.pid
        self._mark = f"{MARK_VARIABLE}={scratch.mark}"

    @property
    def port(self) -> int:
        """The port it listens on; known once it is ready."""
        assert self.listener is not None, "wait_ready comes first"
        return self.listener.port

    def client(self) -> Loopback:
        """Return a client of it; known once it is ready."""
        return Loopback(self.port)

    def members(self) -> tuple[int, ...]:
        """Return every live process of this engine."""
        return procfs.members(self.child.pid, self._mark)

    def require_alive(self, what: str) -> None:
        """Raise when the engine ended by itself, or floods its log."""
        code = self.child.poll()
        if code is not None:
            raise died_error(code, self.log, what=what)
        if self.log.stat().st_size > MAX_LOG_BYTES:
            raise VerificationError(
                "smoke-log-flood",
                f"the engine wrote more than {MAX_LOG_BYTES >> 20} MiB of log",
                hint=f"the log is {self.log}",
            )

    def wait_ready(self, *, port: int, timeout_s: float) -> None:
        """Wait until the engine has a socket of its own and says that it is ready.

        Args:
            port: the port it was told to take, 0 when it chooses.
            timeout_s: after this many seconds it has failed.

        Raises:
            VerificationError: `smoke-died`, `smoke-port-taken`, `smoke-open-to-all`, `smoke-not-ready`.
            MissingError: `smoke-hijacked`.
        """
        end = time.monotonic() + timeout_s
        state = "it does not listen on any port"
        while time.monotonic() < end:
            listener = self._find_listener(port)
            if listener is not None:
                self.listener = listener
                state = self._health(listener.port)
                if not state:
                    return
            elif port:
                self._require_own_port(port)
            self._pause(port)
        raise VerificationError(
            "smoke-not-ready",
            f"the engine was not ready within {timeout_s:.0f} s",
            why=f"{state}; its last lines:\n{log_tail(self.log)}",
            hint=f"the full log is {self.log}",
        )

    def _find_listener(self, port: int) -> Listener | None:
        """Return the socket of this run that listens (on `port`, if given)."""
        sockets = procfs.sockets_of(self.members())
        found = [item for item in procfs.listeners() if item.inode in sockets and port in (0, item.port)]
        for item in found:
            if not item.is_loopback:
                raise VerificationError(
                    "smoke-open-to-all", f"the engine listens on port {item.port} beyond this machine"
                )
            self.engine_pid = sockets[item.inode]
        return found[0] if found else None

    def _require_own_port(self, port: int) -> None:
        """Fail when somebody outside this run listens on our port (case B45)."""
        others = [item for item in procfs.listeners() if item.port == port]
        # Looked at again: ours may have come up between the two readings.
        if others and self._find_listener(port) is None:
            raise _port_taken(port, others[0])

    def _health(self, port: int) -> str:
        """Return what is missing, empty when the engine says it is ready."""
        with Loopback(port) as client:
            reply = client.probe("/health", timeout_s=_PROBE_TIMEOUT_S)
        if reply is None:
            return f"port {port} is open and /health does not answer"
        return "" if reply.status == 200 else f"/health says {reply.status}"

    def _pause(self, port: int) -> None:
        with suppress(subprocess.TimeoutExpired):
            self.child.wait(timeout=_POLL_S)
        if self.child.poll() is not None and port:
            self._require_own_port(port)
        self.require_alive("before it was ready")

    def stop(self, *, grace_s: float) -> int:
        """End the engine with SIGTERM and prove that nothing is left; return its exit code.

        Raises:
            VerificationError: `smoke-ignores-sigterm`, `smoke-bad-exit`, `smoke-left-processes`,
                `smoke-left-port`.
        """
        self.require_alive("before it was told to")
        self.ask_to_stop()
        try:
            code = self.child.wait(timeout=grace_s)
        except subprocess.TimeoutExpired as exc:
            raise VerificationError(
                "smoke-ignores-sigterm",
                f"the engine still ran {grace_s:.0f} s after SIGTERM",
                why=f"its last lines:\n{log_tail(self.log)}",
                hint=f"the full log is {self.log}",
            ) from exc
        if code not in _CLEAN_EXITS:
            raise died_error(code, self.log, what="when it was told to stop")
        self._prove_gone(grace_s)
        return code

    def ask_to_stop(self) -> None:
        """Send SIGTERM."""
        os.killpg(self.child.pid, signal.SIGTERM)

    def _prove_gone(self, grace_s: float) -> None:
        end = time.monotonic() + grace_s
        while (left := self.members()) and time.monotonic() < end:
            time.sleep(_POLL_S)
        if left:
            names = ", ".join(f"{pid} ({procfs.executable(pid)})" for pid in left)
            raise VerificationError(
                "smoke-left-processes", "the engine left processes behind", why=f"still running: {names}"
            )
        if self.listener is not None and self.listener.inode in {item.inode for item in procfs.listeners()}:
            raise VerificationError("smoke-left-port", f"port {self.listener.port} is still held")

    def kill(self) -> None:
        """End every process of the engine at once. Does nothing when all are gone."""
        if isinstance(self.child, subprocess.Popen) and self.child.poll() is None:
            process.terminate(self.child, grace_s=1.0)
        for pid in self.members():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def _port_taken(port: int, listener: Listener) -> VerificationError:
    return VerificationError(
        "smoke-port-taken",
        f"port {port} is in use by another program",
        why=f"{procfs.owner_of(listener)} listens there",
        hint="stop it, or choose another port",
    )


def launch(
    artifact: Path,
    arguments: Sequence[str],
    *,
    scratch: Scratch,
    log: IO[bytes],
    emulator: Emulator | None = None,
    variables: Mapping[str, str] | None = None,
) -> Server:
    """Start an artifact in its scratch folders, emulated or not; an APE may need a shell.

    `variables` are added to the few that it gets.

    Raises:
        MissingError: `smoke-interpreter-missing`, `smoke-cannot-start`.
        StorageError: `smoke-not-executable`, `smoke-noexec`, `smoke-not-permitted`.
    """
    environment = scratch.environment(os.environ) | dict(variables or {})
    environment |= emulator.variables if emulator else {}
    before = emulator.prefix if emulator else ()

    def start(prefix: Sequence[str | Path]) -> subprocess.Popen[bytes]:
        return process.spawn([*prefix, *arguments], log=log, cwd=scratch.work, env=environment)

    try:
        child = start([*before, artifact])
    except OSError as exc:
        child = _retry_with_shell(exc, artifact, start)
    return Server(child, scratch=scratch, log=Path(log.name))


def _retry_with_shell(
    refused: OSError, artifact: Path, start: Callable[[Sequence[str | Path]], subprocess.Popen[bytes]]
) -> subprocess.Popen[bytes]:
    """Start an APE the way a shell would, on a kernel that does not know its format."""
    error: OpencotiError = start_error(refused, artifact)
    if refused.errno != errno.ENOEXEC or not is_ape(artifact):
        raise error from refused
    try:
        return start(["/bin/sh", artifact])
    except OSError as exc:
        raise error from exc
