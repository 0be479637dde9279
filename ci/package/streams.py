"""Moving big byte ranges: each block is read once, copied by the kernel, and hashed by several threads.

Memory is bounded by a ring of blocks. Where the file system can share blocks between files, nothing is copied
at all; holes of the source stay holes.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Protocol, Self

# Its CRC-32 uses the processor's carry-less multiplication: 18 times the speed of zlib's here.
from zlib_ng import zlib_ng

BLOCK_BYTES = 1 << 20
_RING_BLOCKS = 12
# The kernel says "not for this pair of files" with one of these; the block is then written the plain way.
_NO_COPY = {
    errno.EXDEV,
    errno.EINVAL,
    errno.ENOSYS,
    errno.EOPNOTSUPP,
    errno.EBADF,
    errno.EPERM,
    errno.ETXTBSY,
}


class Sink(Protocol):
    """Takes the blocks of a range in order, as `hashlib` objects do."""

    def update(self, data: memoryview, /) -> object:
        """Take the next bytes; the block is used again afterwards."""


class Crc32:
    """CRC-32 of a range, as zip files use it."""

    def __init__(self) -> None:
        self.value = 0

    def update(self, data: memoryview) -> None:
        """Add the next bytes."""
        self.value = zlib_ng.crc32(data, self.value)


class RangeCrc32:
    """CRC-32 of several ranges of one file that is fed from its start; ranges ascend and are disjoint."""

    def __init__(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._ranges = [(start, start + size) for start, size in ranges]
        self.values = [0] * len(ranges)
        self._at = 0
        self._current = 0

    def update(self, data: memoryview) -> None:
        """Add the next bytes of the file."""
        end = self._at + len(data)
        while self._current < len(self._ranges) and self._ranges[self._current][0] < end:
            start, stop = self._ranges[self._current]
            piece = data[max(0, start - self._at) : stop - self._at]
            self.values[self._current] = zlib_ng.crc32(piece, self.values[self._current])
            if stop > end:
                break
            self._current += 1
        self._at = end


class Pump:
    """Feeds ranges of files to sinks, each sink in a thread of its own. Close it, or use it in `with`.

    A range is done (every sink has seen every byte) when `feed` returns.
    """

    def __init__(self, threads: int = 3) -> None:
        self._workers = [ThreadPoolExecutor(1, thread_name_prefix="hash") for _ in range(threads)]
        self._ring: deque[tuple[memoryview, list[Future[object]]]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.shutdown(cancel_futures=True)

    def feed(
        self,
        handle: int,
        offset: int,
        size: int,
        sinks: Sequence[Sink],
        *,
        on_block: Callable[[int, memoryview], None] | None = None,
    ) -> int:
        """Pass `size` bytes from `offset` on to every sink.

        Args:
            handle: file descriptor to read from.
            offset: first byte.
            size: number of bytes.
            sinks: at most as many as this pump has threads.
            on_block: called in this thread with the offset within the range and the bytes, in order.

        Returns:
            How many bytes there were; fewer than `size` when the file is shorter.
        """
        done = 0
        try:
            while done < size:
                block = self._free_block()[: min(BLOCK_BYTES, size - done)]
                read = os.preadv(handle, [block], offset + done)
                if read == 0:
                    break
                self._submit(block[:read], sinks)
                if on_block is not None:
                    on_block(done, block[:read])
                done += read
        finally:
            self._drain()
        return done

    def _free_block(self) -> memoryview:
        if len(self._ring) < _RING_BLOCKS:
            return memoryview(bytearray(BLOCK_BYTES))
        block, users = self._ring.popleft()
        for user in users:
            user.result()
        owner = block.obj
        assert isinstance(owner, bytearray)
        return memoryview(owner)

    def _submit(self, block: memoryview, sinks: Sequence[Sink]) -> None:
        users: list[Future[object]] = [
            worker.submit(sink.update, block) for worker, sink in zip(self._workers, sinks, strict=False)
        ]
        self._ring.append((block, users))

    def _drain(self) -> None:
        for _, users in self._ring:
            for user in users:
                user.result()


class RangeCopier:
    """Copies a range from one file to another, block by block, each block already read once."""

    def __init__(self, source: int, source_offset: int, target: int, target_offset: int) -> None:
        self._source = source
        self._target = target
        self._from = source_offset
        self._to = target_offset
        self._can_copy = hasattr(os, "copy_file_range")
        self._data_from = -1  # first data byte at or behind the last position that was looked up

    def write_block(self, at: int, block: memoryview) -> None:
        """Copy the block at `at` within the range. A hole is not written: the target is extended later."""
        if self._is_hole(self._from + at, len(block)):
            return
        done = 0
        while self._can_copy and done < len(block):
            done += self._copy(at + done, len(block) - done)
        while done < len(block):
            done += os.pwrite(self._target, block[done:], self._to + at + done)

    def _copy(self, at: int, length: int) -> int:
        try:
            copied = os.copy_file_range(self._source, self._target, length, self._from + at, self._to + at)
        except OSError as exc:
            if exc.errno not in _NO_COPY:
                raise
            copied = 0
        if copied == 0:
            self._can_copy = False
        return copied

    def _is_hole(self, start: int, length: int) -> bool:
        if start < self._data_from:
            return start + length <= self._data_from
        try:
            self._data_from = os.lseek(self._source, start, os.SEEK_DATA)
        except OSError as exc:
            # ENXIO: only a hole is left up to the end of the file. Others: holes are not known here.
            self._data_from = start + length if exc.errno == errno.ENXIO else start
        return start + length <= self._data_from
