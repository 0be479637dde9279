"""Where the bytes of one range go: cut into chunks, checked, written. Knows no network.

Blocks come in order and in any size. Big ones are checked and written from where they are; only the pieces of
a chunk at their ends, and small blocks, are gathered in a buffer first.
"""

from __future__ import annotations

import hashlib
from typing import Protocol

from opencoti.chunks import ChunkTable
from opencoti.fetch.answers import TransferFailure
from opencoti.fetch.board import Board
from opencoti.fetch.scan import write_at

_BATCH_BYTES = 256 << 10


class WrongEnd(TransferFailure):
    """A body is shorter than the range that it should fill, or goes on behind it."""

    def __init__(self, reason: str, *, is_beyond: bool) -> None:
        super().__init__(reason)
        self.is_beyond = is_beyond


class Target(Protocol):
    """What the sinks of one download share.

    `checks_each` is set by the first one that finds a sample wrong: from then on nothing is believed.
    `has_deferred` tells that something was.
    """

    board: Board
    table: ChunkTable
    handle: int
    checks_each: bool
    has_deferred: bool


class Sink:
    """Takes the bytes from `start`, where a chunk begins, to `end`; writes the right chunks.

    Args:
        target: the file.
        start: first byte.
        end: behind the last one; a chunk or the file ends there.
        sample_every: 1 checks each chunk; else the first one and one in so many are checked.
    """

    def __init__(self, target: Target, start: int, end: int, *, sample_every: int = 1) -> None:
        self._target = target
        self._table = target.table
        self._sample_every = sample_every
        self._first = start // target.table.chunk_size
        self._position = start
        self._end = end
        self._batch = max(_BATCH_BYTES, target.table.chunk_size)
        self._buffer = memoryview(bytearray(min(self._batch, max(end - start, 1))))
        self._fill = 0

    def feed(self, block: bytes) -> None:
        """Add the next bytes. Raises `WrongEnd`, `ChunkRefused` and `OSError`."""
        data = memoryview(block)
        if self._position + self._fill + len(data) > self._end:
            raise WrongEnd("the server sent more bytes than it announced", is_beyond=True)
        while data:
            if self._fill or len(data) < self._batch:
                taken = self._gather(data)
            else:
                taken = self._whole(len(data))
                self._store(data[:taken])
            data = data[taken:]

    def flush(self) -> None:
        """Check and write the chunks that are complete in the buffer."""
        size = self._whole(self._fill)
        self._store(self._buffer[:size])
        rest = bytes(self._buffer[size : self._fill])
        self._buffer[: len(rest)] = rest
        self._fill = len(rest)

    def require_end(self) -> None:
        """Check that nothing is missing. Raises `WrongEnd`."""
        if self._position < self._end:
            missing = self._end - self._position
            raise WrongEnd(f"the answer ended {missing} bytes early", is_beyond=False)

    def _gather(self, data: memoryview) -> int:
        """Put bytes into the buffer, of a big block no more than completes a chunk; return their number."""
        stop = len(self._buffer)
        if len(data) >= self._batch:
            stop = -(-self._fill // self._table.chunk_size) * self._table.chunk_size
        count = min(len(data), stop - self._fill)
        self._buffer[self._fill : self._fill + count] = data[:count]
        self._fill += count
        if self._fill == stop:
            self.flush()
        return count

    def _whole(self, size: int) -> int:
        """Return how many of the next `size` bytes are complete chunks; the last one of a file is short."""
        is_end = self._position + size == self._end
        return size if is_end else size - size % self._table.chunk_size

    def _store(self, data: memoryview) -> None:
        """Check complete chunks; write those that are right and new, neighbours at once."""
        first = self._position // self._table.chunk_size
        end = first - (-len(data) // self._table.chunk_size)
        good_from: int | None = None
        for number in range(first, end + 1):
            is_new = number < end and self._is_new(number, data)
            if is_new and good_from is None:
                good_from = number
            elif not is_new and good_from is not None:
                write_at(self._target.handle, self._slice(data, good_from, number), self._start(good_from))
                self._target.board.mark(good_from, number)
                good_from = None
        self._position += len(data)

    def _is_new(self, number: int, data: memoryview) -> bool:
        """Tell whether a chunk is right, as far as it is looked at, and not on disk yet."""
        target = self._target
        if target.board.is_there(number):
            return False
        is_sample = number == self._first or number % self._sample_every == 0
        if not is_sample and not target.checks_each:
            target.has_deferred = True
            return True
        digest = hashlib.sha256(self._slice(data, number, number + 1)).digest()
        if digest == self._table.digest(number):
            return True
        target.checks_each = True
        target.board.note_wrong(number)
        return False

    def _slice(self, data: memoryview, first: int, end: int) -> memoryview:
        return data[self._start(first) - self._position : self._start(end) - self._position]

    def _start(self, number: int) -> int:
        return number * self._table.chunk_size
