"""Reading the log of an engine that goes on writing it. The keeper caps it: it may be cut at any moment."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

_READ_BYTES: Final = 1 << 20
_POLL_S: Final = 0.2


def last_lines(log: Path, count: int) -> list[str]:
    """Return the last lines of a log and, where they do not suffice, of its older part."""
    if count <= 0:
        return []
    lines: list[str] = []
    for path in (log, log.with_name(log.name + ".1")):
        lines = _tail(path) + lines
        if len(lines) >= count:
            break
    return lines[-count:]


def _tail(path: Path) -> list[str]:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _READ_BYTES))
            return file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []


def follow_log(
    log: Path, is_alive: Callable[[], bool], *, pause: Callable[[float], None] = time.sleep
) -> Iterator[str]:
    """Yield what is added to a log from now on, line by line, until `is_alive` says no."""
    position, rest = _size(log), b""
    while True:
        is_last_look = not is_alive()
        size = _size(log)
        if size < position:
            position = 0  # the log was cut
        data = _read_from(log, position) if size > position else b""
        position += len(data)
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line.decode("utf-8", "replace")
        if is_last_look:
            return
        pause(_POLL_S)


def _size(log: Path) -> int:
    try:
        return log.stat().st_size
    except OSError:
        return 0


def _read_from(log: Path, position: int) -> bytes:
    try:
        with open(log, "rb") as file:
            file.seek(position)
            return file.read(_READ_BYTES)
    except OSError:
        return b""
