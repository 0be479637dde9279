"""Reading the output of a build: how far it is, and which lines tell why it failed."""

from __future__ import annotations

import re
import time
from collections import deque
from typing import Final

from opencoti.console import Console

# Set as NINJA_STATUS, so that the form is ours: `[12/456] Building CXX object ...`.
NINJA_STATUS: Final = "[%f/%t] "
_PROGRESS: Final = re.compile(r"\[(\d+)/(\d+)\] (.*)")
# `FAILED: path/to/output` or `FAILED: [code=1] path/to/output` (since ninja 1.13).
_FAILED: Final = re.compile(r"FAILED: (?:\[code=(\d+)\] )?.*")
_LINES_KEPT: Final = 15
_LINE_WIDTH: Final = 240


class OutputReader:
    """Takes every output line of a step, shows progress, and keeps what an error report needs."""

    def __init__(self, title: str, console: Console, *, step: str) -> None:
        self._title = title
        self._step = step
        self._console = console
        self._started = time.monotonic()
        self._tail: deque[str] = deque(maxlen=_LINES_KEPT)
        self._failure: list[str] = []
        self.failed_codes: set[int] = set()

    def feed(self, line: str) -> None:
        """Take the next line."""
        if match := _PROGRESS.fullmatch(line):
            self._show(f"{match[1]}/{match[2]}", match[3])
            return
        if failed := _FAILED.fullmatch(line):
            self.failed_codes.add(int(failed[1] or 1))
        self._keep(line)
        if not self._failure:
            self._show("", line)

    def lines(self) -> tuple[str, ...]:
        """Return up to 15 lines: from the first failed command on, or the last ones printed."""
        return tuple(line[:_LINE_WIDTH] for line in (self._failure or self._tail))

    def _keep(self, line: str) -> None:
        if not line.strip():
            return
        self._tail.append(line)
        is_first = line.startswith("FAILED: ")
        if (self._failure or is_first) and len(self._failure) < _LINES_KEPT:
            self._failure.append(line)

    def _show(self, count: str, target: str) -> None:
        elapsed = format_duration(time.monotonic() - self._started)
        words = " ".join(word for word in (self._step, count) if word)
        self._console.status(f"{self._title}: {words}, {elapsed}, {_short(target)}")


def format_duration(seconds: float) -> str:
    """Return a duration for people: `42 s`, `3 min 05 s`."""
    whole = int(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60:02d} s"


def _short(target: str) -> str:
    """`Building CXX object a/b/CMakeFiles/x.dir/y.cpp.o` → `Building CXX object y.cpp.o`."""
    verb, _, path = target.rpartition(" ")
    return f"{verb} {path.rsplit('/', 1)[-1]}" if verb and "/" in path else target[:120]
