"""The threads of a ranged download: each asks for a run of chunks, checks what arrives, and writes it.

A worker that loses its connection gives its run back and tries again later; one that a server turns away for
good leaves the rest to the others. Only the last one to leave makes the download fail. A server that answers
with the whole file instead of a range is read by one worker, the others leave.
"""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from opencoti.chunks import ChunkTable
from opencoti.errors import NetworkError
from opencoti.fetch.answers import Ask, Head, TransferFailure, judge
from opencoti.fetch.board import Board, Run
from opencoti.fetch.download import Tools
from opencoti.fetch.pace import Patience, SpeedGuard, announcement, given_up, repeat
from opencoti.fetch.scan import write_at
from opencoti.fetch.settings import Limits
from opencoti.fetch.transport import Answer

_BATCH_BYTES = 256 << 10
_SHORTEST_RUN_BYTES, _FIRST_RUN_BYTES, _LONGEST_RUN_BYTES = 1 << 20, 4 << 20, 64 << 20
# Runs get longer until the wait for an answer is less than this share of the time that the answer takes, and
# near the end not so short that it is more than the other one.
_WAIT_SHARE, _LARGEST_WAIT_SHARE = 0.1, 0.25
_GONE = {403, 404, 410}


class SizeRefused(Exception):  # noqa: N818 - an event that is handled, not an error that is shown
    """The server has a file of another size than the table."""

    def __init__(self, found: str, expected: int) -> None:
        super().__init__(found)
        self.reason = f"the server has {found} bytes, the chunk table is of {expected}"


