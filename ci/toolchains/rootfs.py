"""The file system of a toolchain image as one deterministic tar: same inputs, same bytes."""

from __future__ import annotations

import io
import os
import re
import stat
import subprocess
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, Final

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


@dataclass(frozen=True, kw_only=True)
class PlacedDeb:
    """A package file, the folder of the image that it is unpacked below, and patterns of what is left out."""

    path: Path
    target: str = ""
    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()


def write_context(path: Path, *, dockerfile: Path, debs: Sequence[PlacedDeb], toolchain: Path) -> None:
    """Write the build context: a Dockerfile and `rootfs.tar`, whose size is filled in afterwards.

    Of two packages with the same file the later one wins; `toolchain` is the unpacked one of the host engine.

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


def write_rootfs(file: IO[bytes], *, debs: Sequence[PlacedDeb], toolchain: Path) -> None:
    """Write the file system itself as an uncompressed tar at the end of `file`."""
    owners: dict[str, int] = {}
    for number, deb in enumerate(debs):
        with _members(deb) as members:
            owners |= {name: number for name, _, _ in members}
    fixed = _fixed_entries({deb.target for deb in debs} - {""})
    if "usr/bin/dash" in owners and "usr/bin/sh" not in owners:
        fixed["usr/bin/sh"] = (_link("usr/bin/sh", "dash"), b"")
    with tarfile.open(fileobj=file, mode="w|", format=tarfile.GNU_FORMAT) as archive:
        for name in sorted({*fixed, *_parents(fixed), *_parents(owners)} - set(owners)):
            info, data = fixed.get(name) or (_folder(name), b"")
            archive.addfile(info, io.BytesIO(data) if info.isreg() else None)
        for number, deb in enumerate(debs):
            with _members(deb) as members:
                for name, info, content in members:
                    if owners[name] == number and name not in fixed:
                        archive.addfile(info, content)
        _add_tree(archive, toolchain, known={*fixed, *_parents(fixed), *_parents(owners)})


@contextmanager
def _members(deb: PlacedDeb) -> Iterator[Iterator[tuple[str, tarfile.TarInfo, IO[bytes] | None]]]:
    """Read the files and links of a package one after another; a large one is never held in memory."""
    command = ["dpkg-deb", "--fsys-tarfile", str(deb.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as unpacking:
        assert unpacking.stdout is not None
        try:
            with tarfile.open(fileobj=unpacking.stdout, mode="r|") as archive:
                yield _placed(deb, archive)
            # The rest of the stream: padding, which dpkg-deb must be able to write to end well.
            while unpacking.stdout.read(1 << 20):
                pass
        except tarfile.TarError as exc:
            raise _unreadable(deb) from exc
    if unpacking.returncode:
        raise _unreadable(deb)


def _placed(
    deb: PlacedDeb, archive: tarfile.TarFile
) -> Iterator[tuple[str, tarfile.TarInfo, IO[bytes] | None]]:
    for member in archive:
        name = merged_name(member.name)
        if member.isdir() or not name or _is_dropped(name, deb):
            continue
        place = f"{deb.target}/{name}" if deb.target else name
        if member.issym():
            yield place, _link(place, _target(member.linkname, deb.target)), None
        elif member.islnk():
            inside = merged_name(member.linkname)
            info = _link(place, f"{deb.target}/{inside}" if deb.target else inside)
            info.type = tarfile.LNKTYPE
            yield place, info, None
        elif member.isreg():
            info = _file(place, member.size, bool(member.mode & stat.S_IXUSR))
            yield place, info, archive.extractfile(member)


def _is_dropped(name: str, deb: PlacedDeb) -> bool:
    is_unused = bool(_UNUSED.fullmatch(name)) and not _matches(name, deb.keep)
    return is_unused or _matches(name, deb.drop)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, f"{pattern}*" if pattern.endswith("/") else pattern) for pattern in patterns)


def _target(link: str, target: str) -> str:
    """An absolute link of a package that is unpacked below a folder leads to the same file below it."""
    return f"/{target}{link}" if target and link.startswith("/") else link


def _unreadable(deb: PlacedDeb) -> VerificationError:
    return VerificationError(
        "deb-unreadable",
        f"cannot unpack package {deb.path}",
        hint="remove the file; it is fetched again",
    )


def merged_name(name: str) -> str:
    """Return the place of a package's file: relative, and below `usr` where Debian moved it.

    Raises:
        VerificationError: `deb-unreadable`, the name leads out of the image.
    """
    parts = [part for part in name.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise VerificationError("deb-unreadable", f"package member {name!r} leads out of the image")
    return "/".join(["usr", *parts] if len(parts) > 1 and parts[0] in _MERGED else parts)


def _fixed_entries(targets: Iterable[str]) -> dict[str, tuple[tarfile.TarInfo, bytes]]:
    entries: dict[str, tuple[tarfile.TarInfo, bytes]] = {}
    for start in ("", *(f"{target}/" for target in targets)):
        entries |= {f"{start}{name}": (_link(f"{start}{name}", f"usr/{name}"), b"") for name in _MERGED}
        entries |= {f"{start}usr/{name}": (_folder(f"{start}usr/{name}"), b"") for name in _MERGED}
    entries |= {name: (_folder(name), b"") for name in _MOUNT_POINTS}
    temporary = _folder("tmp")
    temporary.mode = 0o1777
    return entries | {
        "tmp": (temporary, b""),
        "etc/passwd": (_file("etc/passwd", len(_PASSWD), False), _PASSWD),
    }


def _add_tree(archive: tarfile.TarFile, root: Path, *, known: set[str]) -> None:
    for folder in sorted({"opt", TOOLCHAIN} - known):
        archive.addfile(_folder(folder))
    for path in sorted(_walk(root)):
        name = f"{TOOLCHAIN}/{path.relative_to(root).as_posix()}"
        if path.is_dir():
            if name not in known:
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
