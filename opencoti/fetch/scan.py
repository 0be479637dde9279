"""Finding chunks of the wanted file in files on disk: in its own partial, and in older artifacts.

A chunk is found at any multiple of the chunk size, so what moved by whole chunks between two builds is found
too; members of our artifacts start at such multiples. Each block is read and hashed once, by several threads.
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from opencoti.chunks import ChunkTable, usable_cpus
from opencoti.fetch.board import Board

_BLOCK_BYTES = 1 << 20
_READ_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
Report = Callable[[int], None]


def find_in_place(handle: int, table: ChunkTable, board: Board, report: Report) -> None:
    """Mark the chunks that stand at their own place in an open file. Raises `OSError`."""

    def visit(offset: int, digests: list[bytes], data: memoryview) -> None:
        for number, digest in enumerate(digests, offset // table.chunk_size):
            if number < table.count and digest == table.digest(number):
                board.mark(number, number + 1)

    _scan(handle, table.chunk_size, visit, lambda: False, report)


def copy_from(old: Path, target: int, table: ChunkTable, board: Board, report: Report) -> None:
    """Copy every missing chunk that an older file has, and mark it. The older file is only read.

    Args:
        old: the older file; one that is no plain file or cannot be read has nothing.
        target: descriptor of the partial.
        table: the wanted chunks.
        board: which of them are missing.
        report: told how many bytes of the older file are done.

    Raises:
        OSError: the partial cannot be written.
    """
    with suppress(FileNotFoundError, PermissionError, IsADirectoryError):
        source = os.open(old, _READ_FLAGS)
        try:
            if stat.S_ISREG(os.fstat(source).st_mode):
                copier = _Copier(source, target, table, board)
                _scan(source, table.chunk_size, copier.visit, lambda: board.missing_bytes == 0, report)
        finally:
            os.close(source)


@dataclass(frozen=True, kw_only=True)
class _Match:
    """A chunk of the older file, and the number that it has in the wanted one."""

    offset: int
    number: int


class _Copier:
    """Puts what one older file has into the partial."""

    def __init__(self, source: int, target: int, table: ChunkTable, board: Board) -> None:
        self._source = source
        self._target = target
        self._table = table
        self._board = board
        self._wanted = _by_digest(table, board)

    def visit(self, offset: int, digests: list[bytes], data: memoryview) -> None:
        matches = [
            _Match(offset=offset + at * self._table.chunk_size, number=number)
            for at, digest in enumerate(digests)
            for number in self._wanted.get(digest, ())
            if not self._board.is_there(number)
        ]
        for run in _runs(matches, self._table.chunk_size):
            self._copy(run, data[run[0].offset - offset :])

    def _copy(self, run: list[_Match], data: memoryview) -> None:
        first, last = run[0].number, run[-1].number
        start = self._table.span(first)[0]
        size = sum(self._table.span(last)) - start
        if not _share(self._source, self._target, size, run[0].offset, start):
            write_at(self._target, data[:size], start)
        self._board.mark(first, last + 1)


def write_at(handle: int, data: memoryview, offset: int) -> None:
    """Write all of `data`. Raises `OSError`."""
    while data:
        written = os.pwrite(handle, data, offset)
        offset += written
        data = data[written:]


def _share(source: int, target: int, size: int, offset: int, start: int) -> bool:
    """Let the kernel copy, which on Btrfs or XFS shares the blocks instead; tell whether it did all.

    The older file may be changed by somebody between our reading and this: the hash over the whole file,
    which reads what was written, finds that.
    """
    if not hasattr(os, "copy_file_range"):
        return False
    with suppress(OSError):
        return os.copy_file_range(source, target, size, offset_src=offset, offset_dst=start) == size
    return False


def _by_digest(table: ChunkTable, board: Board) -> Mapping[bytes, list[int]]:
    wanted: dict[bytes, list[int]] = {}
    for number in board.missing_numbers():
        wanted.setdefault(table.digest(number), []).append(number)
    return wanted


def _runs(matches: list[_Match], chunk_size: int) -> Iterator[list[_Match]]:
    """Group matches that follow each other in both files."""
    run: list[_Match] = []
    for match in matches:
        is_next = run and (match.number, match.offset) == (run[-1].number + 1, run[-1].offset + chunk_size)
        if run and not is_next:
            yield run
            run = []
        run.append(match)
    if run:
        yield run


def _scan(
    handle: int,
    chunk_size: int,
    visit: Callable[[int, list[bytes], memoryview], None],
    is_enough: Callable[[], bool],
    report: Report,
) -> None:
    """Call `visit(offset, digests, data)` for every block of a file that is no hole, from several threads."""
    blocks = _blocks(handle, max(_BLOCK_BYTES, chunk_size))
    lock, stop, done = threading.Lock(), threading.Event(), 0

    def work() -> None:
        nonlocal done
        while not stop.is_set() and not is_enough():
            with lock:
                block = next(blocks, None)
            if block is None:
                return
            data = memoryview(_read(handle, *block))
            pieces = range(0, len(data), chunk_size)
            visit(block[0], [hashlib.sha256(data[at : at + chunk_size]).digest() for at in pieces], data)
            with lock:
                done += len(data)
                report(done)

    threads = usable_cpus()
    with ThreadPoolExecutor(threads, thread_name_prefix="scan") as pool:
        futures = [pool.submit(work) for _ in range(threads)]
        try:
            for future in futures:
                future.result()
        except BaseException:
            stop.set()
            raise


def _read(handle: int, offset: int, size: int) -> bytes:
    """Return a block; what cannot be read is not there, and comes from the network."""
    with suppress(OSError):
        return os.pread(handle, size, offset)
    return b""


def _blocks(handle: int, block_bytes: int) -> Iterator[tuple[int, int]]:
    """Return offset and size of the blocks that hold data; each offset is a multiple of `block_bytes`."""
    size, offset = os.fstat(handle).st_size, 0
    while offset < size:
        data = _next_data(handle, offset)
        if data is None:
            return
        offset = max(offset, data - data % block_bytes)
        yield offset, min(block_bytes, size - offset)
        offset += block_bytes


def _next_data(handle: int, offset: int) -> int | None:
    """Return where the next bytes that are no hole begin; `offset` where the file system cannot tell."""
    if not hasattr(os, "SEEK_DATA"):
        return offset
    try:
        return os.lseek(handle, offset, os.SEEK_DATA)
    except OSError as exc:
        import errno

        return None if exc.errno == errno.ENXIO else offset
