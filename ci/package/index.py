"""The embedded index, member `.opencoti/index`: what the loader extracts and what it must be.

Form, one record a line, each line ended by a newline, `file` lines sorted bytewise by name:

    opencoti-index 1
    version opencoti-0.5.0-g0c1e570-c1
    entry llama-server
    file <sha256> <size> <mode: 0644|0755> <name>
    part <sha256> <size> 0644 <name>

A `part` is a model that the engine reads in the artifact, so it is not extracted. `file` and `part` lines
are sorted as one. It lists every member but itself. The loader reads the same form; both sides are strict.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, cast

from opencoti.errors import ConfigError
from opencoti.files import is_safe_name

INDEX_NAME = ".opencoti/index"
_HEADER = "opencoti-index 1"
_MAX_BYTES = 1 << 20
_VERSION = re.compile(r"version (opencoti-[0-9A-Za-z][0-9A-Za-z._-]{0,150})")
_ENTRY = re.compile(r"entry (\S+)")
_FILE = re.compile(r"(?:file|(part)) ([0-9a-f]{64}) (0|[1-9][0-9]{0,18}) (0644|0755) (\S+)")
_MAX_SIZE = (1 << 63) - 1

IndexMode = Literal["0644", "0755"]


@dataclass(frozen=True, kw_only=True)
class IndexedFile:
    """One member as the index names it; a part stays in the artifact."""

    name: str
    sha256: str
    size: int
    mode: IndexMode
    is_part: bool = False


@dataclass(frozen=True, kw_only=True)
class Index:
    """The whole index; `files` are sorted by name."""

    version: str
    entry: str
    files: tuple[IndexedFile, ...]


def make_index(*, version: str, entry: str, files: Iterable[IndexedFile]) -> Index:
    """Return a sorted, checked index. Raises `ConfigError` (`index-malformed`)."""
    index = Index(version=version, entry=entry, files=tuple(sorted(files, key=lambda file: file.name)))
    return parse_index(render_index(index), "the new index")


def render_index(index: Index) -> bytes:
    """Return the bytes of the member."""
    lines = [_HEADER, f"version {index.version}", f"entry {index.entry}"]
    for file in index.files:
        word = "part" if file.is_part else "file"
        lines.append(f"{word} {file.sha256} {file.size} {file.mode} {file.name}")
    return ("\n".join(lines) + "\n").encode("ascii", "replace")


def parse_index(data: bytes, origin: str) -> Index:
    """Read an index.

    Raises:
        ConfigError: `index-malformed`; says which line and why.
    """
    lines = _split(data, origin)
    if len(lines) < 4 or lines[0] != _HEADER:
        raise _malformed(origin, f"it does not start with `{_HEADER}`, a version, an entry and a file")
    version, entry = _VERSION.fullmatch(lines[1]), _ENTRY.fullmatch(lines[2])
    if version is None or entry is None:
        raise _malformed(origin, "lines 2 and 3 are not `version opencoti-…` and `entry <name>`")
    files = tuple(_parse_file(line, number, origin) for number, line in enumerate(lines[3:], 4))
    _check_names(files, entry[1], origin)
    return Index(version=version[1], entry=entry[1], files=files)


def _split(data: bytes, origin: str) -> list[str]:
    if len(data) > _MAX_BYTES:
        raise _malformed(origin, f"it has {len(data)} bytes, more than the {_MAX_BYTES} allowed")
    if not data.isascii() or not data.endswith(b"\n"):
        raise _malformed(origin, "it is not ASCII text that ends in a newline")
    return data.decode("ascii").removesuffix("\n").split("\n")


def _parse_file(line: str, number: int, origin: str) -> IndexedFile:
    match = _FILE.fullmatch(line)
    if match is None or int(match[3]) > _MAX_SIZE:
        raise _malformed(origin, f"line {number} is not `file <sha256> <size> <0644|0755> <name>`")
    part, sha256, size, mode, name = match.groups()
    if not is_safe_name(name):
        raise _malformed(origin, f"line {number}: {name[:80]!r} is no plain file name")
    if part and (mode != "0644" or name.startswith(".")):
        raise _malformed(origin, f"line {number}: a part has mode 0644 and no dot in front")
    return IndexedFile(
        name=name, sha256=sha256, size=int(size), mode=cast(IndexMode, mode), is_part=part is not None
    )


def _check_names(files: tuple[IndexedFile, ...], entry: str, origin: str) -> None:
    names = [file.name for file in files]
    if names != sorted(names):
        raise _malformed(origin, "its file lines are not sorted by name")
    if len({name.casefold() for name in names}) != len(names):
        raise _malformed(origin, "a name stands twice, or two differ in upper and lower case only")
    if not any(file.name == entry and file.mode == "0755" for file in files):
        raise _malformed(origin, f"its entry {entry[:80]!r} is not one of its files with mode 0755")


def _malformed(origin: str, why: str) -> ConfigError:
    return ConfigError(
        "index-malformed",
        f"cannot read index {origin}",
        why=why,
        hint="the artifact is damaged or foreign: package it again, or fetch it again",
    )
