"""What the tools of a build keep for the next one: which folder it is in, and how large it may get."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from ci.toolchains.expiry import mark_used, remove_unused
from opencoti.console import Console
from opencoti.errors import storage_error

MAX_ZIG_BYTES: Final = 4 << 30
"""About ten builds from scratch. Zig never removes an object from its cache. The compiler cache before it has
them too; the libraries below C and C++, which only Zig has, are made again."""
_LOCK: Final = ".in-use"


@contextmanager
def tool_cache(
    *, shared: Path | None, private: Path, console: Console, max_zig_bytes: int = MAX_ZIG_BYTES
) -> Iterator[Path]:
    """Give a build the folder that its tools may keep things in.

    Args:
        shared: where builds with the same tools find what others left; None: this one takes nothing of them.
        private: used instead, and removed afterwards, also if `shared` cannot be written.
        console: is told of that.
        max_zig_bytes: above that, Zig's part of `shared` is emptied first, unless another build is using it.

    Raises:
        StorageError: there is no place for a private one either.
    """
    lock = _take(shared, console, max_zig_bytes) if shared else None
    if shared is None or lock is None:
        with _private(private) as folder:
            yield folder
        return
    try:
        yield shared
    finally:
        os.close(lock)


def _take(folder: Path, console: Console, max_zig_bytes: int) -> int | None:
    """Return the lock that says it is used, or None if it cannot be."""
    mark_used(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as exc:
        console.warn(
            f"the compiler cache {folder} cannot be written ({exc.strerror}): this build goes without"
        )
        return None
    remove_unused(folder.parent)
    with suppress(OSError):  # a file system without locks: then nobody can tell that nobody uses it
        if _is_alone(lock) and _size_of(folder / "zig") > max_zig_bytes:
            console.info(f"{folder / 'zig'} is emptied: it is larger than {max_zig_bytes >> 20} MiB")
            shutil.rmtree(folder / "zig", ignore_errors=True)
        fcntl.flock(lock, fcntl.LOCK_SH)
    return lock


def _is_alone(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _size_of(folder: Path) -> int:
    """Bytes of the files below; what goes meanwhile counts nothing."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(parent, name)).st_size
    return total


@contextmanager
def _private(folder: Path) -> Iterator[Path]:
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise storage_error(exc, f"cannot make {folder}") from exc
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
