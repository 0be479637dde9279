"""The frozen source: one tarball of one commit, for every job of a release. The same commit, the same tar.

It holds what git has for the commit, byte for byte, and `SOURCE.json` (`ci.frozen`), by which a job that has
no git knows what it builds. A submodule is left out: it is fetched by its pin.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Final

from ci.frozen import RECORD_NAME, FrozenFile, SourceRecord, kind_of, render_record
from ci.git import split_z
from ci.repository import read_git, repository_facts
from opencoti.errors import BuildError, ConfigError
from opencoti.files import atomic_file
from opencoti.hashing import sha256_bytes, sha256_file
from opencoti.trust.comment import render_time

_SUBMODULE: Final = "160000"
_MODES: Final = {"file": 0o644, "program": 0o755, "link": 0o777}


@dataclass(frozen=True, kw_only=True)
class Frozen:
    """A source tarball."""

    path: Path
    sha256: str
    commit: str
    file_count: int


@dataclass(frozen=True, kw_only=True)
class _Entry:
    path: str
    mode: int
    data: bytes


def freeze(root: Path, out: Path | None, *, default_folder: Path) -> Frozen:
    """Write the tarball of the commit that is checked out.

    Args:
        root: the checkout.
        out: the file to write; by default `opencoti-<12 of commit>.tar.gz`.
        default_folder: where that goes.

    Raises:
        ConfigError: `freeze-dirty`, the checkout differs from its commit; `no-commit`.
        BuildError: `freeze-failed`, git does not give the files.
        StorageError: the file cannot be written.
    """
    facts = repository_facts(root)
    if facts.is_dirty:
        raise ConfigError(
            "freeze-dirty",
            f"{root} cannot be frozen",
            why="it differs from its commit: changed or new files",
            hint="commit or remove them; `git status` lists them",
        )
    entries = _read_commit(root, facts.commit)
    committed = _git_bytes(root, "show", "--no-patch", "--format=%ct", facts.commit).strip()
    record = _record(facts.commit, int(committed), entries)
    path = out or default_folder / f"opencoti-{facts.commit[:12]}.tar.gz"
    with atomic_file(path) as file:
        _write_tar(file, facts.commit, int(committed), [*entries, _record_entry(record)])
    return Frozen(path=path, sha256=sha256_file(path), commit=facts.commit, file_count=len(entries))


def _record(commit: str, committed_s: int, entries: Sequence[_Entry]) -> SourceRecord:
    return SourceRecord(
        commit=commit,
        committed=render_time(datetime.fromtimestamp(committed_s, UTC)),
        files=tuple(
            FrozenFile(path=entry.path, kind=kind_of(entry.mode), sha256=sha256_bytes(entry.data))
            for entry in entries
        ),
    )


def _record_entry(record: SourceRecord) -> _Entry:
    return _Entry(path=RECORD_NAME, mode=0o100644, data=render_record(record))


def _read_commit(root: Path, commit: str) -> list[_Entry]:
    lines = split_z(_git_bytes(root, "ls-tree", "-r", "-z", "--full-tree", commit))
    listed = []
    for line in lines:
        head, _, path = line.partition("\t")
        mode, _, blob = head.split(" ")
        if mode != _SUBMODULE:
            listed.append((path, int(mode, 8), blob))
    listed.sort()
    wanted = "".join(f"{blob}\n" for _, _, blob in listed).encode()
    contents = _blobs(_git_bytes(root, "cat-file", "--batch", stdin=wanted))
    return [
        _Entry(path=path, mode=mode, data=data)
        for (path, mode, _), data in zip(listed, contents, strict=True)
    ]


def _blobs(output: bytes) -> Iterator[bytes]:
    r"""Read `<id> blob <size>\n<bytes>\n` again and again."""
    stream = io.BytesIO(output)
    while head := stream.readline():
        size = int(head.split()[2])
        yield stream.read(size)
        stream.read(1)


def _git_bytes(root: Path, *words: str, stdin: bytes | None = None) -> bytes:
    done = read_git(root, *words, stdin=stdin)
    if not done.is_ok:
        raise BuildError(
            "freeze-failed",
            f"git {words[0]} failed in {root}",
            why=(done.error_text or f"exit code {done.code}").splitlines()[0],
            hint="check the clone with `git fsck`",
        )
    return done.stdout


def _write_tar(file: IO[bytes], commit: str, committed_s: int, entries: Sequence[_Entry]) -> None:
    with (
        gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        for entry in sorted(entries, key=lambda entry: entry.path):
            info = tarfile.TarInfo(f"opencoti-{commit[:12]}/{entry.path}")
            kind = kind_of(entry.mode)
            info.mode, info.mtime = _MODES[kind], committed_s
            if kind == "link":
                info.type, info.linkname = tarfile.SYMTYPE, entry.data.decode("utf-8", "surrogateescape")
                tar.addfile(info)
            else:
                info.size = len(entry.data)
                tar.addfile(info, io.BytesIO(entry.data))
