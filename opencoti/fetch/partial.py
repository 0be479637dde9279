"""The unfinished file, the hash that runs over it, and the note that lets a later run go on with it.

Invariant of `Partial`: exactly the first `size` bytes of the file went through the hash. What a killed run
left behind is hashed from disk again before anything is added: no note is believed about bytes.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from opencoti.errors import ConfigError, storage_error
from opencoti.fetch.answers import is_returnable
from opencoti.fetch.running_hash import RunningHash
from opencoti.files import write_atomic

_BLOCK_BYTES = 1 << 20
# Small enough to stay in the cache of a processor between reading and hashing.
_ABSORB_BYTES = 256 << 10
_WRITE_BACK_BYTES = 16 << 20
_HEAD_BYTES = 256
_MAX_STATE_BYTES = 16 << 10
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # for a pipe


class Partial:
    """An open partial file. `open` it, then `load` or `restart`; its `with` block closes it."""

    def __init__(self, path: Path, handle: int) -> None:
        self.path = path
        self.head = b""
        self.size = 0
        self._handle = handle
        self._digest = RunningHash()
        self._written_back = 0
        self._buffer: memoryview | None = None
        self._background: ThreadPoolExecutor | None = None

    @classmethod
    def open(cls, path: Path) -> Partial:
        """Open or create `path`, never through a link and never a file that has another name too.

        Raises:
            StorageError: the folder refuses.
        """
        try:
            _remove_stranger(path)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | _NO_FOLLOW, 0o600)
        except OSError as exc:
            raise storage_error(exc, f"cannot write {path}") from exc
        return cls(path, handle)

    def __enter__(self) -> Partial:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def handle(self) -> int:
        """The file descriptor; whoever writes to it must call `absorb`."""
        return self._handle

    @property
    def stored_bytes(self) -> int:
        """How many bytes the file has, hashed or not. Raises `OSError`."""
        return os.fstat(self._handle).st_size

    def load(self, on_bytes: Callable[[int], None]) -> None:
        """Take in what an earlier run left, telling `on_bytes` how far it is. Raises `OSError`."""
        self._forget()
        while block := os.pread(self._handle, _BLOCK_BYTES, self.size):
            self._keep_head(block)
            self._digest.update(block)
            self.size = self._written_back = self.size + len(block)
            on_bytes(self.size)

    def absorb(self, count: int) -> None:
        """Hash `count` bytes that were written behind the known ones by other means. Raises `OSError`."""
        end = self.size + count
        buffer = self._buffer = self._buffer or memoryview(bytearray(_ABSORB_BYTES))
        while self.size < end:
            read = os.preadv(self._handle, [buffer[: min(len(buffer), end - self.size)]], self.size)
            if not read:
                return
            self._keep_head(buffer[:read])
            self._digest.update_now(buffer[:read])
            self._grow(read)

    def append(self, block: bytes) -> None:
        """Write a block behind the known bytes. Raises `OSError`."""
        rest = memoryview(block)
        offset = self.size
        while rest:
            written = os.pwrite(self._handle, rest, offset)
            offset += written
            rest = rest[written:]
        self._take(block)

    def rewind(self) -> None:
        """Know no byte any more; those on disk stay."""
        self._forget()

    def restart(self) -> None:
        """Drop all bytes. Raises `OSError`."""
        os.ftruncate(self._handle, 0)
        self._forget()

    def hexdigest(self) -> str:
        """Return the SHA-256 of the known bytes."""
        return self._digest.hexdigest()

    def finish(self, mode: int) -> None:
        """Cut what lies behind the known bytes, set the mode, make it durable. Raises `OSError`."""
        self._end_background()
        os.ftruncate(self._handle, self.size)
        os.fchmod(self._handle, mode)
        os.fsync(self._handle)

    def is_at_its_path(self) -> bool:
        """Tell whether the path still names this very file. Raises `OSError`."""
        mine, there = os.fstat(self._handle), os.lstat(self.path)
        return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)

    def reopen_for_reading(self) -> None:
        """Give up the right to write, which an execution of the file would trip over. Raises `OSError`."""
        handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | _NO_FOLLOW)
        os.dup2(handle, self._handle, inheritable=False)
        os.close(handle)

    def close(self) -> None:
        """Close the file; it stays. May be called twice."""
        self._digest.close()
        self._end_background()
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _take(self, block: bytes) -> None:
        self._keep_head(block)
        self._digest.update(block)
        self._grow(len(block))

    def _keep_head(self, block: bytes | memoryview) -> None:
        if self.size < _HEAD_BYTES:
            self.head = (self.head + bytes(block[:_HEAD_BYTES]))[:_HEAD_BYTES]

    def _grow(self, count: int) -> None:
        self.size += count
        if self.size - self._written_back >= _WRITE_BACK_BYTES:
            self._write_back(self._written_back, self.size - self._written_back)
            self._written_back = self.size

    def _write_back(self, offset: int, size: int) -> None:
        """Let the kernel begin to write to disk, so that `fsync` at the end has little left to wait for.

        Linux starts writing what is dirty when it is told that a range is not needed; what it is still
        writing stays in memory. Finding room on the disk takes it a while, which is spent on a thread.
        """
        if not hasattr(os, "posix_fadvise"):
            return
        if self._background is None:
            self._background = ThreadPoolExecutor(1, thread_name_prefix="write-back")
        self._background.submit(os.posix_fadvise, self._handle, offset, size, os.POSIX_FADV_DONTNEED)

    def _end_background(self) -> None:
        """Wait until nobody but the caller uses the descriptor; what was not begun is left to `fsync`."""
        if self._background is not None:
            self._background.shutdown(cancel_futures=True)
            self._background = None

    def _forget(self) -> None:
        self._digest.close()
        self._digest = RunningHash()
        self.size, self._written_back, self.head = 0, 0, b""


def _remove_stranger(path: Path) -> None:
    """Remove what stands at `path` unless it is a plain file with this one name."""
    with suppress(FileNotFoundError):
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            os.unlink(path)


@dataclass(frozen=True, kw_only=True)
class ResumeNote:
    """What the server said about the file when the partial was begun."""

    sha256: str
    url: str
    etag: str
    last_modified: str
    total: int | None

    @classmethod
    def load(cls, path: Path) -> ResumeNote | None:
        """Read a note; anything odd about it is the same as none."""
        from opencoti.jsonio import parse_strict

        try:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | _NO_FOLLOW | _NO_WAIT)
        except OSError:
            return None
        try:
            data = parse_strict(os.read(handle, _MAX_STATE_BYTES), str(path))
        except (OSError, ConfigError):
            return None
        finally:
            os.close(handle)
        return cls._from_data(data)

    @classmethod
    def _from_data(cls, data: object) -> ResumeNote | None:
        texts = ("sha256", "url", "etag", "last_modified")
        if not isinstance(data, dict) or set(data) != {*texts, "total"}:
            return None
        if not all(isinstance(data[key], str) and data[key].isprintable() for key in texts):
            return None
        if not all(is_returnable(data[key]) for key in ("etag", "last_modified")):
            return None
        total = data["total"]
        if total is not None and (type(total) is not int or total < 0):
            return None
        return cls(**data)

    def store(self, path: Path) -> None:
        """Write the note, whole or not at all. Raises `StorageError`."""
        write_atomic(path, json.dumps(asdict(self)).encode())
