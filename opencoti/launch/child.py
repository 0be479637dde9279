"""The launcher's end of a keeper (`keeper.py`): starting it, hearing from it, giving it orders, ending it."""

from __future__ import annotations

import marshal
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from opencoti import procfs
from opencoti.errors import MissingError
from opencoti.launch.failures import log_tail, start_error
from opencoti.procfs import Identity

# As a module its compiled form is kept; its folder comes last, so that nothing in it hides another module.
_KEEPER: Final = "import sys; sys.path.append(sys.argv[1]); import keeper; sys.exit(keeper.main())"
_KEEPER_START_S: Final = 60.0
_KEEPER_SLACK_S: Final = 15.0  # the keeper waits 10 s for SIGKILL to take effect
_POLL_S: Final = 0.02
# Keepers that were let go; here so that this process reaps those that ended.
_DETACHED: Final[list[subprocess.Popen[bytes]]] = []


@dataclass(frozen=True, kw_only=True)
class ChildPlan:
    """What the keeper starts, and how it looks after it."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    folder: Path
    log: Path
    lock: int
    mark: str
    is_ape: bool
    max_log_bytes: int
    users_lock: str = ""
    idle_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class _Message:
    """A line of the keeper."""

    word: str
    value: int | None

    @classmethod
    def parse(cls, line: bytes) -> _Message:
        word, _, value = line.decode().partition(" ")
        return cls(word=word, value=None if value == "none" else int(value))


class Child:
    """An engine and its keeper. Whoever made it calls `stop` or `detach`; both end when this process dies."""

    def __init__(self, keeper: subprocess.Popen[bytes], plan: ChildPlan) -> None:
        self._keeper = keeper
        self._plan = plan
        self._input = b""
        self.code: int | None = None
        self.has_ended = False
        self._is_detached = False
        self.engine = Identity(pid=0, start=0, boot="", executable="")
        self.keeper = procfs.identify(keeper.pid) or self.engine

    @classmethod
    def start(cls, plan: ChildPlan) -> Child:
        """Start a keeper and through it the engine.

        Raises:
            MissingError: `engine-cannot-start`, `engine-interpreter-missing`, `keeper-failed`.
            StorageError: `engine-not-executable`, `engine-on-noexec`, `engine-not-permitted`.
        """
        reap_detached()
        child = cls(_start_keeper(plan), plan)
        try:
            child._order(_as_bytes(plan))
            message = child._hear(_KEEPER_START_S)
            if message is None or message.word != "started" or message.value is None:
                raise child._start_failure(message)
            child.engine = procfs.identify(message.value) or Identity(
                pid=message.value, start=0, boot=procfs.boot_id(), executable=""
            )
        except BaseException:
            child.kill()
            raise
        return child

    def _start_failure(self, message: _Message | None) -> Exception:
        if message is not None and message.word == "refused" and message.value is not None:
            return start_error(message.value, Path(self._plan.argv[0]))
        return MissingError(
            "keeper-failed",
            f"cannot start {self._plan.argv[0]}",
            why=f"the process that watches over it ended:{log_tail(_keeper_log(self._plan))}",
            hint=f"it runs with {sys.executable}",
        )

    def members(self) -> tuple[int, ...]:
        """Return every live process of this engine."""
        return procfs.members(self.engine.pid, _mark_text(self._plan))

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the engine has ended, at most `timeout_s` seconds; tell whether it has."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while not self.has_ended:
            left = None if end is None else end - time.monotonic()
            if left is not None and left < 0:
                return False
            message = self._hear(left)
            if message is None and left is not None and not self.has_ended:
                return False
        return True

    def stop(self, *, grace_s: float) -> int | None:
        """End the engine: SIGTERM to its group, SIGKILL after the grace. Returns its exit code.

        A second Ctrl-C during the grace shortens it to nothing; the engine is gone in either case.
        """
        try:
            self._order(b"stop %f\n" % grace_s)
            self.wait(grace_s + _KEEPER_SLACK_S)
        except BaseException:
            self._order(b"stop 0\n")
            with suppress(KeyboardInterrupt):
                self.wait(_KEEPER_SLACK_S)
            raise
        finally:
            self.kill()
        return self.code

    def kill(self) -> None:
        """End keeper and engine, within a second or so, and reap. Does nothing when both are gone.

        The keeper ends what it knows of when its input closes. It may be starting the engine at this very
        moment, so it is killed only if it does not end by itself.
        """
        if self._keeper.stdin and not self._keeper.stdin.closed:
            with suppress(OSError):
                self._keeper.stdin.close()
        if self._is_detached:
            self._keeper.terminate()  # it does not look at its input any more
        try:
            self._keeper.wait(_KEEPER_SLACK_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._keeper.kill()
            self._keeper.wait()
            if self._keeper.stdout:
                self._keeper.stdout.close()
            kill_members(self.engine.pid or -1, self._plan.mark)
            self.has_ended = True

    def detach(self) -> bool:
        """Let the engine go on after this process; tell whether the keeper agreed (else it is gone)."""
        self._is_detached = True  # perhaps; its answer may come too late
        self._order(b"detach\n")
        message = self._hear(_KEEPER_SLACK_S)
        if message is None or message.word != "detached":
            return False
        for stream in (self._keeper.stdin, self._keeper.stdout):
            if stream:
                stream.close()
        _DETACHED.append(self._keeper)
        return True

    def _order(self, order: bytes) -> None:
        assert self._keeper.stdin is not None
        with suppress(BrokenPipeError, ValueError):
            view = memoryview(order)
            while view:
                view = view[self._keeper.stdin.write(view) :]

    def _hear(self, timeout_s: float | None) -> _Message | None:
        """Return the next message of the keeper, None without one in time or when it is gone."""
        assert self._keeper.stdout is not None
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while b"\n" not in self._input:
            left = None if end is None else max(0.0, end - time.monotonic())
            ready, _, _ = select.select([self._keeper.stdout], [], [], left)
            if not ready:
                return None
            block = os.read(self._keeper.stdout.fileno(), 65536)
            if not block:
                self.has_ended = True
                return None
            self._input += block
        line, _, self._input = self._input.partition(b"\n")
        message = _Message.parse(line)
        if message.word == "ended":
            self.has_ended, self.code = True, message.value
        return message


def reap_detached() -> None:
    """Take note of the end of keepers that this process let go, so that none stays a zombie."""
    for gone in [item for item in _DETACHED if item.poll() is not None]:
        with suppress(ValueError):  # another thread was quicker
            _DETACHED.remove(gone)


def kill_members(session: int, mark: str, *, timeout_s: float = 5.0) -> tuple[int, ...]:
    """Kill every process of a launch; return those that are still there after `timeout_s` seconds."""
    from opencoti.launch.environment import MARK_VARIABLE

    end = time.monotonic() + timeout_s
    while left := procfs.members(session, f"{MARK_VARIABLE}={mark}"):
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > end:
            return left
        time.sleep(_POLL_S)
    return ()


def _start_keeper(plan: ChildPlan) -> subprocess.Popen[bytes]:
    if not sys.executable:
        raise MissingError(
            "keeper-failed", f"cannot start {plan.argv[0]}", why="this program does not know its Python"
        )
    with open(_keeper_log(plan), "wb") as errors:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _KEEPER, str(Path(__file__).parent)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd="/",
            bufsize=0,
            start_new_session=True,
            pass_fds=(plan.lock,) if plan.lock >= 0 else (),
        )


def _as_bytes(plan: ChildPlan) -> bytes:
    data = marshal.dumps(
        {
            "argv": list(plan.argv),
            "env": dict(plan.env),
            "cwd": str(plan.cwd),
            "folder": str(plan.folder),
            "log": str(plan.log),
            "lock": plan.lock,
            "is_ape": plan.is_ape,
            "max_log_bytes": plan.max_log_bytes,
            "users_lock": plan.users_lock,
            "idle_s": plan.idle_s,
            "launcher": os.getpid(),
        }
    )
    return b"%d\n" % len(data) + data


def _keeper_log(plan: ChildPlan) -> Path:
    return plan.folder / "keeper.log"


def _mark_text(plan: ChildPlan) -> str:
    from opencoti.launch.environment import MARK_VARIABLE

    return f"{MARK_VARIABLE}={plan.mark}"
