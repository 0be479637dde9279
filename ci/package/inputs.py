"""Files that go into an artifact: opened once, and noticed when they change while they are read."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NoReturn

from opencoti.errors import BuildError, UsageError


@dataclass(frozen=True, kw_only=True)
class Input:
    """An open regular file and what it was when it was opened."""

    path: Path
    file: IO[bytes]
    before: os.stat_result

    @property
    def handle(self) -> int:
        """The file descriptor."""
        return self.file.fileno()

    @property
    def size(self) -> int:
        """Size in bytes when it was opened."""
        return self.before.st_size

    @property
    def executable_mode(self) -> int:
        """The permission bits, executable for everyone who may read."""
        mode = stat.S_IMODE(self.before.st_mode) & 0o777
        return mode | (mode & 0o444) >> 2

    def check_unchanged(self) -> None:
        """Raise `BuildError` (`member-changed`) if the file was written to since it was opened."""
        after = os.fstat(self.handle)
        if (after.st_size, after.st_mtime_ns) != (self.before.st_size, self.before.st_mtime_ns):
            self.refuse_change()

    def refuse_change(self) -> NoReturn:
        """Raise the error of a file that changed while it was read."""
        raise BuildError(
            "member-changed",
            f"{self.path} changed while it was packaged",
            why="its size or time of change is not what it was at the start",
            hint="wait for the program that writes it to end, then run this again",
        )


@contextmanager
def open_input(path: Path) -> Iterator[Input]:
    """Open a regular file for reading.

    Raises:
        UsageError: `member-unreadable`, it is missing, no regular file, or not ours to read.
    """
    try:
        # Not blocking: a named pipe would otherwise wait for a writer for ever.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as exc:
        raise _unreadable(path, exc.strerror or str(exc)) from exc
    before = os.fstat(handle)
    if not stat.S_ISREG(before.st_mode):
        os.close(handle)
        raise _unreadable(path, "it is no regular file")
    with os.fdopen(handle, "rb") as file:
        yield Input(path=path, file=file, before=before)


def _unreadable(path: Path, why: str) -> UsageError:
    return UsageError("member-unreadable", f"cannot read {path}", why=why, hint="check the path")
