"""A download whose chunks are known: several ranges at once, each chunk hashed before it is written.

Order of work: what an earlier run left in the partial, what older files on this machine have, the rest from
the network. The partial has holes while this goes on, so the resume note of `download` is removed first: only
the chunk table tells what is there. The SHA-256 of the whole file is computed in the same pass: the calling
thread follows the frontier and hashes what was written, in file order. It proves the pinned SHA-256 even if
the chunk table came from somebody who is not trusted.

Worker threads are daemons and own a descriptor of their own, so that one that hangs in the network neither
holds up the end of the program nor can write into another file.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from opencoti.chunks import ChunkTable
from opencoti.console import Console
from opencoti.errors import OpencotiError
from opencoti.fetch import scan, store
from opencoti.fetch.board import Board, ChunkRefused
from opencoti.fetch.download import Tools, Transfer
from opencoti.fetch.partial import Partial
from opencoti.fetch.progress import Progress
from opencoti.fetch.settings import Limits
from opencoti.fetch.store import Slot
from opencoti.fetch.workers import Piece, Shared, SizeRefused, Worker

T = TypeVar("T")
_JOIN_S, _HURRIED_JOIN_S = 1.0, 0.2
_POLL_S = 0.2
_HASH_STEP_BYTES = 8 << 20
_FOLLOW_BYTES = 2 << 20
_WORTH_A_CONNECTION_BYTES = 1 << 20


class TableUnfit(Exception):  # noqa: N818 - an event that is handled, not an error that is shown
    """The chunk table and the wanted file do not belong together, or the server has another file."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class RangedDownload:
    """One file of known chunks into one partial. Call `run` once, under the lock of the slot.

    Args:
        pieces: the assets, in order and without gaps; each starts at a multiple of the chunk size.
        sha256: what the whole file must hash to.
        table: its chunks.
        seeds: older files that may hold some of them.
    """

    def __init__(
        self,
        pieces: Sequence[Piece],
        sha256: str,
        table: ChunkTable,
        *,
        slot: Slot,
        part: Partial,
        limits: Limits,
        tools: Tools,
        console: Console,
        seeds: Sequence[Path] = (),
    ) -> None:
        self._pieces = pieces
        self._sha256 = sha256
        self._table = table
        self._slot = slot
        self._part = part
        self._limits = limits
        self._tools = tools
        self._console = console
        self._seeds = seeds
        self._progress = Progress(slot.name, console, clock=tools.clock)
        self._board = self._new_board()
        self.transferred_bytes = 0
        self._resumed = 0
        self._seeded = 0
        # A part and the whole file were written side by side, and not all of the part was checked.
        self._is_doubtful = False

    def run(self) -> Transfer:
        """Fill the partial with the wanted bytes, hashed in file order.

        Raises:
            TableUnfit: the server's chunks are not those of the table, or all chunks of the table together
                are not the wanted file.
            NetworkError: `download-failed`, `not-found`, `http-refused`, …; the partial stays.
            StorageError: `disk-full`, `storage-failed`; the partial stays.
        """
        store.remove_note(self._slot)
        self._take_over()
        self._seed()
        self._fetch_missing()
        if self._is_doubtful or self._part.hexdigest() != self._sha256:
            self._look_again()
        if self._part.hexdigest() != self._sha256:
            raise TableUnfit("all chunks are right, but together they are not the wanted file")
        return Transfer(
            transferred_bytes=self.transferred_bytes, resumed_from=self._resumed, seeded_bytes=self._seeded
        )

    def _new_board(self) -> Board:
        return Board(self._table, (piece.start // self._table.chunk_size for piece in self._pieces))

    def _take_over(self) -> None:
        """Find what an earlier run left in the partial."""
        stored = self._guarded(lambda: self._part.stored_bytes)
        if stored == 0:
            return
        if stored > self._table.file_size:
            self._guarded(lambda: os.truncate(self._part.handle, self._table.file_size))

        def report(done: int) -> None:
            self._progress.show(done, stored, "checking")

        self._guarded(lambda: scan.find_in_place(self._part.handle, self._table, self._board, report))
        self._resumed = self._board.there_bytes
        if self._resumed:
            self._console.info(f"{self._slot.name}: {self._resumed} bytes are there already")

    def _seed(self) -> None:
        for old in self._seeds:
            if self._board.missing_bytes == 0:
                return
            before = self._board.there_bytes
            self._guarded(lambda old=old: self._copy_from(old))  # type: ignore[misc]
            gained = self._board.there_bytes - before
            self._seeded += gained
            if gained:
                self._console.info(f"{self._slot.name}: {gained} bytes taken from {old}")

    def _copy_from(self, old: Path) -> None:
        def report(done: int) -> None:
            self._progress.show(done, None, f"comparing {old.name}")

        scan.copy_from(old, self._part.handle, self._table, self._board, report)

    def _fetch_missing(self, *, checks_each: bool = False) -> None:
        """Start the workers, follow the frontier with the hash, and end the workers whatever happens."""
        self._require_room()
        self._progress.start(self._board.there_bytes)
        handle = os.dup(self._part.handle)
        shared = Shared(
            board=self._board,
            table=self._table,
            pieces=self._pieces,
            handle=handle,
            limits=self._limits,
            tools=self._tools,
            name=self._slot.name,
            checks_each=checks_each,
        )
        threads = [
            threading.Thread(target=Worker(shared, number).run, name=f"range-{number}", daemon=True)
            for number in range(self._worker_count())
        ]
        shared.workers_left = len(threads)
        join_s = _JOIN_S
        try:
            for thread in threads:
                thread.start()
            self._follow(shared)
        except BaseException as exc:
            # Who presses Ctrl-C does not wait for a thread that waits for a silent server.
            join_s = _JOIN_S if isinstance(exc, Exception) else _HURRIED_JOIN_S
            raise
        finally:
            self._end(shared, threads, join_s)
            self._is_doubtful = shared.is_whole_claimed and shared.has_deferred
            self.transferred_bytes += shared.received_bytes

    def _follow(self, shared: Shared) -> None:
        hashed, step = 0, max(1, _FOLLOW_BYTES // self._table.chunk_size)
        while self._part.size < self._table.file_size:
            hashed = self._board.wait_frontier(hashed + step, _POLL_S)
            self._hash_up_to(min(hashed * self._table.chunk_size, self._table.file_size), shared)
            self._tell(shared)
            if self._board.is_stopped and self._board.missing_bytes:
                raise self._explained(self._board.failure)

    def _hash_up_to(self, end: int, shared: Shared) -> None:
        while self._part.size < end:
            before = self._part.size
            count = min(_HASH_STEP_BYTES, end - before)
            self._guarded(lambda count=count: self._part.absorb(count))  # type: ignore[misc]
            if self._part.size == before:
                raise TableUnfit("the unfinished file was cut by somebody else")
            self._tell(shared)

    def _tell(self, shared: Shared) -> None:
        while shared.messages:
            self._console.info(f"{self._slot.name}: {shared.messages.popleft()}")
        self._progress.show(self._board.there_bytes, self._table.file_size)

    def _end(self, shared: Shared, threads: Sequence[threading.Thread], join_s: float) -> None:
        self._board.stop()
        shared.ended.set()
        shared.ranges_confirmed.set()
        deadline = self._tools.clock() + join_s
        for thread in threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - self._tools.clock()))
        if not any(thread.is_alive() for thread in threads):
            os.close(shared.handle)

    def _look_again(self) -> None:
        """Read the partial again: a chunk that was no sample may be wrong, or a seed changed meanwhile.

        It is hashed again too: after a doubt the bytes may be others than those that went through the hash,
        and the chunk table alone proves nothing.
        """
        self._board = self._new_board()
        self._guarded(lambda: scan.find_in_place(self._part.handle, self._table, self._board, lambda _: None))
        if self._board.missing_bytes:
            self._console.info(
                f"{self._slot.name}: {self._board.missing_bytes} bytes are wrong; fetching them again"
            )
        self._part.rewind()
        self._fetch_missing(checks_each=True)

    def _worker_count(self) -> int:
        useful = -(-self._board.missing_bytes // _WORTH_A_CONNECTION_BYTES)
        return min(self._limits.connections, useful)

    def _require_room(self) -> None:
        needed = self._board.missing_bytes
        free = self._guarded(lambda: self._tools.free_bytes(self._slot.folder))
        if needed > free:
            raise store.disk_full(self._slot, needed=needed, free=free)

    def _explained(self, failure: Exception | None) -> Exception:
        if isinstance(failure, OpencotiError):
            return failure
        if isinstance(failure, OSError):
            return self._write_failure(failure)
        if isinstance(failure, SizeRefused):
            return TableUnfit(failure.reason)
        if isinstance(failure, ChunkRefused):
            start, size = self._table.span(failure.number)
            return TableUnfit(
                f"bytes {start} to {start + size - 1} from the server are not those of the table"
            )
        return failure or RuntimeError("the workers left without a word")

    def _guarded(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except OSError as exc:
            raise self._write_failure(exc) from exc

    def _write_failure(self, exc: OSError) -> OpencotiError:
        free = self._tools.free_bytes(self._slot.folder)
        return store.write_failure(exc, self._slot, needed=self._board.missing_bytes, free=free)
