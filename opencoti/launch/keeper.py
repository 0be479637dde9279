"""The process between a launcher and its engine. A program of its own: it imports nothing of this project.

It is the parent of the engine, and the reason why no engine outlives its launcher:

- it ends the engine's whole process group when its standard input closes (the launcher ended, however);
- the kernel kills the engine when the keeper itself is killed;
- as "subreaper" it inherits what the engine's children leave behind, and ends and reaps that too;
- it keeps the engine's log file below its cap, so that no reader is needed and no pipe can fill up;
- it ends a shared engine that was let go, once nobody has used it for long enough.

It is started for every launch, so it imports as little as it can: that is where its odd style comes from.

Protocol. In: the length of the plan as a line, the plan (`marshal`), then the lines `detach` or
`stop SECONDS`. Out, lines: `started PID`, `refused ERRNO`, `detached 0`, `ended CODE` (negative for a
signal, `none` if unknown).
"""

# ruff: noqa: SIM105 (contextlib costs start-up time)
from __future__ import annotations

import ctypes
import errno
import marshal
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36
_TICK_S = 0.5
_ORPHAN_GRACE_S = 1.0
_DETACHED_GRACE_S = 10.0
_DEATH_S = 10.0  # for SIGKILL to take effect, on a machine that is busy or swaps
_COPY_BYTES = 1 << 20
_LIBC = ctypes.CDLL(None)


class Keeper:
    """One engine and what is needed to end it. Runs in the main thread of its own process."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.log: str = plan["log"]
        self.max_log_bytes: int = plan["max_log_bytes"]
        self.folder: str = plan["folder"]
        self.launcher: int = plan["launcher"]
        self.plan = plan
        self.is_detached = False
        self.is_orphan = False
        self.is_unused = False
        self.users = Users(plan["users_lock"], plan["idle_s"]) if plan["users_lock"] else None
        self.code: int | None = None
        self.group = 0
        self.stop_grace_s: float | None = None
        self.input = b""

    def start(self) -> bool:
        """Start the engine; tell the launcher whether that worked."""
        argv: list[str] = self.plan["argv"]
        number = self._spawn(argv)
        if number == errno.ENOEXEC and self.plan["is_ape"]:
            # An APE on a kernel that does not know its kind: a shell can run it.
            number = self._spawn(["/bin/sh", *argv])
        _say("refused", number) if number else _say("started", self.group)
        return not number

    def _spawn(self, argv: list[str]) -> int:
        """Start a program; return 0, or the error number that the system gives."""
        reading, writing = os.pipe()
        keeper = os.getpid()
        self.group = os.fork()
        if self.group == 0:
            try:
                self._become(argv, keeper)
            except OSError as exc:
                os.write(writing, b"%d" % (exc.errno or errno.EIO))
            finally:
                os._exit(127)
        os.close(writing)
        answer = os.read(reading, 16)
        os.close(reading)
        if not answer:
            return 0
        os.waitpid(self.group, 0)
        self.group = 0
        return int(answer)

    def _become(self, argv: list[str], keeper: int) -> None:
        """Turn the forked process into the engine; the kernel kills it when the keeper dies."""
        os.setsid()
        for number in (signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:
            os._exit(127)
        # Append mode: after the log was cut, the engine goes on at its new end.
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.chdir(self.plan["cwd"])
        os.execve(argv[0], argv, self.plan["env"])  # noqa: S606

    def run(self) -> int:
        """Watch until the engine has ended or has to, then leave nothing behind; return its exit code."""
        while self.code is None and self.stop_grace_s is None:
            self._wait(_TICK_S)
            self._cap_log()
            self._look_for_users()
        self._end_all(self.stop_grace_s or 0.0)
        self._remove_folder()
        _say("ended", self.code)
        return 0

    def _remove_folder(self) -> None:
        """Remove the files of an engine whose launcher is gone; a living launcher reads the log first."""
        if self.is_orphan or self.is_unused:
            _remove(self.folder, last="lock")
        if self.is_unused and self.plan["lock"] >= 0:
            # Before the lock of the users, which this process holds to its very end: whoever gets that one
            # next may start an engine of the same name.
            os.close(self.plan["lock"])

    def _look_for_users(self) -> None:
        if self.is_detached and self.users is not None and self.users.are_gone():
            self.is_unused = True
            self.stop_grace_s = _DETACHED_GRACE_S

    def _wait(self, timeout_s: float) -> None:
        """Sleep until something happens: an order, the end of a process, or the tick."""
        is_attached = not self.is_detached and not self.is_orphan
        watched = [WAKE[0], sys.stdin.fileno()] if is_attached else [WAKE[0]]
        ready, _, _ = select.select(watched, [], [], timeout_s)
        if WAKE[0] in ready:
            _drain(WAKE[0])
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
            self._obey(line.decode().split())

    def _orphaned(self) -> None:
        self.is_orphan = True
        given = self.stop_grace_s
        self.stop_grace_s = _ORPHAN_GRACE_S if given is None else min(given, _ORPHAN_GRACE_S)

    def _obey(self, words: list[str]) -> None:
        if words[0] == "stop":
            self.stop_grace_s = float(words[1])
        elif words[0] == "detach":
            self.is_detached = True
            null = os.open(os.devnull, os.O_RDWR)
            _say("detached", 0)
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
        end = time.monotonic() + _DEATH_S
        while time.monotonic() < end:
            left = _descendants(os.getpid())
            if not left and not _signal_group(self.group, 0):
                return
            _signal_group(self.group, signal.SIGKILL)
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    pass
            self._reap()
            if select.select([WAKE[0]], [], [], 0.02)[0]:
                _drain(WAKE[0])

    def _cap_log(self) -> None:
        """Move the log to `<name>.1` when it is too long; the two together never exceed the cap by much."""
        half = max(1, self.max_log_bytes // 2)
        try:
            if os.stat(self.log).st_size <= half:
                return
            with open(self.log, "r+b") as source, open(self.log + ".1", "wb") as older:
                source.seek(max(0, source.seek(0, os.SEEK_END) - half))
                while block := source.read(_COPY_BYTES):
                    older.write(block)
                source.truncate(0)
        except OSError:
            # A full disk, or a folder that somebody removed: the engine is worth more than its log.
            pass


class Users:
    """Tells whether anybody uses a shared engine: each user holds a shared lock on one file.

    The kernel drops the lock of a user that dies, however. A use that began and ended between two looks
    shows in the time stamp of the file, which users change; clocks are not compared.
    """

    def __init__(self, path: str, idle_s: float) -> None:
        self.path = path
        self.idle_s = idle_s
        self.last_use_s = time.monotonic()
        self.stamp = 0
        self.handle = -1

    def are_gone(self) -> bool:
        """Look once; tell whether nobody has used the engine for long enough.

        If so, this process holds the lock alone until it ends: a new user waits, and then finds no engine.
        """
        now = time.monotonic()
        is_free, stamp = self._try()
        if not is_free or stamp != self.stamp:
            self.last_use_s, self.stamp = now, stamp
        if is_free and now - self.last_use_s >= self.idle_s:
            return True
        self._close()
        return False

    def _try(self) -> tuple[bool, int]:
        """Take the lock; without its file or folder nobody can use the engine any more."""
        import fcntl

        try:
            self.handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError:
            return True, 0
        is_free = True
        try:
            fcntl.flock(self.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            is_free = False
        return is_free, os.fstat(self.handle).st_mtime_ns

    def _close(self) -> None:
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1


WAKE: list[int] = []
ASKED_TO_END: list[int] = []


def _descendants(pid: int) -> list[int]:
    """Return the live processes below `pid`; zombies are reaped by whoever is their parent."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            state, parent = _state_and_parent(name)
            if state not in ("", "Z"):
                parents.setdefault(parent, []).append(int(name))
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