class _Superfluous(Exception):  # noqa: N818 - an event
    """The server sends the whole file, and another worker reads it already."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """An asset that holds the bytes of the file from `start` on; a file in one asset has one."""

    url: str
    start: int
    size: int


@dataclass(kw_only=True)
class Shared:
    """What the workers of one download share. `handle` is theirs; the others belong to the download."""

    board: Board
    table: ChunkTable
    pieces: Sequence[Piece]
    handle: int
    limits: Limits
    tools: Tools
    name: str
    workers_left: int = 0
    received_bytes: int = 0
    is_whole_claimed: bool = False
    is_rangeless: bool = False
    failure: Exception | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    ended: threading.Event = field(default_factory=threading.Event)
    ranges_confirmed: threading.Event = field(default_factory=threading.Event)
    messages: deque[str] = field(default_factory=deque)
    places: dict[str, str] = field(default_factory=dict)

    def count(self, size: int) -> None:
        """Add arrived bytes."""
        with self.lock:
            self.received_bytes += size

    def claim_whole(self) -> bool:
        """Tell whether the caller is the one that reads a whole file."""
        with self.lock:
            is_first = not self.is_whole_claimed
            self.is_whole_claimed = True
        return is_first

    def leave(self, failure: Exception | None) -> None:
        """Take a worker off the list; the failure of the last one ends the download."""
        with self.lock:
            self.workers_left -= 1
            is_last = self.workers_left == 0
            self.failure = failure or self.failure
        self.ranges_confirmed.set()
        if is_last:
            self.board.stop(self.failure)


class Worker:
    """One thread's work, from its start to its end."""

    def __init__(self, shared: Shared, number: int) -> None:
        self._shared = shared
        self._number = number
        self._run_bytes = _FIRST_RUN_BYTES
        self._least_bytes = _SHORTEST_RUN_BYTES
        self._reads_whole = False

    def run(self) -> None:
        """Work until everything is there, the download ends, or nothing helps any more."""
        shared = self._shared
        if self._number:
            # The first one finds out whether ranges work, and where redirects lead.
            shared.ranges_confirmed.wait()
        failure: Exception | None = None
        try:
            while not shared.board.is_stopped and (failure := self._round()) is None:
                if shared.board.missing_bytes == 0:
                    break
        except _Superfluous:
            failure = None
        except Exception as exc:
            shared.board.stop(exc)
        shared.leave(failure)

    def _round(self) -> NetworkError | None:
        """Fetch one run, with patience; return the error when that is at its end."""
        shared = self._shared
        patience = Patience(shared.limits, lambda: shared.board.there_bytes)
        try:
            repeat(
                self._attempt,
                patience,
                sleep=lambda pause_s: _ignore(shared.tools.pause(shared.ended, pause_s)),
                announce=self._announce,
            )
        except TransferFailure as failure:
            kept = ", which keeps the chunks that are there" if shared.board.there_bytes else ""
            return given_up(shared.pieces[0].url, failure, attempts=patience.attempts, kept=kept)
        return None

    def _announce(self, failure: TransferFailure, pause_s: float) -> None:
        # Chunks that are there stay, so nothing starts from the beginning here.
        self._shared.messages.append(announcement(TransferFailure(failure.reason), pause_s))

    def _attempt(self) -> None:
        board, table = self._shared.board, self._shared.table
        if self._shared.is_whole_claimed and not self._reads_whole:
            raise _Superfluous
        run = board.take(
            max(1, self._run_bytes // table.chunk_size),
            self._shared.limits.connections,
            least=self._least_bytes // table.chunk_size,
        )
        if run is None:
            return
        try:
            self._fetch(run)
        except TransferFailure as failure:
            self._shared.is_rangeless = self._shared.is_rangeless or failure.is_range_useless
            raise
        finally:
            board.give_back(run)

    def _fetch(self, run: Run) -> None:
        shared, table = self._shared, self._shared.table
        start, end = table.span(run.first)[0], sum(table.span(run.end - 1))
        piece = next(piece for piece in reversed(shared.pieces) if piece.start <= start)
        ask = Ask(offset=start - piece.start, end=end - piece.start, total=piece.size)
        if shared.is_rangeless:
            ask = Ask(total=piece.size)
        url = shared.places.get(piece.url, piece.url)
        asked_at = shared.tools.clock()
        with shared.tools.transport.get(url, ask.headers()) as answer:
            waited_s = shared.tools.clock() - asked_at
            self._require_place(piece, url, answer.head)
            plan = judge(ask, answer.head, piece.url)
            if answer.url and answer.url != piece.url:
                shared.places[piece.url] = answer.url
            if plan.total not in (None, piece.size):
                raise SizeRefused(str(plan.total), piece.size)
            if answer.head.status == 206:
                shared.ranges_confirmed.set()
                self._receive(answer, Sink(shared, start, end))
            else:
                self._receive_whole(answer, piece, is_size_told=plan.total is not None)
        self._adapt(waited_s, shared.tools.clock() - asked_at, end - start)

    def _require_place(self, piece: Piece, url: str, head: Head) -> None:
        """Ask the first address again when the one behind its redirect has expired."""
        if url != piece.url and head.status in _GONE:
            self._shared.places.pop(piece.url, None)
            raise TransferFailure("the address behind the redirect has expired")

    def _receive(self, answer: Answer, sink: Sink) -> None:
        shared = self._shared
        guard = SpeedGuard(shared.limits, shared.tools.clock)
        try:
            for block in answer.blocks:
                if shared.board.is_stopped:
                    return
                guard.feed(len(block))
                shared.count(len(block))
                sink.feed(block)
        finally:
            if not shared.board.is_stopped:
                sink.flush()
        sink.require_end()

    def _receive_whole(self, answer: Answer, piece: Piece, *, is_size_told: bool) -> None:
        if not self._reads_whole and not self._shared.claim_whole():
            raise _Superfluous
        if not self._reads_whole:
            self._shared.messages.append("the server does not give parts; taking the whole file from it")
        self._reads_whole = True
        self._shared.ranges_confirmed.set()
        sink = Sink(self._shared, piece.start, piece.start + piece.size)
        try:
            self._receive(answer, sink)
        except WrongEnd as failure:
            # A body of untold length that ends properly says how long the file is.
            if is_size_told:
                raise
            raise SizeRefused("more" if failure.is_beyond else "fewer", piece.size) from failure

    def _adapt(self, waited_s: float, took_s: float, size: int) -> None:
        if waited_s > _WAIT_SHARE * took_s and size >= self._run_bytes:
            self._run_bytes = min(2 * self._run_bytes, _LONGEST_RUN_BYTES)
        bytes_per_s = size / max(took_s - waited_s, 1e-3)
        enough = int(waited_s / _LARGEST_WAIT_SHARE * bytes_per_s)
        self._least_bytes = min(max(enough, _SHORTEST_RUN_BYTES), self._run_bytes)


class WrongEnd(TransferFailure):
    """A body is shorter than the range that it should fill, or goes on behind it."""

    def __init__(self, reason: str, *, is_beyond: bool) -> None:
        super().__init__(reason)
        self.is_beyond = is_beyond


class Sink:
    """Takes the bytes from `start` to `end` in order, in blocks of any size; writes the right chunks."""

    def __init__(self, shared: Shared, start: int, end: int) -> None:
        self._shared = shared
        self._table = shared.table
        self._position = start
        self._end = end
        size = max(_BATCH_BYTES, shared.table.chunk_size)
        self._buffer = memoryview(bytearray(min(size, max(end - start, 1))))
        self._fill = 0

    def feed(self, block: bytes) -> None:
        """Add the next bytes. Raises `WrongEnd`, `ChunkRefused` and `OSError`."""
        data = memoryview(block)
        if self._position + self._fill + len(data) > self._end:
            raise WrongEnd("the server sent more bytes than it announced", is_beyond=True)
        while data:
            count = min(len(data), len(self._buffer) - self._fill)
            self._buffer[self._fill : self._fill + count] = data[:count]
            self._fill += count
            data = data[count:]
            if self._fill == len(self._buffer):
                self.flush()

    def flush(self) -> None:
        """Check and write the chunks that are complete."""
        is_end = self._position + self._fill == self._end
        count = -(-self._fill // self._table.chunk_size) if is_end else self._fill // self._table.chunk_size
        first = self._position // self._table.chunk_size
        good_from: int | None = None
        for number in range(first, first + count):
            if self._is_new(number):
                good_from = number if good_from is None else good_from
            elif good_from is not None:
                self._write(good_from, number)
                good_from = None
        if good_from is not None:
            self._write(good_from, first + count)
        self._forget(count)

    def require_end(self) -> None:
        """Check that nothing is missing. Raises `WrongEnd`."""
        if self._position < self._end:
            missing = self._end - self._position
            raise WrongEnd(f"the answer ended {missing} bytes early", is_beyond=False)

    def _is_new(self, number: int) -> bool:
        """Tell whether a chunk in the buffer is right and not on disk yet."""
        if self._shared.board.is_there(number):
            return False
        if hashlib.sha256(self._slice(number, number + 1)).digest() == self._table.digest(number):
            return True
        self._shared.board.note_wrong(number)
        return False

    def _write(self, first: int, end: int) -> None:
        write_at(self._shared.handle, self._slice(first, end), self._table.span(first)[0])
        self._shared.board.mark(first, end)

    def _slice(self, first: int, end: int) -> memoryview:
        start, stop = self._table.span(first)[0], sum(self._table.span(end - 1))
        return self._buffer[start - self._position : stop - self._position]

    def _forget(self, count: int) -> None:
        size = min(count * self._table.chunk_size, self._fill)
        rest = bytes(self._buffer[size : self._fill])
        self._buffer[: len(rest)] = rest
        self._position += size
        self._fill = len(rest)


def _ignore(_: object) -> None:
    """Drop a result."""
