"""Noticing that somebody opened a file, through inotify. Linux only; needs no rights."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_IN_OPEN: Final = 0x20  # sys/inotify.h
_IN_ACCESS: Final = 0x01
_EVENT_BYTES: Final = 4096


class OpenWatch:
    """Watches one file from the moment it is made until `close` (or the end of a `with` block).

    `is_active` is False where the kernel refuses (no inotify, or its limit is reached).
    """

    def __init__(self, path: Path) -> None:
        self._handle = _add_watch(path)
        self._was_opened = False

    @property
    def is_active(self) -> bool:
        """Whether the kernel watches."""
        return self._handle >= 0

    def was_opened(self) -> bool:
        """Tell whether any process opened or read the file since the watch began."""
        if self._handle >= 0 and not self._was_opened:
            try:
                self._was_opened = bool(os.read(self._handle, _EVENT_BYTES))
            except BlockingIOError:
                self._was_opened = False
        return self._was_opened

    def close(self) -> None:
        """End the watch."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _add_watch(path: Path) -> int:
    if sys.platform != "linux":
        return -1
    libc = ctypes.CDLL(None, use_errno=True)
    handle = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    if handle < 0:
        return -1
    if libc.inotify_add_watch(handle, os.fsencode(path), _IN_OPEN | _IN_ACCESS) < 0:
        os.close(handle)
        return -1
    return handle
