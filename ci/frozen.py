"""A source tree without git: `SOURCE.json` says which commit it is, and what each of its files must be.

`python -m release freeze` writes it into the tarball that all jobs of one release build from. A tree is
clean when every listed file is as it was, and no other file lies beside them in the folders of the source.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, StringConstraints

from opencoti.document import DocumentPart, MalformedError, UnknownSchemaError, read_document, render_document
from opencoti.errors import ConfigError, storage_error
from opencoti.hashing import sha256_bytes, sha256_file

RECORD_NAME: Final = "SOURCE.json"
SCHEMA: Final = "opencoti.source/1"
_MAX_BYTES = 16 << 20
# Made by commands, never part of a source: git ignores the same.
_GENERATED_FOLDERS = frozenset({"__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis"})
_VENDORED = "vendors/sources"


def _relative(text: str) -> str:
    parts = text.split("/")
    if text.startswith("/") or any(part in ("", ".", "..") for part in parts) or "\0" in text:
        raise ValueError("it is no path below the top folder")
    return text


GitId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Timestamp = Annotated[str, StringConstraints(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]


class FrozenFile(DocumentPart):
    """One file; the SHA-256 of a link is that of its target's text."""

    path: Annotated[str, AfterValidator(_relative)]
    kind: Literal["file", "program", "link"]
    sha256: Sha256


class SourceRecord(DocumentPart):
    """Which commit a tree is, and every file of it, sorted by path."""

    schema_id: Literal["opencoti.source/1"] = Field(alias="schema", default="opencoti.source/1")
    commit: GitId
    committed: Timestamp
    files: Annotated[tuple[FrozenFile, ...], Field(min_length=1)]


def read_record(root: Path) -> SourceRecord | None:
    """Return the record of a frozen tree, None where there is none.

    Raises:
        ConfigError: `source-record-malformed`, `json-malformed`.
        StorageError: it cannot be read.
    """
    path = root / RECORD_NAME
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise storage_error(exc, f"cannot read {path}") from exc
    try:
        return read_document(SourceRecord, data, schema=SCHEMA, origin=str(path), max_bytes=_MAX_BYTES)
    except (UnknownSchemaError, MalformedError) as exc:
        raise ConfigError(
            "source-record-malformed",
            f"cannot read {path}",
            why=str(exc),
            hint="unpack the source tarball again",
        ) from exc


def render_record(record: SourceRecord) -> bytes:
    """Return the bytes of a record."""
    return render_document(record)


def changed_files(root: Path, record: SourceRecord) -> tuple[str, ...]:
    """Return what differs from the record: changed, missing and added files, sorted.

    Raises:
        StorageError: a file cannot be read.
    """
    listed = {item.path for item in record.files}
    differing = {item.path for item in record.files if not _is_same(root, item)}
    return tuple(sorted(differing | (set(_files_of(root, listed)) - listed)))


def kind_of(mode: int) -> Literal["file", "program", "link"]:
    """Return the kind of a file by its mode, as git sees it."""
    if stat.S_ISLNK(mode):
        return "link"
    return "program" if mode & stat.S_IXUSR else "file"


def _is_same(root: Path, item: FrozenFile) -> bool:
    path = root / item.path
    try:
        mode = path.lstat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)) or kind_of(mode) != item.kind:
            return False
        if item.kind == "link":
            return sha256_bytes(os.fsencode(os.readlink(path))) == item.sha256
        return sha256_file(path) == item.sha256
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as exc:
        raise storage_error(exc, f"cannot read {path}") from exc


def _files_of(root: Path, listed: set[str]) -> Iterator[str]:
    """Yield what lies in the folders that the source has, apart from what commands leave there."""
    for top in sorted({path.split("/")[0] for path in listed if "/" in path}):
        for folder, names, files in os.walk(root / top):
            inside = Path(folder).relative_to(root).as_posix()
            names[:] = [name for name in names if not _is_generated(f"{inside}/{name}")]
            paths = (f"{inside}/{name}" for name in files)
            yield from (path for path in paths if not _is_generated(path))


def _is_generated(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name in _GENERATED_FOLDERS or name.endswith(".egg-info") or path.startswith(f"{_VENDORED}/")
