"""Unpacking one folder of a tar archive into a fresh folder, trusting nothing in it.

Refused as a whole: names that are absolute or go up, links that lead out, devices, hard links, names that
stand twice or differ only in case, an archive that ends early or grows beyond the limits. Modes become 0644
or 0755, times are the clock's. Entries named `.git` are left out: an archive of a submodule has a `.git`
file there that points to a repository that is not in it.
"""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from ci.sources.treepath import collision_key, is_git_name, link_on_the_way, link_problem, path_problem
from opencoti.errors import OpencotiError, VerificationError, storage_error

_GZIP_MAGIC: Final = b"\x1f\x8b"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How large an archive may become; several times the largest source tree in use."""

    size_bytes: int = 4 << 30
    members: int = 200_000


@dataclass(frozen=True, kw_only=True)
class Unpacked:
    """What came out of an archive."""

    files: int
    size_bytes: int


@dataclass(kw_only=True)
class _Tree:
    """The names made so far."""

    target: Path
    origin: str
    spelling: dict[str, str] = field(default_factory=dict)
    files: set[str] = field(default_factory=set)
    links: dict[str, str] = field(default_factory=dict)
    size_bytes: int = 0

    def refuse(self, name: str, why: str) -> VerificationError:
        return VerificationError(
            "archive-unsafe",
            f"the archive of {self.origin} is refused, for its entry {name[:120]!r}",
            why=why,
            hint="do not use this archive; look at the pin and at where it came from",
        )


class _Counted:
    """A reader that stops a stream which unpacks to more than the limit."""

    def __init__(self, raw: IO[bytes], limit_bytes: int, origin: str) -> None:
        self._raw = raw
        self._left_bytes = limit_bytes
        self._origin = origin

    def read(self, size: int = -1) -> bytes:
        data = self._raw.read(size)
        self._left_bytes -= len(data)
        if self._left_bytes < 0:
            raise _too_large(self._origin, "it unpacks to more bytes than any source tree has")
        return data


def unpack_folder(
    archive: Path,
    folder: str,
    target: Path,
    *,
    origin: str,
    has_top: bool = True,
    limits: Limits | None = None,
) -> Unpacked:
    """Unpack `folder` of a tar archive (plain or gzip) as `target`, which must not exist.

    Args:
        archive: the archive; its hash has been checked by the caller.
        folder: folder inside it, empty for all of it.
        target: folder to make. When anything goes wrong, it is gone again.
        origin: what the archive is of, for messages.
        has_top: the archive has one top folder, not counted in `folder` (as source distributions have).
        limits: bounds against archives made to fill a disk.

    Raises:
        VerificationError: `archive-unsafe`, `archive-too-large`, `archive-damaged`, `archive-folder`.
        StorageError: the disk refused.
    """
    tree = _Tree(target=target, origin=origin)
    try:
        target.mkdir(parents=True)
    except OSError as exc:
        raise storage_error(exc, f"cannot make {target}") from exc
    try:
        with _members(archive, origin, limits or Limits()) as (tar, members):
            _unpack(tar, members, tree, folder, has_top)
        _check_links(tree)
    except OpencotiError:
        shutil.rmtree(target, ignore_errors=True)
        raise
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as exc:
        shutil.rmtree(target, ignore_errors=True)
        raise VerificationError(
            "archive-damaged",
            f"the archive of {origin} is damaged or cut short",
            why=f"{type(exc).__name__}: {exc}",
            hint=f"remove {archive} and run this again",
        ) from exc
    except OSError as exc:
        shutil.rmtree(target, ignore_errors=True)
        raise storage_error(exc, f"cannot unpack {archive} to {target}") from exc
    if not tree.files:
        shutil.rmtree(target, ignore_errors=True)
        raise VerificationError(
            "archive-folder", f"the archive of {origin} has no files in folder {folder!r}"
        )
    return Unpacked(files=len(tree.files), size_bytes=tree.size_bytes)


@contextmanager
def _members(
    archive: Path, origin: str, limits: Limits
) -> Iterator[tuple[tarfile.TarFile, Iterator[tarfile.TarInfo]]]:
    with open(archive, "rb") as file:
        is_gzip = file.read(2) == _GZIP_MAGIC
        file.seek(0)
        raw: IO[bytes] = gzip.GzipFile(fileobj=file) if is_gzip else file  # type: ignore[assignment]
        counted = _Counted(raw, limits.size_bytes, origin)
        with tarfile.open(fileobj=counted, mode="r|", bufsize=1 << 18) as tar:  # type: ignore[call-overload]
            yield tar, _bounded(tar, origin, limits)
        while counted.read(1 << 18):
            # The gzip checksum stands at the end: without reading on, a cut archive could pass.
            pass


def _bounded(tar: tarfile.TarFile, origin: str, limits: Limits) -> Iterator[tarfile.TarInfo]:
    for number, member in enumerate(tar):
        if number >= limits.members:
            raise _too_large(origin, f"it has more than {limits.members} entries")
        yield member


def _too_large(origin: str, why: str) -> VerificationError:
    return VerificationError("archive-too-large", f"the archive of {origin} is refused", why=why)


def _unpack(
    tar: tarfile.TarFile, members: Iterator[tarfile.TarInfo], tree: _Tree, folder: str, has_top: bool
) -> None:
    prefix = [part for part in folder.split("/") if part]
    for member in members:
        parts = member.name.rstrip("/").split("/")
        _check_name(member.name, parts, tree)
        inner = parts[1:] if has_top else parts
        inner = [part for part in inner if part != "."]
        if inner[: len(prefix)] != prefix or len(inner) == len(prefix):
            continue
        relative = inner[len(prefix) :]
        if any(is_git_name(part) for part in relative):
            continue
        _unpack_member(tar, member, "/".join(relative), tree)


def _check_name(name: str, parts: list[str], tree: _Tree) -> None:
    """Refuse a bad name wherever it stands, also outside the folder that is wanted."""
    if name.startswith("/") or "\\" in name or ".." in parts:
        raise tree.refuse(name, "the name is absolute, goes up, or holds a backslash")


def _unpack_member(tar: tarfile.TarFile, member: tarfile.TarInfo, path: str, tree: _Tree) -> None:
    if problem := path_problem(path):
        raise tree.refuse(member.name, problem)
    if link := link_on_the_way(path, tree.links):
        raise tree.refuse(member.name, f"it goes through the link {link}")
    _check_spelling(member, path, tree)
    place = tree.target / path
    if member.isdir():
        place.mkdir(parents=True, exist_ok=True)
        place.chmod(0o755)
    elif member.isreg():
        place.parent.mkdir(parents=True, exist_ok=True)
        _write_file(tar, member, place)
        tree.files.add(path)
        tree.size_bytes += member.size
    elif member.issym():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(member.linkname)
        tree.links[path] = member.linkname
        tree.files.add(path)
    else:
        raise tree.refuse(member.name, "it is a hard link, device, pipe or of an unknown kind")


def _check_spelling(member: tarfile.TarInfo, path: str, tree: _Tree) -> None:
    """Refuse names that stand twice, or that some file systems cannot tell apart, folders included."""
    parts = path.split("/")
    for count in range(1, len(parts) + 1):
        name = "/".join(parts[:count])
        known = tree.spelling.setdefault(collision_key(name), name)
        if known != name:
            raise tree.refuse(member.name, f"it differs from {known!r} only in case or form")
        if name in tree.files:
            raise tree.refuse(member.name, f"{name!r} stands in the archive as a file already")
    if not member.isdir() and (tree.target / path).is_dir():
        raise tree.refuse(member.name, "it stands in the archive as a folder already")


def _write_file(tar: tarfile.TarFile, member: tarfile.TarInfo, place: Path) -> None:
    source = tar.extractfile(member)
    assert source is not None
    handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "wb") as file:
        shutil.copyfileobj(source, file, 1 << 18)
        if file.tell() != member.size:
            raise tarfile.ReadError(f"unexpected end of data in {member.name}")
        os.fchmod(file.fileno(), 0o755 if member.mode & 0o100 else 0o644)


def _check_links(tree: _Tree) -> None:
    """Check each link when all are known, since a later link can bend the way of an earlier one."""
    for path, target in tree.links.items():
        if problem := link_problem(path, target, tree.links):
            raise tree.refuse(path, problem)
