r"""The `.chunks` sidecar: SHA-256 of every 64 KiB piece of an artifact, from its first byte to its last.

Form: one text line, then the digests back to back, 32 bytes each, in file order:

    opencoti-chunks 1 <chunk size> <file size> <count>\n<32 bytes>...

The chunk size is the alignment of members in the artifact (docs/reference/artifact.md): every member starts
a chunk, so a member that moved between two builds still has the same digests. The table is 0.05 % of the
file.
What names the table and vouches for it (the manifest) is not known here.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from opencoti.errors import ConfigError, storage_error
from opencoti.files import write_atomic

CHUNK_SIZE_BYTES = 1 << 16
_DIGEST_BYTES = 32
_BLOCK_BYTES = 1 << 20
_MAX_TABLE_BYTES = 1 << 30
_HEADER = re.compile(rb"opencoti-chunks 1 ([1-9][0-9]{0,9}) (0|[1-9][0-9]{0,18}) (0|[1-9][0-9]{0,18})\n")
_MIN_CHUNK_BYTES, _MAX_CHUNK_BYTES = 1 << 12, 1 << 20


@dataclass(frozen=True, kw_only=True)
class ChunkTable:
    """Digests of all chunks of one file; the last chunk may be short."""

    chunk_size: int
    file_size: int
    digests: bytes

    @property
    def count(self) -> int:
        """How many chunks the file has."""
        return -(-self.file_size // self.chunk_size)

    def digest(self, number: int) -> bytes:
        """Return the SHA-256 (32 bytes) of a chunk, counted from 0."""
        return self.digests[number * _DIGEST_BYTES : (number + 1) * _DIGEST_BYTES]

    def span(self, number: int) -> tuple[int, int]:
        """Return where a chunk starts and how many bytes it has."""
        start = number * self.chunk_size
        return start, min(self.chunk_size, self.file_size - start)


class ChunkHasher:
    """Makes the table of a file that is fed in order, in blocks of any size."""

    def __init__(self, chunk_size: int = CHUNK_SIZE_BYTES) -> None:
        self._chunk_size = chunk_size
        self._digests = bytearray()
        self._partial = hashlib.sha256()
        self._fed = 0

    def update(self, data: memoryview) -> None:
        """Add the next bytes of the file."""
        position = 0
        while position < len(data):
            take = min(len(data) - position, self._chunk_size - self._fed % self._chunk_size)
            self._partial.update(data[position : position + take])
            position += take
            self._fed += take
            if self._fed % self._chunk_size == 0:
                self._close_chunk()

    def finish(self) -> ChunkTable:
        """Return the table; nothing may be fed afterwards."""
        if self._fed % self._chunk_size:
            self._close_chunk()
        return ChunkTable(chunk_size=self._chunk_size, file_size=self._fed, digests=bytes(self._digests))

    def _close_chunk(self) -> None:
        self._digests += self._partial.digest()
        self._partial = hashlib.sha256()


def render_table(table: ChunkTable) -> bytes:
    """Return the bytes of the sidecar."""
    header = f"opencoti-chunks 1 {table.chunk_size} {table.file_size} {table.count}\n"
    return header.encode("ascii") + table.digests


def parse_table(data: bytes, origin: str) -> ChunkTable:
    """Read a sidecar.

    Raises:
        ConfigError: `chunks-malformed`; the header, the count and the length must agree.
    """
    header = _HEADER.match(data[:128])
    if header is None:
        raise _malformed(origin, "the first line is not `opencoti-chunks 1 <chunk size> <file size> <count>`")
    chunk_size, file_size, count = (int(group) for group in header.groups())
    if not _MIN_CHUNK_BYTES <= chunk_size <= _MAX_CHUNK_BYTES or chunk_size & (chunk_size - 1):
        raise _malformed(origin, f"chunk size {chunk_size} is not a power of two from 4 KiB to 1 MiB")
    table = ChunkTable(chunk_size=chunk_size, file_size=file_size, digests=data[header.end() :])
    if table.count != count:
        raise _malformed(origin, f"{file_size} bytes are {table.count} chunks, the header says {count}")
    if len(table.digests) != count * _DIGEST_BYTES:
        raise _malformed(
            origin,
            f"{count} chunks need {count * _DIGEST_BYTES} bytes of digests, found {len(table.digests)}",
        )
    return table


def write(path: Path, table: ChunkTable) -> None:
    """Write the sidecar, whole or not at all. Raises `StorageError`."""
    write_atomic(path, render_table(table))


def load(path: Path) -> ChunkTable:
    """Read a sidecar from disk. Raises `ConfigError` (`chunks-malformed`) and `StorageError`."""
    return parse_table(read_sidecar(path), str(path))


def read_sidecar(path: Path) -> bytes:
    """Return the bytes of a sidecar, not yet parsed. Raises `ConfigError` and `StorageError`."""
    try:
        if path.stat().st_size > _MAX_TABLE_BYTES:
            raise _malformed(str(path), f"it is larger than {_MAX_TABLE_BYTES} bytes")
        return path.read_bytes()
    except OSError as exc:
        raise storage_error(exc, f"cannot read {path}") from exc


def hash_file(path: Path, *, chunk_size: int = CHUNK_SIZE_BYTES) -> ChunkTable:
    """Compute the table of a file. Raises `StorageError`."""
    hasher = ChunkHasher(chunk_size)
    try:
        with open(path, "rb", buffering=0) as file:
            while block := file.read(_BLOCK_BYTES):
                hasher.update(memoryview(block))
    except OSError as exc:
        raise storage_error(exc, f"cannot read {path}") from exc
    return hasher.finish()


def verify_file(
    path: Path,
    table: ChunkTable,
    threads: int | None = None,
    *,
    on_bytes: Callable[[int], None] | None = None,
) -> list[int]:
    """Hash a file in parallel and return the numbers of the chunks that differ, ascending.

    A chunk that the file does not (fully) have differs. Bytes behind `table.file_size` are not looked at:
    compare the size as well.

    Args:
        path: the file.
        table: what it should be.
        threads: hashing threads, by default one per CPU this process may use.
        on_bytes: called from the hashing threads, one at a time, with the number of bytes done so far.

    Raises:
        StorageError: the file cannot be read.
    """
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    except OSError as exc:
        raise storage_error(exc, f"cannot read {path}") from exc
    try:
        return verify_handle(handle, table, threads, on_bytes=on_bytes)
    except OSError as exc:
        raise storage_error(exc, f"cannot read {path}") from exc
    finally:
        os.close(handle)


def verify_handle(
    handle: int,
    table: ChunkTable,
    threads: int | None = None,
    *,
    on_bytes: Callable[[int], None] | None = None,
) -> list[int]:
    """Do the work of `verify_file` on an open file descriptor. Raises `OSError`."""
    job = _Verification(handle, table, on_bytes)
    workers = threads or usable_cpus()
    with ThreadPoolExecutor(workers, thread_name_prefix="chunks") as pool:
        return sorted(chain.from_iterable(pool.map(lambda _: job.work(), range(workers))))


def usable_cpus() -> int:
    """Return how many CPUs this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Verification:
    """One run over a file: threads take the next block until none is left, so reads stay nearly in order."""

    def __init__(self, handle: int, table: ChunkTable, on_bytes: Callable[[int], None] | None) -> None:
        self._handle = handle
        self._table = table
        self._on_bytes = on_bytes
        self._lock = threading.Lock()
        self._per_block = max(1, _BLOCK_BYTES // table.chunk_size)
        self._next = 0
        self._done = 0

    def work(self) -> list[int]:
        buffer = memoryview(bytearray(self._per_block * self._table.chunk_size))
        bad: list[int] = []
        while (first := self._take()) < self._table.count:
            read = _read_at(self._handle, buffer, first * self._table.chunk_size)
            bad += self._compare(first, buffer[:read])
            self._report(read)
        return bad

    def _take(self) -> int:
        with self._lock:
            first = self._next
            self._next += self._per_block
        return first

    def _compare(self, first: int, data: memoryview) -> list[int]:
        bad = []
        for number in range(first, min(first + self._per_block, self._table.count)):
            size = self._table.span(number)[1]
            offset = (number - first) * self._table.chunk_size
            piece = data[offset : offset + size]
            if len(piece) != size or hashlib.sha256(piece).digest() != self._table.digest(number):
                bad.append(number)
        return bad

    def _report(self, read: int) -> None:
        with self._lock:
            self._done += read
            if self._on_bytes is not None:
                self._on_bytes(self._done)


def _read_at(handle: int, buffer: memoryview, offset: int) -> int:
    """Fill `buffer` from `offset` as far as the file goes; return how many bytes there were."""
    filled = 0
    while filled < len(buffer):
        read = os.preadv(handle, [buffer[filled:]], offset + filled)
        if read == 0:
            break
        filled += read
    return filled


def _malformed(origin: str, why: str) -> ConfigError:
    return ConfigError(
        "chunks-malformed",
        f"cannot read chunk table {origin}",
        why=why,
        hint="get it from its publisher again",
    )
