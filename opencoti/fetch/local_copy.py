"""A file of this machine instead of a download: cloned or copied into the partial, and hashed as written."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from opencoti.console import Console
from opencoti.errors import ConfigError, VerificationError, storage_error
from opencoti.fetch import store
from opencoti.fetch.partial import Partial
from opencoti.fetch.progress import Progress
from opencoti.fetch.source import LocalSource
from opencoti.fetch.store import Slot

_SLICE_BYTES = 8 << 20
_FICLONE = 0x40049409  # linux/fs.h


def copy_into(
    source: LocalSource,
    sha256: str,
    *,
    slot: Slot,
    part: Partial,
    console: Console,
    free_bytes: Callable[[Path], int] = store.free_bytes,
) -> int:
    """Fill the partial with the bytes of a local file, check them, return how many they are.

    Raises:
        ConfigError: `local-file-missing`, there is no plain file at the path.
        VerificationError: `hash-mismatch`; the partial is removed, the source stays.
        StorageError: `disk-full`, `storage-failed`.
    """
    handle = _open(source)
    try:
        size = os.fstat(handle).st_size
        slot.note.unlink(missing_ok=True)
        _fill(handle, size, slot=slot, part=part, console=console, free_bytes=free_bytes)
    except OSError as exc:
        free = free_bytes(slot.folder)
        raise store.write_failure(exc, slot, needed=size - part.size, free=free) from exc
    finally:
        os.close(handle)
    if part.hexdigest() != sha256:
        store.discard(slot)
        raise _mismatch(source, sha256, part.hexdigest())
    return part.size


def _open(source: LocalSource) -> int:
    try:
        # O_NONBLOCK: a named pipe must not hold us up; for a plain file it means nothing.
        handle = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError as exc:
        raise _missing(source, "there is no such file") from exc
    except OSError as exc:
        raise storage_error(exc, f"cannot read {source.path}") from exc
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise _missing(source, "it is no plain file")
    return handle


def _fill(
    source: int,
    size: int,
    *,
    slot: Slot,
    part: Partial,
    console: Console,
    free_bytes: Callable[[Path], int],
) -> None:
    progress = Progress(slot.name, console)
    part.restart()
    if _clone(source, part.handle):
        part.load(lambda done: progress.show(done, size))
        return
    free = free_bytes(slot.folder)
    if size > free:
        raise store.disk_full(slot, needed=size, free=free)
    while _copy_slice(source, part):
        progress.show(part.size, max(size, part.size))


def _clone(source: int, target: int) -> bool:
    """Share the blocks of the file where the file system can (Btrfs, XFS, …)."""
    with suppress(OSError, ImportError):
        import fcntl

        fcntl.ioctl(target, _FICLONE, source)
        return True
    return False


def _copy_slice(source: int, part: Partial) -> int:
    """Copy the next bytes inside the kernel where it can, through this process elsewhere; 0 at the end."""
    offset = part.size
    if hasattr(os, "copy_file_range"):
        with suppress(OSError):
            count = os.copy_file_range(
                source, part.handle, _SLICE_BYTES, offset_src=offset, offset_dst=offset
            )
            if count:
                part.absorb(count)
                return count
    # Also after a count of 0: some special file systems report an end that is none.
    block = os.pread(source, _SLICE_BYTES, offset)
    part.append(block)
    return len(block)


def _missing(source: LocalSource, why: str) -> ConfigError:
    return ConfigError(
        "local-file-missing",
        f"cannot take {source.path}, named by {source.named_by}",
        why=why,
        hint="build it first, or correct the path (a relative one counts from the working directory)",
    )


def _mismatch(source: LocalSource, expected: str, found: str) -> VerificationError:
    return VerificationError(
        "hash-mismatch",
        f"{source.path}, named by {source.named_by}, is not the wanted file",
        why=f"expected sha256 {expected}, got {found}",
        hint="a rebuilt file needs a new pin: the SHA-256 is in its MANIFEST.json",
    )
