"""Which chunks of a file are there, which ones somebody fetches, and which nobody has begun. Thread-safe.

Workers `take` runs of chunks, `mark` what arrived and was right, and `give_back` the rest; whoever waits for
the file in its order asks for the *frontier*, the first chunk that is not there. Does no I/O.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

from opencoti.chunks import ChunkTable

# A chunk that arrived wrong this often is not going to be right.
MAX_WRONG = 3
_MISSING, _TAKEN, _THERE = 0, 1, 2


class ChunkRefused(Exception):  # noqa: N818 - an event that is handled, not an error that is shown
    """A source gives other bytes for a chunk than the table says, again and again."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@dataclass(frozen=True, kw_only=True)
class Run:
    """Neighbouring chunks: `first` up to, not with, `end`."""

    first: int
    end: int


class Board:
    """The state of all chunks of one file.

    Args:
        table: the chunks.
        breaks: chunk numbers at which a run must begin anew (where the next part of a split file starts).
    """

    def __init__(self, table: ChunkTable, breaks: Iterable[int] = ()) -> None:
        self._table = table
        self._breaks = frozenset(breaks)
        self._count = table.count
        self._slack = table.count * table.chunk_size - table.file_size  # what the last chunk lacks
        self._states = bytearray(table.count)
        # Two conditions of one lock: whoever follows the frontier is not woken by each chunk.
        lock = threading.RLock()
        self._changed, self._advanced = threading.Condition(lock), threading.Condition(lock)
        self._awaited = 0
        self._cursor = 0
        self._frontier = 0
        self._wrong: dict[int, int] = {}
        self._untaken = table.count
        self._there_bytes = 0
        self._is_stopped = False
        self._failure: Exception | None = None

    @property
    def there_bytes(self) -> int:
        """How many bytes are there."""
        return self._there_bytes

    @property
    def missing_bytes(self) -> int:
        """How many bytes are not there yet."""
        return self._table.file_size - self._there_bytes

    @property
    def failure(self) -> Exception | None:
        """What ended the work, if something did."""
        return self._failure

    @property
    def is_stopped(self) -> bool:
        """Whether nobody should begin anything any more."""
        return self._is_stopped

    def is_there(self, number: int) -> bool:
        """Tell whether a chunk is there."""
        return self._states[number] == _THERE

    def missing_numbers(self) -> list[int]:
        """Return the chunks that are not there, ascending."""
        return [number for number, state in enumerate(self._states) if state != _THERE]

    def take(self, most: int, workers: int = 1, *, least: int = 1) -> Run | None:
        """Return chunks that nobody has begun, in file order; wait while others might give some back.

        Args:
            most: how many at most.
            workers: how many take from this board; near the end runs get shorter, so that all have some.
            least: but not shorter than this.

        Returns:
            None when all is there or the work was stopped.
        """
        with self._changed:
            while True:
                if self._is_stopped or self._there_bytes == self._table.file_size:
                    return None
                first = self._states.find(_MISSING, self._cursor)
                if first >= 0:
                    return self._take_from(first, min(most, max(1, least, self._fair_share(workers))))
                self._changed.wait()

    def give_back(self, run: Run) -> None:
        """Let others have those chunks of a taken run that are not there."""
        with self._changed:
            for number in range(run.first, run.end):
                if self._states[number] == _TAKEN:
                    self._states[number] = _MISSING
                    self._untaken += 1
                    self._cursor = min(self._cursor, number)
            self._changed.notify_all()

    def mark(self, first: int, end: int) -> None:
        """Say that chunks are on disk and right."""
        with self._changed:
            before = self._states[first:end]
            self._untaken -= before.count(_MISSING)
            new = len(before) - before.count(_THERE)
            is_last_new = end == self._count and bool(before) and before[-1] != _THERE
            self._there_bytes += new * self._table.chunk_size - (self._slack if is_last_new else 0)
            self._states[first:end] = bytes([_THERE]) * len(before)
            self._advance()
            if self._there_bytes == self._table.file_size:
                self._changed.notify_all()
            if self._frontier >= self._awaited:
                self._advanced.notify_all()

    def note_wrong(self, number: int) -> None:
        """Count a chunk that arrived and was wrong. Raises `ChunkRefused` when it is too often."""
        with self._changed:
            self._wrong[number] = self._wrong.get(number, 0) + 1
            if self._wrong[number] >= MAX_WRONG:
                raise ChunkRefused(number)

    def stop(self, failure: Exception | None = None) -> None:
        """End the work; the first failure is kept."""
        with self._changed:
            self._is_stopped = True
            if self._failure is None:
                self._failure = failure
            self._changed.notify_all()
            self._advanced.notify_all()

    def wait_frontier(self, least: int, timeout_s: float) -> int:
        """Return the first chunk that is not there; wait until it is `least` or more, or the end."""
        with self._changed:
            self._awaited = min(least, self._table.count)
            if self._frontier < self._awaited and not self._is_stopped:
                self._advanced.wait(timeout_s)
            return self._frontier

    def _take_from(self, first: int, most: int) -> Run:
        end = first + 1
        while (
            end < min(first + most, self._table.count)
            and self._states[end] == _MISSING
            and end not in self._breaks
        ):
            end += 1
        self._states[first:end] = bytes([_TAKEN]) * (end - first)
        self._untaken -= end - first
        self._cursor = end
        return Run(first=first, end=end)

    def _fair_share(self, workers: int) -> int:
        return self._untaken if workers == 1 else self._untaken // (2 * workers)

    def _advance(self) -> None:
        holes = (self._states.find(state, self._frontier) for state in (_MISSING, _TAKEN))
        self._frontier = min((at for at in holes if at >= 0), default=self._count)