def _state_and_parent(name: str) -> tuple[str, int]:
    try:
        with open(f"/proc/{name}/stat", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return "", 0
    return fields[0], int(fields[1])


def _remove(path: str, last: str = "") -> None:
    """Remove a folder and what is in it, as far as that is possible; links are not followed.

    The file `last` goes last: without the lock another launch of this name may begin.
    """
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    _remove(entry.path)
                elif entry.name != last:
                    os.unlink(entry.path)
        if last:
            os.unlink(os.path.join(path, last))
        os.rmdir(path)
    except OSError:
        pass


def _drain(handle: int) -> None:
    try:
        os.read(handle, 4096)
    except BlockingIOError:
        pass


def _say(word: str, value: int | None) -> None:
    try:
        os.write(1, f"{word} {'none' if value is None else value}\n".encode())
    except OSError:
        pass


def _read_plan() -> dict[str, Any] | None:
    """Read the plan from standard input; None when the launcher is gone already."""
    data = b""
    wanted = -1
    while wanted < 0 or len(data) < wanted:
        block = os.read(0, 1 << 16)
        if not block:
            return None
        data += block
        if wanted < 0 and b"\n" in data:
            line, _, data = data.partition(b"\n")
            wanted = int(line)
    plan: dict[str, Any] = marshal.loads(data)  # noqa: S302
    return plan


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
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    plan = _read_plan()
    if plan is None:
        return 0
    if plan["lock"] >= 0:
        os.set_inheritable(plan["lock"], False)
    keeper = Keeper(plan)
    return keeper.run() if keeper.start() else 0


if __name__ == "__main__":
    sys.exit(main())
