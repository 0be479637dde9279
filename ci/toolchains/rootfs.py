"""The file system of a toolchain image as one deterministic tar: same inputs, same bytes."""

from __future__ import annotations

import io
import os
import re
import stat
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Final

from ci import process
from opencoti.errors import VerificationError

TOOLCHAIN: Final = "opt/toolchain"
_BLOCK: Final = 512
# Folders that Debian moved below /usr; packages of old and new releases are put into the same form.
_MERGED: Final = ("bin", "lib", "lib64", "sbin")
_MOUNT_POINTS: Final = ("cache", "out", "src")
_UNUSED: Final = re.compile(
    r"usr/share/(?!doc/[^/]+/copyright$).*|usr/lib/[^/]+/(gconv|audit)/.*|etc/ld\.so\.conf.*|var/.*|sbin/.*|usr/sbin/.*"
)
_PASSWD: Final = b"root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"


def write_context(path: Path, *, dockerfile: Path, debs: Sequence[Path], toolchain: Path) -> None:
    """Write the build context: a Dockerfile and `rootfs.tar`, whose size is filled in afterwards.

    `debs` are package files, whose order does not matter; `toolchain` is the unpacked one of the host engine.

    Raises:
        OSError: a file cannot be read or written.
        VerificationError: `deb-unreadable`.
    """
    with open(path, "w+b") as file:
        recipe = dockerfile.read_bytes()
        file.write(_header("Dockerfile", len(recipe)) + recipe + bytes(-len(recipe) % _BLOCK))
        start = file.tell()
        file.write(bytes(_BLOCK))
        write_rootfs(file, debs=debs, toolchain=toolchain)
        end = file.tell()
        file.write(bytes(2 * _BLOCK))
        file.seek(start)
        file.write(_header("rootfs.tar", end - start - _BLOCK))


def write_rootfs(file: IO[bytes], *, debs: Sequence[Path], toolchain: Path) -> None:
    """Write the file system itself as an uncompressed tar at the end of `file`."""
    entries: dict[str, tuple[tarfile.TarInfo, bytes]] = {}
    for deb in debs:
        entries.update(_deb_entries(deb))
    entries.update(_fixed_entries())
    if "usr/bin/sh" not in entries:
        entries["usr/bin/sh"] = (_link("usr/bin/sh", "dash"), b"")
    with tarfile.open(fileobj=file, mode="w|", format=tarfile.GNU_FORMAT) as archive:
        for name in sorted({*entries, *_parents(entries)}):
            info, data = entries.get(name) or (_folder(name), b"")
            archive.addfile(info, io.BytesIO(data) if info.isreg() else None)
        _add_tree(archive, toolchain)


def _deb_entries(deb: Path) -> dict[str, tuple[tarfile.TarInfo, bytes]]:
    done = process.run(["dpkg-deb", "--fsys-tarfile", deb])
    if not done.is_ok:
        raise VerificationError("deb-unreadable", f"cannot unpack package {deb}", why=done.error_text)
    entries: dict[str, tuple[tarfile.TarInfo, bytes]] = {}
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        for member in archive:
            name = merged_name(member.name)
            if member.isdir() or not name or _UNUSED.fullmatch(name):
                continue
            if member.issym():
                entries[name] = (_link(name, member.linkname), b"")
            elif content := archive.extractfile(member):
                data = content.read()
                entries[name] = (_file(name, len(data), bool(member.mode & stat.S_IXUSR)), data)
    return entries


def merged_name(name: str) -> str:
    """Return the place of a package's file: relative, and below `usr` where Debian moved it.

    Raises:
        VerificationError: `deb-unreadable`, the name leads out of the image.
    """
    parts = [part for part in name.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise VerificationError("deb-unreadable", f"package member {name!r} leads out of the image")
    return "/".join(["usr", *parts] if len(parts) > 1 and parts[0] in _MERGED else parts)


def _fixed_entries() -> dict[str, tuple[tarfile.TarInfo, bytes]]:
    entries = {name: (_link(name, f"usr/{name}"), b"") for name in _MERGED}
    entries |= {name: (_folder(name), b"") for name in (*_MOUNT_POINTS, *(f"usr/{name}" for name in _MERGED))}
    temporary = _folder("tmp")
    temporary.mode = 0o1777
    return entries | {
        "tmp": (temporary, b""),
        "etc/passwd": (_file("etc/passwd", len(_PASSWD), False), _PASSWD),
    }


def _add_tree(archive: tarfile.TarFile, root: Path) -> None:
    for folder in ("opt", TOOLCHAIN):
        archive.addfile(_folder(folder))
    for path in sorted(_walk(root)):
        name = f"{TOOLCHAIN}/{path.relative_to(root).as_posix()}"
        if path.is_dir():
            archive.addfile(_folder(name))
            continue
        status = path.stat()
        with open(path, "rb") as file:
            archive.addfile(_file(name, status.st_size, bool(status.st_mode & stat.S_IXUSR)), file)


def _walk(root: Path) -> Iterable[Path]:
    for folder, folders, names in os.walk(root):
        # Hidden files at the top are our stamp, not the toolchain.
        yield from (
            Path(folder, name) for name in (*folders, *names) if not (folder == str(root) and name[0] == ".")
        )


def _parents(names: Iterable[str]) -> set[str]:
    return {str(parent) for name in names for parent in Path(name).parents if str(parent) != "."}


def _file(name: str, size: int, is_executable: bool) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size = size
    info.mode = 0o755 if is_executable else 0o644
    return info


def _folder(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = tarfile.DIRTYPE
    info.mode = 0o755
    return info


def _link(name: str, target: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = tarfile.SYMTYPE
    info.linkname = target
    info.mode = 0o777
    return info


def _header(name: str, size: int) -> bytes:
    return _file(name, size, False).tobuf(tarfile.GNU_FORMAT)
