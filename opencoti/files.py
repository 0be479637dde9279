"""Writing files so that a crash at any moment leaves the old one or the new one, and names from outside."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from opencoti.errors import StorageError, VerificationError, storage_error

# One alphabet for every file name that comes from a manifest, index, pin or URL (case B44). Windows'
# device names are refused too, since the same artifact is handed to Windows users.
_SAFE_NAME = re.compile(r"[A-Za-z0-9._+-]{1,200}")
_WINDOWS_DEVICES = {"con", "prn", "aux", "nul", *(f"{d}{n}" for d in ("com", "lpt") for n in range(1, 10))}


def is_safe_name(name: str) -> bool:
    """Tell whether `name` can be a plain file name on every system, with no path in it."""
    if not _SAFE_NAME.fullmatch(name) or name.strip(".") == "" or name.endswith("."):
        return False
    return name.split(".")[0].lower() not in _WINDOWS_DEVICES


def require_safe_name(name: str, origin: str) -> str:
    """Return `name` if it is a plain file name.

    Raises:
        VerificationError: `unsafe-name`; `origin` says where the name came from.
    """
    if not is_safe_name(name):
        raise VerificationError(
            "unsafe-name",
            f"file name {name[:80]!r} from {origin} is refused",
            why="a name may hold letters, digits and . _ + - only, and no path",
            hint="do not use this file: get it from its publisher again",
        )
    return name


def is_at(handle: int, path: Path) -> bool:
    """Tell whether an open file is the one that lies at `path`: a lock on a removed file locks nobody out."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except OSError:
        return False


def fsync_folder(folder: Path) -> None:
    """Make a rename in `folder` durable. Ignored where folders cannot be synced."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def atomic_file(path: Path, *, mode: int = 0o644) -> Iterator[IO[bytes]]:
    """Yield a new file that takes the name `path` when the block ends without an error.

    The file is written under a hidden temporary name in the same folder, synced, then renamed; on an
    error it is removed and whatever stood at `path` stays. A symbolic link at `path` is replaced,
    never followed. The mode does not depend on the umask.

    Raises:
        StorageError: the folder or the disk refused, or `target-special`: a device, pipe or socket has
            that name.
    """
    _refuse_special(path)
    # Numbers tell no writers apart that are threads, or each the first process of a container. That of the
    # process comes last: `opencoti.fetch.store` tells by it what a killed run left.
    temporary = path.parent / f".{path.name}.{os.urandom(6).hex()}.{os.getpid()}.tmp"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600)
    except OSError as exc:
        raise storage_error(exc, f"cannot write {path}") from exc
    try:
        with os.fdopen(handle, "r+b") as file:
            yield file
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(temporary, path)
        fsync_folder(path.parent)
    except OSError as exc:
        temporary.unlink(missing_ok=True)
        raise storage_error(exc, f"cannot write {path}") from exc
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _refuse_special(path: Path) -> None:
    """Keep `--out /dev/null` from replacing the device by a file."""
    with suppress(OSError):
        mode = path.lstat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode) or stat.S_ISDIR(mode)):
            raise StorageError(
                "target-special",
                f"cannot write {path}",
                why="it is a device, a pipe or a socket, and a file would take its place",
                hint="name a plain file",
            )


def write_atomic(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write `data` to `path`, whole or not at all. Raises `StorageError`."""
    with atomic_file(path, mode=mode) as file:
        file.write(data)
