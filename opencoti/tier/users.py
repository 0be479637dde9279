"""Who uses a shared engine: one lock file, held shared by each user and alone by whoever starts or ends it.

The kernel keeps the books: a lock goes with the process that holds it, however that dies. So there is no list
of users to repair and no start that could be recorded by halves. The other side is `Users` in
`opencoti/launch/keeper.py`.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from opencoti.errors import BusyError, StorageError, storage_error
from opencoti.launch.ready import Cancelled

Mode = Literal["shared", "alone"]
_FIRST_POLL_S: Final = 0.002
_LAST_POLL_S: Final = 0.05


class UserLock:
    """A lock on the file of users. Whoever made it calls `release`; it ends with this process at last."""

    def __init__(self, path: Path, handle: int) -> None:
        self._path = path
        self._handle = handle

    @classmethod
    def take(
        cls, path: Path, mode: Mode, *, timeout_s: float, cancel: threading.Event | None = None
    ) -> UserLock:
        """Wait for the lock.

        Raises:
            BusyError: `tier-busy`, others hold it for longer than `timeout_s` seconds.
            StorageError: the folder cannot be written, or `tier-no-locks`.
            Cancelled: `cancel` was set.
        """
        end = time.monotonic() + timeout_s
        pause_s = _FIRST_POLL_S
        while (lock := cls.try_take(path, mode)) is None:
            if cancel is not None and cancel.is_set():
                raise Cancelled
            if time.monotonic() >= end:
                raise BusyError(
                    "tier-busy",
                    f"the engine of {path.parent.name} is being started, ended or used by other programs",
                    why=f"for more than {timeout_s:.0f} s",
                    hint="`python -m opencoti.launch status` shows it; wait, and try again",
                )
            _wait(cancel, pause_s)
            pause_s = min(_LAST_POLL_S, pause_s * 1.5)
        return lock

    @classmethod
    def try_take(cls, path: Path, mode: Mode) -> UserLock | None:
        """Return the lock if it can be had at once. Raises `StorageError`."""
        import fcntl

        handle = _open(path)
        try:
            fcntl.flock(handle, (fcntl.LOCK_SH if mode == "shared" else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        except OSError as exc:
            os.close(handle)
            raise StorageError(
                "tier-no-locks",
                f"cannot lock {path}",
                why=exc.strerror or str(exc),
                hint="its file system has no locks: set OPENCOTI_CACHE_DIR to a folder on a local disk",
            ) from exc
        if _is_at(handle, path):
            return cls(path, handle)
        os.close(handle)  # somebody removed the file in between
        return None

    def mark(self) -> None:
        """Note that the engine was used: a keeper that did not see this lock sees the file's new time."""
        with suppress(OSError):
            os.utime(self._handle)

    def release(self) -> None:
        """Give it back, also where a forked process has a copy of it."""
        import fcntl

        if self._handle < 0:
            return
        handle, self._handle = self._handle, -1
        try:
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)
        finally:
            os.close(handle)


def _open(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as exc:
        raise storage_error(exc, f"cannot write {path}") from exc


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except OSError:
        return False


def _wait(cancel: threading.Event | None, seconds: float) -> None:
    if cancel is None:
        time.sleep(seconds)
    else:
        cancel.wait(seconds)
