"""The place of one file: its final name, the names of our files beside it, and the checks before it is used.

<name>                 the file, only ever whole and verified
<name>.part            the unfinished one
.<name>.part.json      what the server said about it
.<name>.lock           held by the process that works on it
.<name>.stamp          size, times and inode of the file when it was last read and hashed in full
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import shutil
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from opencoti.errors import BusyError, ConfigError, StorageError, storage_error
from opencoti.fetch.partial import Partial
from opencoti.files import fsync_folder, write_atomic

_MAX_STAMP_BYTES = 4096
_READ_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_FULL = {errno.ENOSPC, errno.EDQUOT}


@dataclass(frozen=True, kw_only=True)
class Slot:
    """The files that belong to one target. `name` must be a safe name."""

    folder: Path
    name: str

    @property
    def final(self) -> Path:
        """The finished file."""
        return self.folder / self.name

    @property
    def part(self) -> Path:
        """The unfinished file."""
        return self.folder / f"{self.name}.part"

    @property
    def note(self) -> Path:
        """The resume note of the unfinished file."""
        return self.folder / f".{self.name}.part.json"

    @property
    def lock(self) -> Path:
        """The lock of the target."""
        return self.folder / f".{self.name}.lock"

    @property
    def stamp(self) -> Path:
        """The stamp of the finished file."""
        return self.folder / f".{self.name}.stamp"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What stands under a final name. `sha256` is None where there is no plain file of that name."""

    sha256: str | None
    size: int
    was_read: bool


def inspect(slot: Slot, *, read_all: bool = False) -> Finding:
    """Tell which bytes stand under the final name, by the stamp where it still fits, else by reading them.

    A symbolic link there counts as nothing: it is replaced, never followed.

    Raises:
        StorageError: the file cannot be read.
    """
    try:
        handle = os.open(slot.final, _READ_FLAGS)
    except OSError as exc:
        if exc.errno in (errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.ENXIO):
            return Finding(sha256=None, size=0, was_read=False)
        raise storage_error(exc, f"cannot read {slot.final}") from exc
    try:
        return _inspect_open(slot, handle, read_all=read_all)
    except OSError as exc:
        raise storage_error(exc, f"cannot read {slot.final}") from exc
    finally:
        os.close(handle)


def _inspect_open(slot: Slot, handle: int, *, read_all: bool) -> Finding:
    before = os.fstat(handle)
    if not stat.S_ISREG(before.st_mode):
        return Finding(sha256=None, size=0, was_read=False)
    if not read_all and (sha256 := _stamped(slot, before)):
        return Finding(sha256=sha256, size=before.st_size, was_read=False)
    digest, size = _hash(handle)
    if _fingerprint(os.fstat(handle)) == _fingerprint(before):
        _write_stamp(slot, digest, before)
    return Finding(sha256=digest, size=size, was_read=True)


def _hash(handle: int) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    while block := os.pread(handle, 1 << 20, size):
        digest.update(block)
        size += len(block)
    return digest.hexdigest(), size


def prepare(slot: Slot) -> None:
    """Make the folder and check that the target can be put there, before anything is fetched.

    Raises:
        StorageError: `storage-failed` or `target-is-folder`.
    """
    try:
        slot.folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise storage_error(exc, f"cannot make the folder {slot.folder}") from exc
    if not slot.final.is_symlink() and slot.final.is_dir():
        raise StorageError(
            "target-is-folder", f"{slot.final} is a folder", hint="choose another place with --dest"
        )


def set_mode(slot: Slot, mode: int) -> None:
    """Give the finished file the mode that it should have. Raises `StorageError`."""
    try:
        if stat.S_IMODE(os.stat(slot.final, follow_symlinks=False).st_mode) & mode != mode:
            os.chmod(slot.final, mode)
    except OSError as exc:
        raise storage_error(exc, f"cannot make {slot.final} executable") from exc


def note_use(slot: Slot) -> None:
    """Remember that the finished file was asked for now: the stamp's own time tells how old a use is."""
    with suppress(OSError):
        os.utime(slot.stamp, follow_symlinks=False)


