"""What one input may do: be parsed or be refused by an error of ours, in a short time, and write nothing.

The time is processor time, so a busy machine is no hang. The hook that watches for writes is Python's own
audit hook; it can't be taken out again, so it only acts while `check_one` runs.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

from opencoti.errors import OpencotiError

LIMIT_S: Final = 10.0
_WRITES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_REFUSED: Final = (
    *("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod"),
    *("os.chown", "os.utime", "os.setxattr", "os.exec", "os.fork", "os.posix_spawn", "os.system"),
    *("subprocess.Popen", "shutil.rmtree", "shutil.move", "tempfile.mkstemp", "tempfile.mkdtemp"),
    *("socket.connect", "socket.bind", "exec.unpickle"),
)


class HangError(BaseException):
    """An input took longer than `LIMIT_S`; no `except Exception` swallows it."""


class WriteError(BaseException):
    """An input made the parser change something outside its memory."""


class _Watch:
    is_on = False
    is_installed = False


def check_one(parse: Callable[[bytes], object], data: bytes) -> str | None:
    """Pass an input to a parser.

    Returns:
        None if it was taken, else the id of the error that refused it.

    Raises:
        HangError: it took too long.
        WriteError: it wrote, connected or started something.
        Exception: whatever else the parser raised: a finding.
    """
    with _watched():
        try:
            parse(data)
        except OpencotiError as error:
            return error.error_id
    return None


@contextmanager
def memory_file(data: bytes) -> Iterator[Path]:
    """Yield a path of a file that lies in memory only, for parsers that take a path."""
    handle = os.memfd_create("fuzz")
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]
        yield Path(f"/proc/self/fd/{handle}")
    finally:
        os.close(handle)


@contextmanager
def _watched() -> Iterator[None]:
    if not _Watch.is_installed:
        sys.addaudithook(_audit)
        _Watch.is_installed = True
    cached = sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # a late import is no write of the parser
    before = signal.signal(signal.SIGPROF, _too_long)
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    _Watch.is_on = True
    try:
        yield
    finally:
        _Watch.is_on = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        sys.dont_write_bytecode = cached


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if not _Watch.is_on:
        return
    if event in _REFUSED or (event == "open" and isinstance(args[2], int) and args[2] & _WRITES):
        raise WriteError(f"{event} {args[:2]!r}")


def _too_long(number: int, frame: FrameType | None) -> None:
    raise HangError(f"more than {LIMIT_S} s of processor time")
