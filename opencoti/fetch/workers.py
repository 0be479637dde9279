"""The threads of a ranged download: each asks for a run of chunks, checks what arrives, and writes it.

A chunk is hashed before it is written. Where bytes come faster than that is cheap, only samples are: the hash
of the whole file, which is computed in any case, then speaks for the others, and if it is wrong, `ranged`
reads them all again and has the bad ones fetched by workers that check each. One bad sample ends the favour.

A worker that loses its connection gives its run back and tries again later; one that a server turns away for
good leaves the rest to the others. Only the last one to leave makes the download fail. A server that answers
with the whole file instead of a range is read by one worker, the others leave.
"""

from __future__ import annotations

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
from opencoti.fetch.settings import Limits
from opencoti.fetch.sink import Sink, WrongEnd
from opencoti.fetch.transport import Answer

_SHORTEST_RUN_BYTES, _FIRST_RUN_BYTES, _LONGEST_RUN_BYTES = 1 << 20, 4 << 20, 64 << 20
# Runs get longer until the wait for an answer is less than this share of the time that the answer takes, and
# near the end not so short that it is more than the other one.
_WAIT_SHARE, _LARGEST_WAIT_SHARE = 0.1, 0.25
_GONE = {403, 404, 410}
# A run shorter than this says little about speed, and on a connection of its own costs too much.
_LEAST_RUN_S = 0.1
_LOOK_S = 0.05
# Of a fast run the first chunk is checked, and then one in so many.
_SAMPLE_EVERY = 32


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
    checks_each: bool = False
    has_deferred: bool = False

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
        self._is_fast = shared.limits.fast_bytes_per_s == 0

    def run(self) -> None:
        """Work until everything is there, the download ends, or nothing helps any more."""
        shared = self._shared
        if self._number:
            self._await_turn()
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

    def _await_turn(self) -> None:
        """Let the first one find out whether ranges work, where redirects lead, and whether it needs help."""
        shared = self._shared
        shared.ranges_confirmed.wait()
        is_enough = True
        while is_enough and not shared.board.is_stopped:
            since, before = shared.tools.clock(), shared.received_bytes
            shared.ended.wait(_LOOK_S)
            elapsed = shared.tools.clock() - since
            is_enough = shared.received_bytes - before >= shared.limits.alone_bytes_per_s * elapsed

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
                self._receive(answer, self._sink(start, end))
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
        # Others may still be writing parts of what comes here: from now on each chunk is checked.
        self._shared.checks_each = True
        sink = self._sink(piece.start, piece.start + piece.size)
        try:
            self._receive(answer, sink)
        except WrongEnd as failure:
            # A body of untold length that ends properly says how long the file is.
            if is_size_told:
                raise
            raise SizeRefused("more" if failure.is_beyond else "fewer", piece.size) from failure

    def _sink(self, start: int, end: int) -> Sink:
        sample_every = _SAMPLE_EVERY if self._is_fast else 1
        return Sink(self._shared, start, end, sample_every=sample_every)

    def _adapt(self, waited_s: float, took_s: float, size: int) -> None:
        is_short = waited_s > _WAIT_SHARE * took_s or took_s < _LEAST_RUN_S
        if is_short and size >= self._run_bytes:
            self._run_bytes = min(2 * self._run_bytes, _LONGEST_RUN_BYTES)
        bytes_per_s = size / max(took_s - waited_s, 1e-3)
        self._is_fast = bytes_per_s >= self._shared.limits.fast_bytes_per_s
        enough = int(waited_s / _LARGEST_WAIT_SHARE * bytes_per_s)
        self._least_bytes = min(max(enough, _SHORTEST_RUN_BYTES), self._run_bytes)


def _ignore(_: object) -> None:
    """Drop a result."""
