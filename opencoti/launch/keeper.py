"""The process between a launcher and its engine. A program of its own: it imports nothing of this project.

It is the parent of the engine, and the reason why no engine outlives its launcher:

- it ends the engine's whole process group when its standard input closes (the launcher ended, however);
- the kernel kills the engine when the keeper itself is killed;
- as "subreaper" it inherits what the engine's children leave behind, and ends and reaps that too;
- it keeps the engine's log file below its cap, so that no reader is needed and no pipe can fill up.

Protocol, JSON lines. In: the plan, then `{"do": "detach"}` or `{"do": "stop", "grace_s": …}`. Out:
`{"started": pid}`, `{"refused": errno}`, `{"detached": true}`, `{"ended": code}`; a signal is a negative code.
"""

# The launcher may run this file under any Python 3.11 or later with `-I -S`.
from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36
_TICK_S = 0.5
_ORPHAN_GRACE_S = 1.0
_DETACHED_GRACE_S = 10.0
_COPY_BYTES = 1 << 20
_MAX_LINE_BYTES = 4 << 20


class Keeper:
    """One engine and what is needed to end it. Runs in the main thread of its own process."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.log: str = plan["log"]
        self.max_log_bytes: int = plan["max_log_bytes"]
        self.folder: str = plan["folder"]
        self.is_transient: bool = plan["is_transient"]
        self.launcher: int = plan["launcher"]
        self.plan = plan
        self.is_detached = False
        self.is_orphan = False
        self.code: int | None = None
        self.group = 0
        self.stop_grace_s: float | None = None
        self.input = b""

    def start(self) -> bool:
        """Start the engine; tell the launcher whether that worked."""
        argv: list[str] = self.plan["argv"]
        try:
            self.group = self._spawn(argv)
        except OSError as exc:
            if exc.errno != errno.ENOEXEC or self.plan["is_elf"]:
                return _refuse(exc)
            # A file without ELF header on a kernel that does not know its kind: a shell can run it.
            try:
                self.group = self._spawn(["/bin/sh", *argv])
            except OSError as second:
                return _refuse(second)
        _say({"started": self.group})
        return True

    def _spawn(self, argv: list[str]) -> int:
        # Append mode: after the log was cut, the engine goes on at its new end.
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        keeper = os.getpid()
        try:
            process = subprocess.Popen(  # noqa: S603
                argv,
                cwd=self.plan["cwd"],
                env=self.plan["env"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=lambda: _die_with(keeper),
            )
        finally:
            os.close(log)
        process.returncode = 0  # reaped below, with all the others
        return process.pid

    def run(self) -> int:
        """Watch until the engine has ended or has to, then leave nothing behind; return its exit code."""
        while self.code is None and self.stop_grace_s is None:
            self._wait(_TICK_S)
            self._cap_log()
        self._end_all(self.stop_grace_s or 0.0)
        self._remove_folder()
        _say({"ended": self.code})
        return 0

    def _remove_folder(self) -> None:
        """Remove the files of an engine whose launcher is gone; a living launcher reads the log first."""
        if self.is_transient and self.is_orphan:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _wait(self, timeout_s: float) -> None:
        """Sleep until something happens: an order, the end of a process, or the tick."""
        is_attached = not self.is_detached and not self.is_orphan
        watched = [WAKE[0], sys.stdin.fileno()] if is_attached else [WAKE[0]]
        ready, _, _ = select.select(watched, [], [], timeout_s)
        if WAKE[0] in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(WAKE[0], 4096)
        if sys.stdin.fileno() in ready:
            self._read_orders()
        elif is_attached and os.getppid() != self.launcher:
            # A forked child of the launcher may still hold the pipe open.
            self._orphaned()
        if ASKED_TO_END and self.stop_grace_s is None:
            self.stop_grace_s = _DETACHED_GRACE_S
        self._reap()

    def _read_orders(self) -> None:
        data = os.read(sys.stdin.fileno(), 65536)
        if not data:
            self._orphaned()
            return
        self.input += data
        *lines, self.input = self.input.split(b"\n")
        for line in lines:
            self._obey(json.loads(line))

    def _orphaned(self) -> None:
        self.is_orphan = True
        given = self.stop_grace_s
        self.stop_grace_s = _ORPHAN_GRACE_S if given is None else min(given, _ORPHAN_GRACE_S)

    def _obey(self, order: dict[str, Any]) -> None:
        if order["do"] == "stop":
            self.stop_grace_s = float(order["grace_s"])
        elif order["do"] == "detach":
            self.is_detached, self.is_transient = True, False
            null = os.open(os.devnull, os.O_RDWR)
            _say({"detached": True})
            for handle in (0, 1, 2):
                os.dup2(null, handle)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.group:
                self.code = os.waitstatus_to_exitcode(status)

    def _end_all(self, grace_s: float) -> None:
        """Ask the group to end, wait, then kill it and everything that came out of it."""
        end = time.monotonic() + grace_s
        if self.code is None:
            _signal_group(self.group, signal.SIGTERM)
        self.stop_grace_s = grace_s
        while self.code is None and time.monotonic() < end:
            self._wait(max(0.0, min(_TICK_S, end - time.monotonic())))
            self._cap_log()
            end = min(end, time.monotonic() + self.stop_grace_s)
        for _ in range(50):
            left = _descendants(os.getpid())
            if not left and not _signal_group(self.group, 0):
                return
            _signal_group(self.group, signal.SIGKILL)
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            self._reap()
            select.select([WAKE[0]], [], [], 0.02)

    def _cap_log(self) -> None:
        """Move the log to `<name>.1` when it is too long; the two together never exceed the cap by much."""
        half = max(1, self.max_log_bytes // 2)
        with contextlib.suppress(OSError):
            if os.stat(self.log).st_size <= half:
                return
            with open(self.log, "r+b") as source, open(self.log + ".1", "wb") as older:
                size = source.seek(0, os.SEEK_END)
                source.seek(max(0, size - half))
                shutil.copyfileobj(source, older, _COPY_BYTES)
                source.truncate(0)


WAKE: list[int] = []
ASKED_TO_END: list[int] = []


def _die_with(keeper: int) -> None:
    """Have the kernel kill this process when the keeper dies; runs in the child before the engine does."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != keeper:
        os._exit(1)


def _descendants(pid: int) -> list[int]:
    """Return the live processes below `pid`; zombies are reaped by whoever is their parent."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
                if fields[0] != "Z":
                    parents.setdefault(int(fields[1]), []).append(int(name))
    found, queue = [], [pid]
    while queue:
        children = parents.get(queue.pop(), [])
        found += children
        queue += children
    return found


def _signal_group(group: int, number: int) -> bool:
    """Signal a process group; tell whether it has a member."""
    if group <= 1:
        return False
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _say(message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(message).encode() + b"\n")


def _refuse(exc: OSError) -> bool:
    _say({"refused": exc.errno or errno.EIO})
    return False


def _prepare_signals() -> None:
    reading, writing = os.pipe()
    for handle in (reading, writing):
        os.set_blocking(handle, False)
    WAKE.extend((reading, writing))
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: ASKED_TO_END.append(1))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def main() -> int:
    """Read the plan and keep the engine."""
    _prepare_signals()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    data = b""
    while b"\n" not in data and len(data) < _MAX_LINE_BYTES:
        block = os.read(0, 65536)
        if not block:
            return 0
        data += block
    line, _, rest = data.partition(b"\n")
    keeper = Keeper(json.loads(line))
    keeper.input = rest
    return keeper.run() if keeper.start() else 0


if __name__ == "__main__":
    sys.exit(main())
