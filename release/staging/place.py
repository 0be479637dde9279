"""Putting large files into a folder without copying them where the file system can share, and splitting.

Every file is hashed after it has its place, whatever way it came.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from opencoti.errors import VerificationError, storage_error
from opencoti.files import atomic_file, write_atomic
from opencoti.hashing import sha256_bytes, sha256_file

_FICLONE: Final = 0x40049409  # linux/fs.h
_BLOCK_BYTES: Final = 4 << 20
# What a file system says that cannot share, or that lies elsewhere.
_NOT_SHARED: Final = {
    errno.EXDEV, errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.EPERM, errno.EMLINK, errno.ENOSYS,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PartDigest:
    """One part as it was written."""

    name: str
    size: int
    sha256: str


def place_file(origin: Path, target: Path, sha256: str) -> bool:
    """Give `target` the content of `origin`; tell whether that was needed.

    Raises:
        VerificationError: `stage-hash-differs`, the content is not what its manifest says.
        StorageError: a file cannot be read or written.
    """
    if _has(target, sha256):
        return False
    temporary = target.with_name(f".{target.name}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        if not (_reflink(origin, temporary) or _link(origin, temporary)):
            _copy(origin, temporary)
        found = sha256_file(temporary)
        if found != sha256:
            temporary.unlink()
            raise _differs(origin, sha256, found)
        os.replace(temporary, target)
    except OSError as exc:
        temporary.unlink(missing_ok=True)
        raise storage_error(exc, f"cannot put {origin} into {target.parent}") from exc
    return True


def place_bytes(data: bytes, target: Path) -> bool:
    """Give `target` this content; tell whether that was needed. Raises `StorageError`."""
    if _has(target, sha256_bytes(data)):
        return False
    write_atomic(target, data)
    return True


def hash_parts(origin: Path, parts: Sequence[tuple[str, int]], sha256: str) -> tuple[PartDigest, ...]:
    """Return the digests of the parts (name, size) of a file, and check that of the whole.

    Raises:
        VerificationError: `stage-hash-differs`, the whole is not what its manifest says.
        StorageError: the file cannot be read.
    """
    whole, digests = hashlib.sha256(), []
    try:
        with open(origin, "rb") as file:
            for name, size in parts:
                mine = hashlib.sha256()
                for block in _blocks(file, size):
                    mine.update(block)
                    whole.update(block)
                digests.append(PartDigest(name=name, size=size, sha256=mine.hexdigest()))
            rest = file.read(1)
    except OSError as exc:
        raise storage_error(exc, f"cannot read {origin}") from exc
    found = "that of a longer file" if rest else whole.hexdigest()
    if found != sha256:
        raise _differs(origin, sha256, found)
    return tuple(digests)


def write_part(origin: Path, offset: int, target: Path, part: PartDigest) -> bool:
    """Write the part of a file that starts at `offset`; tell whether that was needed.

    Raises:
        VerificationError: `stage-hash-differs`, the file changed meanwhile.
        StorageError: a file cannot be read or written.
    """
    if _has(target, part.sha256):
        return False
    digest = hashlib.sha256()
    try:
        with open(origin, "rb") as file, atomic_file(target) as out:
            file.seek(offset)
            for block in _blocks(file, part.size):
                digest.update(block)
                out.write(block)
            if digest.hexdigest() != part.sha256:
                raise _differs(origin, part.sha256, digest.hexdigest())
    except OSError as exc:
        raise storage_error(exc, f"cannot split {origin}") from exc
    return True


def _blocks(file: IO[bytes], size: int) -> Iterator[bytes]:
    left = size
    while left and (block := file.read(min(_BLOCK_BYTES, left))):
        left -= len(block)
        yield block


def _has(target: Path, sha256: str) -> bool:
    try:
        return target.is_file() and not target.is_symlink() and sha256_file(target) == sha256
    except OSError as exc:
        raise storage_error(exc, f"cannot read {target}") from exc


def _reflink(origin: Path, target: Path) -> bool:
    """Share the blocks: the file system copies what is changed later."""
    try:
        with open(origin, "rb") as source, open(target, "xb") as clone:
            fcntl.ioctl(clone.fileno(), _FICLONE, source.fileno())
    except OSError as exc:
        target.unlink(missing_ok=True)
        return _cannot_share(exc)
    return True


def _link(origin: Path, target: Path) -> bool:
    """Give the file a second name. Commands of ours replace an artifact, they never write into one."""
    try:
        os.link(origin.resolve(), target)
    except OSError as exc:
        return _cannot_share(exc)
    return True


def _cannot_share(exc: OSError) -> bool:
    if exc.errno not in _NOT_SHARED:
        raise exc
    return False


def _copy(origin: Path, target: Path) -> None:
    with open(origin, "rb") as source, open(target, "xb") as copy:
        while block := source.read(_BLOCK_BYTES):
            copy.write(block)
        copy.flush()
        os.fsync(copy.fileno())


def _differs(origin: Path, wanted: str, found: str) -> VerificationError:
    return VerificationError(
        "stage-hash-differs",
        f"{origin} is not what its manifest describes",
        why=f"expected sha256 {wanted}, found {found}",
        hint="package it again",
    )
