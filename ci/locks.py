"""Locks between processes of this project: one advisory lock file per thing that is written to."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from opencoti.errors import BusyError, storage_error


@contextmanager
def exclusive_lock(path: Path, purpose: str, *, wait: bool = False) -> Iterator[None]:
    """Hold `path` as a lock while the block runs. The kernel drops it when this process dies.

    Args:
        path: the lock file; it is created and stays.
        purpose: what is locked, for the message ("the working tree build/src/elf").
        wait: wait for the holder instead of failing.

    Raises:
        BusyError: `lock-held`, another process of this project holds it.
        StorageError: the lock file cannot be created, or its file system has no locks.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as exc:
        raise storage_error(exc, f"cannot create lock {path}") from exc
    try:
        _acquire(handle, path, purpose, wait)
        with suppress(OSError):  # a full disk: the number is for messages only
            os.truncate(handle, 0)
            os.write(handle, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(handle)


def _acquire(handle: int, path: Path, purpose: str, wait: bool) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError as exc:
        holder = ""
        with suppress(OSError):  # its folder may be gone by now
            holder = path.read_text(encoding="utf-8", errors="replace").strip()
        raise _held(purpose, f"process {holder or '?'} holds {path}") from exc
    except OSError as exc:
        raise storage_error(exc, f"cannot lock {path}") from exc


@contextmanager
def folder_lock(folder: Path, purpose: str) -> Iterator[None]:
    """Hold a folder itself as a lock: for one beside which no file can be made, as on a read-only disk.

    Raises:
        BusyError: `lock-held`, another process of this project holds it.
        StorageError: the folder cannot be opened, or its file system has no locks.
    """
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as exc:
        raise storage_error(exc, f"cannot open {folder}") from exc
    try:
        _acquire_folder(handle, folder, purpose)
        yield
    finally:
        os.close(handle)


def _acquire_folder(handle: int, folder: Path, purpose: str) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        raise _held(purpose, f"another process holds {folder}") from exc
    except OSError as exc:
        raise storage_error(exc, f"cannot lock {folder}") from exc


def _held(purpose: str, why: str) -> BusyError:
    return BusyError(
        "lock-held",
        f"{purpose} is in use",
        why=why,
        hint="wait for that command to end, then run this one again",
    )
