"""One process at a time per target: flock where the file system has it, a heartbeat file where it has not.

The flock file is never removed (a removed one could be locked twice). The heartbeat file is refreshed by a
thread of its holder; a waiter that sees no change for `STALE_AFTER_S` on its own clock takes it over by
renaming it away, which only one waiter can do. Clocks of different hosts are never compared.
"""

from __future__ import annotations

import errno
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from opencoti.errors import BusyError, storage_error

POLL_S = 0.1
BEAT_S = 2.0
STALE_AFTER_S = 30.0
_UNSUPPORTED = {errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS, errno.EINVAL}
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)


@dataclass(frozen=True, kw_only=True)
class LockTools:
    """What the lock needs from the outside; tests put in their own."""

    flock: Callable[[int], None]
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic


@dataclass(frozen=True, kw_only=True)
class HeldLock:
    """A lock that this process holds, or held: a heartbeat lock can be lost while the process is stopped."""

    path: Path
    handle: int

    def require_held(self) -> None:
        """Check before a step that nobody may do twice.

        Raises:
            BusyError: `lock-lost`.
        """
        if not _names(self.path, self.handle):
            raise BusyError(
                "lock-lost",
                f"the lock {self.path} was taken over",
                why="this process stood still for long, and another one went on in its place",
                hint="run the command again",
            )


def real_tools() -> LockTools:
    """Return the tools of this system."""
    return LockTools(flock=_flock)


@contextmanager
def target_lock(
    path: Path, on_wait: Callable[[str], None], *, tools: LockTools | None = None
) -> Iterator[HeldLock]:
    """Hold the lock `path` while the block runs, waiting for another holder as long as it lives.

    Args:
        path: the lock file, beside the target.
        on_wait: told once who holds it (a process id as text, possibly empty).
        tools: seams for tests.

    Raises:
        StorageError: the lock file cannot be created.
    """
    tools = tools or real_tools()
    waiting = _Announce(on_wait)
    try:
        handle = _acquire_flock(path, waiting, tools)
        held = HeldLock(path=path, handle=handle) if handle is not None else None
        held = held or _acquire_beat(path.with_name(path.name + ".held"), waiting, tools)
    except OSError as exc:
        raise storage_error(exc, f"cannot create lock {path}") from exc
    if held.path == path:
        try:
            yield held
        finally:
            os.close(held.handle)
    else:
        with _heartbeat(held):
            yield held


class _Announce:
    """Tells about waiting once."""

    def __init__(self, on_wait: Callable[[str], None]) -> None:
        self._on_wait: Callable[[str], None] | None = on_wait

    def __call__(self, path: Path) -> None:
        if self._on_wait is not None:
            holder = ""
            with suppress(OSError):
                holder = path.read_text(encoding="ascii", errors="replace").split(" ")[0].strip()
            self._on_wait(holder)
            self._on_wait = None


def _acquire_flock(path: Path, announce: _Announce, tools: LockTools) -> int | None:
    """Return the locked descriptor, or None where the file system knows no flock."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | _NO_FOLLOW, 0o644)
        is_ours = False
        try:
            tools.flock(handle)
            is_ours = _names(path, handle)
        except BlockingIOError:
            announce(path)
            tools.sleep(POLL_S)
        except OSError as exc:
            if exc.errno in _UNSUPPORTED:
                return None
            raise
        finally:
            if not is_ours:
                os.close(handle)
        if is_ours:
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
            return handle


def _acquire_beat(path: Path, announce: _Announce, tools: LockTools) -> HeldLock:
    seen: tuple[int, int] | None = None
    since = tools.clock()
    while True:
        with suppress(FileExistsError):
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            os.write(handle, f"{os.getpid()} {secrets.token_hex(8)}\n".encode())
            return HeldLock(path=path, handle=handle)
        announce(path)
        now = _state(path)
        if now != seen:
            seen, since = now, tools.clock()
        elif tools.clock() - since >= STALE_AFTER_S and seen is not None:
            _take_over(path, seen)
        tools.sleep(POLL_S)


def _take_over(path: Path, stale: tuple[int, int]) -> None:
    """Rename a dead lock away. If another waiter was quicker, what we moved is its lock: put it back."""
    moved = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    with suppress(FileNotFoundError):
        os.rename(path, moved)
        if _state(moved) != stale:
            with suppress(FileExistsError):
                os.link(moved, path)
        os.unlink(moved)


@contextmanager
def _heartbeat(held: HeldLock) -> Iterator[None]:
    """Refresh the lock from a thread; at the end stop it and remove the lock if it is still ours."""
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(BEAT_S):
            with suppress(OSError):
                os.utime(held.handle)

    thread = threading.Thread(target=beat, name="lock-heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        if _names(held.path, held.handle):
            with suppress(OSError):
                os.unlink(held.path)
        os.close(held.handle)


def _state(path: Path) -> tuple[int, int] | None:
    with suppress(OSError):
        found = os.lstat(path)
        return found.st_ino, found.st_mtime_ns
    return None


def _names(path: Path, handle: int) -> bool:
    """Tell whether `path` still names the open file."""
    mine = os.fstat(handle)
    with suppress(OSError):
        there = os.lstat(path)
        return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)
    return False


def _flock(handle: int) -> None:
    try:
        import fcntl
    except ImportError as exc:
        raise OSError(errno.ENOTSUP, "no flock on this system") from exc
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