def place(slot: Slot, part: Partial, sha256: str) -> None:
    """Give a verified, synced partial the final name, whatever stood there.

    Raises:
        StorageError: the folder refuses.
        BusyError: `partial-replaced`; the name of the partial belongs to another file by now.
    """
    try:
        if not part.is_at_its_path():
            raise BusyError(
                "partial-replaced",
                f"{part.path} was replaced by another process",
                hint="run the command again",
            )
        os.replace(part.path, slot.final)
        fsync_folder(slot.folder)
        _write_stamp(slot, sha256, os.fstat(part.handle))
        remove_note(slot)
    except OSError as exc:
        raise storage_error(exc, f"cannot write {slot.final}") from exc


def discard(slot: Slot) -> None:
    """Remove the partial and its note. Raises `StorageError`."""
    try:
        slot.part.unlink(missing_ok=True)
    except OSError as exc:
        raise storage_error(exc, f"cannot remove {slot.part}") from exc
    remove_note(slot)


def remove_note(slot: Slot) -> None:
    """Remove the resume note. Raises `StorageError`."""
    try:
        slot.note.unlink(missing_ok=True)
    except OSError as exc:
        raise storage_error(exc, f"cannot remove {slot.note}") from exc


def free_bytes(folder: Path) -> int:
    """Return the bytes that this user may still write there. Raises `OSError`."""
    return shutil.disk_usage(folder).free


def disk_full(slot: Slot, *, needed: int | None, free: int) -> StorageError:
    """Describe a disk that cannot take the `needed` (None: an unknown number of) bytes that are missing."""
    wanted = "more" if needed is None else f"{needed} more bytes"
    return StorageError(
        "disk-full",
        f"no room for {slot.name} in {slot.folder}",
        why=f"{wanted} needed, {free} bytes free",
        hint=f"free some space and run again, which goes on with {slot.part.name}; or remove that file and "
        "choose another disk with --dest or OPENCOTI_CACHE_DIR",
    )


def write_failure(exc: OSError, slot: Slot, *, needed: int | None, free: int) -> StorageError:
    """Describe a failed write to the partial."""
    if exc.errno in _FULL:
        return disk_full(slot, needed=needed, free=free)
    return storage_error(exc, f"cannot write {slot.part}")


def _fingerprint(found: os.stat_result) -> dict[str, int]:
    return {
        "size": found.st_size,
        "mtime_ns": found.st_mtime_ns,
        "ctime_ns": found.st_ctime_ns,
        "inode": found.st_ino,
    }


def _write_stamp(slot: Slot, sha256: str, found: os.stat_result) -> None:
    # A folder that takes no stamp (read-only, full) only costs the next call a full read.
    with suppress(StorageError):
        write_atomic(slot.stamp, json.dumps({"sha256": sha256, **_fingerprint(found)}).encode())
        _sweep(slot)


def _sweep(slot: Slot) -> None:
    """Remove the temporary files that killed runs left while they wrote a stamp or a note.

    A process of another machine that has such a number loses at most a stamp, which costs it a full read.
    """
    for target in (slot.stamp, slot.note):
        for path in slot.folder.glob(f".{glob.escape(target.name)}.*.tmp"):
            number = path.name.removesuffix(".tmp").rpartition(".")[2]
            if number.isdecimal() and not _is_running(int(number)):
                with suppress(OSError):
                    path.unlink()


def _is_running(process: int) -> bool:
    if os.name != "posix":
        return True  # elsewhere signal 0 is none, or ends the process
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _stamped(slot: Slot, found: os.stat_result) -> str | None:
    """Return the SHA-256 of a stamp that fits the file and was written by this user."""
    from opencoti.jsonio import parse_strict

    with suppress(OSError, ConfigError):
        handle = os.open(slot.stamp, _READ_FLAGS)
        try:
            is_own = not hasattr(os, "geteuid") or os.fstat(handle).st_uid == os.geteuid()
            stamp = parse_strict(os.read(handle, _MAX_STAMP_BYTES), str(slot.stamp))
        finally:
            os.close(handle)
        if is_own and isinstance(stamp, dict):
            sha256 = stamp.pop("sha256", None)
            if stamp == _fingerprint(found) and isinstance(sha256, str):
                return sha256
    return None
