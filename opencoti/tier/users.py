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

from opencoti.errors import StorageError, storage_error
from opencoti.files import is_at
from opencoti.launch.ready import Cancelled

Mode = Literal["shared", "alone"]
_FIRST_POLL_S: Final = 0.002
_LAST_POLL_S: Final = 0.05


class Patience:
    """The time that one caller waits for others, in looks that grow apart.

    Args:
        seconds: until it ends.
        cancel: ends it at once when set.
    """

    def __init__(self, seconds: float, cancel: threading.Event | None = None) -> None:
        self._end = time.monotonic() + seconds
        self._cancel = cancel
        self._pause_s = _FIRST_POLL_S

    def wait(self) -> bool:
        """Wait until it is worth looking again; False, without waiting, when the time is over.

        Raises:
            Cancelled: `cancel` was set.
        """
        if self._cancel is not None and self._cancel.is_set():
            raise Cancelled
        if self.is_over:
            return False
        if self._cancel is None:
            time.sleep(self._pause_s)
        else:
            self._cancel.wait(self._pause_s)
        self._pause_s = min(_LAST_POLL_S, self._pause_s * 1.5)
        return True

    @property
    def is_over(self) -> bool:
        """Whether the time has passed."""
        return time.monotonic() >= self._end


class UserLock:
    """A lock on the file of users. Whoever made it calls `release`; it ends with this process at last."""

    def __init__(self, path: Path, handle: int) -> None:
        self._path = path
        self._handle = handle

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
        if is_at(handle, path):
            return cls(path, handle)
        os.close(handle)  # somebody removed the file in between
        return None

    def mark(self) -> None:
        """Note that the engine was used: a keeper that did not see this lock sees the file's new time."""
        with suppress(OSError):
            os.utime(self._handle)

    @property
    def is_current(self) -> bool:
        """Whether it is the lock that others see; not so after another one's `forget`."""
        return is_at(self._handle, self._path)

    def forget(self) -> None:
        """Let all who hold it shared hold nothing: the next one makes a new file. Hold it shared yourself."""
        import fcntl

        with suppress(OSError):
            folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)  # two must not remove two files
                if self.is_current:
                    os.unlink(self._path)
            finally:
                os.close(folder)

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
