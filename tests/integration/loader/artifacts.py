"""A small artifact writer for the loader's tests, which can also write what the real one refuses to.

It stands for `ci.package.zipwriter` (tested with the loader in `test_loader_real_writer.py`): plain stored
members, 64 KiB aligned by a gap, zip64 on demand.
"""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

LOADER_SOURCES = Path(__file__).resolve().parents[3] / "ci" / "package" / "loader"
ALIGNMENT = 65536
INDEX = ".opencoti/index"
VERSION = "opencoti-0.5.0-gtest123-c1"
ENTRY = "llama-server"


@dataclass(frozen=True, kw_only=True)
class Member:
    """One zip member; the optional fields overrule what is true."""

    name: str
    data: bytes
    flags: int = 0
    method: int = 0
    size: int | None = None
    stored_size: int | None = None
    offset: int | None = None
    crc: int | None = None
    comment: bytes = b""
    local_name: str | None = None
    is_aligned: bool = True


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Overrules for the records at the end."""

    is_zip64: bool = False
    directory_shift: int = 0
    count: int | None = None
    comment: bytes = b""
    appended: bytes = b""
    end64: Mapping[str, int] = field(default_factory=dict)


class CompileC(Protocol):
    """Compiles a C file of this folder to a static executable, with more words for the compiler."""

    def __call__(self, source: str, *words: str | Path, arch: str = "x86_64") -> Path: ...


def render_index(
    files: Mapping[str, bytes],
    *,
    version: str = VERSION,
    entry: str = ENTRY,
    modes: Mapping[str, str] | None = None,
    parts: Sequence[str] = (),
) -> bytes:
    """The index of `files`; everything but the entry has mode 0644 unless told otherwise."""
    modes = {entry: "0755", **(modes or {})}
    lines = ["opencoti-index 1", f"version {version}", f"entry {entry}"]
    for name in sorted(files):
        digest = hashlib.sha256(files[name]).hexdigest()
        word = "part" if name in parts else "file"
        lines.append(f"{word} {digest} {len(files[name])} {modes.get(name, '0644')} {name}")
    return ("\n".join(lines) + "\n").encode()


def members_of(files: Mapping[str, bytes], index: bytes | None = None) -> list[Member]:
    """The members of a correct artifact of `files`, its index last."""
    members = [Member(name=name, data=data) for name, data in files.items()]
    return [*members, Member(name=INDEX, data=render_index(files) if index is None else index)]


def render_zip(head: bytes, members: Sequence[Member], layout: Layout | None = None) -> bytes:
    """`head`, then the members, then the directory."""
    layout = layout or Layout()
    body, entries = bytearray(head), []
    for member in members:
        body, entry = _append(body, member, layout.is_zip64)
        entries.append(entry)
    directory = b"".join(entries)
    return bytes(body) + directory + _render_end(len(body), directory, len(entries), layout)


def _append(body: bytearray, member: Member, is_zip64: bool) -> tuple[bytearray, bytes]:
    name = (member.local_name or member.name).encode()
    if member.is_aligned:
        body += bytes(-(len(body) + 30 + len(name)) % ALIGNMENT)
    offset = len(body)
    size = len(member.data) if member.size is None else member.size
    stored = size if member.stored_size is None else member.stored_size
    crc = zlib.crc32(member.data) if member.crc is None else member.crc
    body += struct.pack(
        "<4s5H3I2H", b"PK\3\4", 20, member.flags, member.method, 0, 33, crc, stored, size, len(name), 0
    )
    body += name + member.data
    extra = b""
    given = offset if member.offset is None else member.offset
    small = (stored, size, given)
    if is_zip64:
        extra, small = struct.pack("<2H3Q", 1, 24, size, stored, given), (0xFFFFFFFF,) * 3
    entry = struct.pack(
        "<4s6H3I5H2I", b"PK\1\2", 0x314, 20, member.flags, member.method, 0, 33, crc, small[0], small[1],
        len(member.name.encode()), len(extra), len(member.comment), 0, 0, 0o100644 << 16, small[2],
    )  # fmt: skip
    return body, entry + member.name.encode() + extra + member.comment


def _render_end(offset: int, directory: bytes, count: int, layout: Layout) -> bytes:
    start, size = offset + layout.directory_shift, len(directory)
    count = count if layout.count is None else layout.count
    end64 = b""
    small = (count, size, start)
    if layout.is_zip64:
        values = {"size": 44, "count": count, "bytes": size, "start": start, "at": offset + size}
        values |= layout.end64
        end64 = struct.pack(
            "<4sQ2H2I4Q", b"PK\6\6", values["size"], 45, 45, 0, 0, count, values["count"],
            values["bytes"], values["start"],
        ) + struct.pack("<4sIQI", b"PK\6\7", 0, values["at"], 1)  # fmt: skip
        small = (0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF)
    end = struct.pack(
        "<4s4H2IH", b"PK\5\6", 0, 0, small[0], small[0], small[1], small[2], len(layout.comment)
    )
    return end64 + end + layout.comment + layout.appended


@dataclass(frozen=True, kw_only=True)
class Started:
    """What a start of an artifact gave."""

    code: int
    stdout: bytes
    stderr: str

    def all(self, key: str) -> list[str]:
        """Every value that the stand-in engine printed under `key`."""
        lines = self.stdout.decode("utf-8", "surrogateescape").splitlines()
        return [line.removeprefix(f"{key} ") for line in lines if line.startswith(f"{key} ")]

    def one(self, key: str) -> str:
        """The only value under `key`."""
        (value,) = self.all(key)
        return value

    @property
    def bytes_read(self) -> int:
        """Bytes this process read, the loader's part included, as the kernel counted them."""
        return int(next(line for line in self.all("io") if line.startswith("rchar")).split()[1])


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A place to start artifacts in: a loader, a stand-in engine, a home and a working folder."""

    loader: bytes
    engine: bytes
    root: Path

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def versions(self) -> Path:
        return self.home / ".llamafile" / "v"

    @property
    def environment(self) -> dict[str, str]:
        return {"HOME": str(self.home), "PATH": "/usr/bin:/bin"}

    @property
    def folder(self) -> Path:
        """The one folder that an artifact was unpacked to."""
        (folder,) = self.versions.iterdir()
        return folder

    def files(self, **more: bytes) -> dict[str, bytes]:
        """The engine and other members; `__` in a keyword stands for a dot."""
        return {ENTRY: self.engine, **{name.replace("__", "."): data for name, data in more.items()}}

    def pack(self, files: Mapping[str, bytes], index: bytes | None = None, name: str = "app") -> Path:
        """Write a correct artifact of `files`."""
        return self.write(render_zip(self.loader, members_of(files, index)), name)

    def write(self, data: bytes, name: str = "app") -> Path:
        """Write an executable file."""
        path = self.root / name
        path.write_bytes(data)
        path.chmod(0o755)
        return path

    def start(
        self,
        artifact: Path,
        *words: str,
        env: Mapping[str, str | None] | None = None,
        stdin: bytes = b"",
        **options: object,
    ) -> Started:
        """Run an artifact to its end; a variable that is None is not set."""
        merged = {**self.environment, **(env or {})}
        done = subprocess.run(  # type: ignore[call-overload]
            [artifact, *words],
            env={key: value for key, value in merged.items() if value is not None},
            input=stdin,
            capture_output=True,
            timeout=120,
            check=False,
            cwd=options.pop("cwd", self.root),
            **options,
        )
        return Started(
            code=done.returncode, stdout=done.stdout, stderr=done.stderr.decode("utf-8", "replace")
        )

    def popen(self, artifact: Path, *words: str) -> subprocess.Popen[bytes]:
        """Start an artifact and do not wait."""
        return subprocess.Popen(
            [artifact, *words],
            env=self.environment,
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )


def is_root() -> bool:
    """Whether mounts and other owners can be made here."""
    return os.geteuid() == 0
