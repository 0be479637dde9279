"""Files as tar streams: sending folders to a daemon, and taking back single files that are not trusted.

Nothing here talks to a daemon. What comes back is written by us, as files of ours: of each archive one plain
file with the expected name is taken, whatever else it may claim to hold.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import IO, Final, cast

from opencoti.errors import VerificationError, storage_error

_CHUNK_BYTES: Final = 1 << 18
# The stage needs no history, and must not look into it (case B09).
_LEFT_OUT: Final = ".git"


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """What tells whether a file of a source tree changed."""

    size: int
    mtime_ns: int
    mode: int


@dataclass(frozen=True, kw_only=True)
class Received:
    """A file that came back, or the link that stands in its place."""

    sha256: str = ""
    size: int = 0
    link: str = ""


def list_source(root: Path) -> dict[str, SourceFile]:
    """Return every file and link below `root`, by relative path. Raises `StorageError`."""
    found: dict[str, SourceFile] = {}
    try:
        for folder, folders, names in os.walk(root):
            if Path(folder) == root and _LEFT_OUT in folders:
                folders.remove(_LEFT_OUT)
            links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
            for name in (*names, *links):
                path = Path(folder, name)
                status = path.lstat()
                if stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
                    found[path.relative_to(root).as_posix()] = SourceFile(
                        size=status.st_size, mtime_ns=status.st_mtime_ns, mode=status.st_mode
                    )
    except OSError as exc:
        raise storage_error(exc, f"cannot read source tree {root}") from exc
    return found


def send_stream(
    root: Path,
    files: Mapping[str, float],
    *,
    below: str,
    folders: Iterable[str],
    empty: Iterable[str] = (),
    fill_bytes: int = 0,
    uid: int,
    gid: int,
) -> Iterator[bytes]:
    """Yield a tar of files of `root`, placed below the folder `below`, and of empty folders.

    Args:
        root: folder on this machine.
        files: relative path to the time of change that the copy gets, in seconds.
        below: relative place of `root` in the archive.
        folders: places that are made, or given to the owner if they are there.
        empty: places of files that hold nothing, or `fill_bytes` of zeros.
        fill_bytes: see `empty`.
        uid: owner of everything.
        gid: group of everything.

    Raises:
        StorageError: a file cannot be read.
    """
    sink = io.BytesIO()
    with tarfile.open(
        fileobj=sink, mode="w|", format=tarfile.PAX_FORMAT, bufsize=tarfile.RECORDSIZE
    ) as archive:

        def add(name: str, *, mtime: float, data: bytes | None = None, link: str = "", mode: int) -> bytes:
            info = tarfile.TarInfo(name)
            info.uid, info.gid, info.mtime, info.mode = uid, gid, mtime, mode
            info.type = tarfile.SYMTYPE if link else tarfile.REGTYPE if data is not None else tarfile.DIRTYPE
            info.linkname, info.size = link, len(data or b"")
            archive.addfile(info, io.BytesIO(data or b""))
            return _drain(sink)

        for name in folders:
            yield add(name, mtime=0, mode=0o755)
        for name in empty:
            yield add(name, mtime=0, data=bytes(fill_bytes), mode=0o644)
        made = {below}
        for name in sorted(files):
            for parent in reversed(PurePosixPath(below, name).parents[:-1]):
                if str(parent) not in made:
                    made.add(str(parent))
                    yield add(str(parent), mtime=files[name], mode=0o755)
            data, link, mode = _read(root / name)
            yield add(f"{below}/{name}", mtime=files[name], data=data, link=link, mode=mode)
    yield _drain(sink)


def receive_file(chunks: Iterator[bytes], target: Path, *, name: str) -> Received:
    """Write the one plain file of a tar stream to `target`, which must not exist, with mode 0755 or 0644.

    A symbolic link is not made: where it leads is returned, for the caller to decide.

    Raises:
        StorageError: the disk refused.
        VerificationError: `remote-file-unsafe`, the archive holds something else than the file `name`.
        tarfile.TarError: the stream ended early.
    """
    reader = cast("IO[bytes]", _Reader(chunks))
    with tarfile.open(fileobj=reader, mode="r|", bufsize=_CHUNK_BYTES) as archive:
        member = archive.next()
        if member is None:
            raise tarfile.ReadError("the archive is empty")
        if member.name != name or not (member.isreg() or member.issym()):
            raise _unsafe(name, f"the answer holds {member.name[:100]!r} of type {member.type!r}")
        if member.issym():
            return Received(link=member.linkname)
        content = archive.extractfile(member)
        assert content is not None
        received = _write(content, target, is_executable=bool(member.mode & stat.S_IXUSR))
        if received.size != member.size:
            raise tarfile.ReadError("the stream ended early")
        return received


def match_path(path: str, pattern: str) -> bool:
    """Tell whether a relative path matches a pattern as `Path.glob` reads it (`*` stays in one folder)."""
    return _match(path.split("/"), pattern.split("/"))


def is_inside(path: str) -> bool:
    """Tell whether a relative path stays in its folder."""
    parts = path.split("/")
    return bool(path) and not path.startswith("/") and ".." not in parts and "" not in parts


def _match(parts: list[str], patterns: list[str]) -> bool:
    if not patterns:
        return not parts
    if patterns[0] == "**":
        return any(_match(parts[start:], patterns[1:]) for start in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], patterns[0]) and _match(parts[1:], patterns[1:])


def _read(path: Path) -> tuple[bytes | None, str, int]:
    try:
        if path.is_symlink():
            return None, os.readlink(path), 0o777
        # Whole, so that size and content agree even if somebody edits the file right now.
        data = path.read_bytes()
        return data, "", 0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644
    except OSError as exc:
        raise storage_error(exc, f"cannot read {path}") from exc


def _write(content: IO[bytes], target: Path, *, is_executable: bool) -> Received:
    digest = hashlib.sha256()
    size = 0
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except OSError as exc:
        raise storage_error(exc, f"cannot write {target}") from exc
    with os.fdopen(handle, "wb") as file:
        while chunk := content.read(_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
            try:
                file.write(chunk)
            except OSError as exc:
                raise storage_error(exc, f"cannot write {target}") from exc
        os.fchmod(file.fileno(), 0o755 if is_executable else 0o644)
    return Received(sha256=digest.hexdigest(), size=size)


def _drain(sink: io.BytesIO) -> bytes:
    data = sink.getvalue()
    sink.seek(0)
    sink.truncate()
    return data


def _unsafe(name: str, why: str) -> VerificationError:
    return VerificationError(
        "remote-file-unsafe",
        f"the container engine sent something else than the file {name}",
        why=why,
        hint="do not use this daemon; look at what the stage puts into its build folder",
    )


class _Reader:
    """A stream of chunks as something to read from."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes, fewer only at the end."""
        parts = [self._rest]
        length = len(self._rest)
        while length < size and (chunk := next(self._chunks, b"")):
            parts.append(chunk)
            length += len(chunk)
        data = b"".join(parts)
        self._rest = data[size:]
        return data[:size]
