"""Reading the index inside an artifact that is damaged or hostile: there is none, and no traceback."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from opencoti.doctor.engine import read_index

NAME = ".opencoti/index"
TEXT = b"opencoti-index 1\nversion opencoti-0.5.0-g0c1e570-c1\n"


def archive() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        made.writestr(NAME, TEXT)
    return file.getvalue()


def _field(record: bytes, at: int, form: str, value: int) -> Callable[[bytearray], None]:
    """Change a field of the last record of a kind."""

    def change(data: bytearray) -> None:
        struct.pack_into(form, data, data.rindex(record) + at, value)

    return change


def _grow(data: bytearray) -> None:
    """Let the directory promise more bytes than the file has (found by fuzzing)."""
    for at in (20, 24):
        _field(b"PK\1\2", at, "<I", 60_000)(data)


def _break_extra(data: bytearray) -> None:
    """Give the member a ZIP64 field that is cut off."""
    name = data.rindex(NAME.encode()) + len(NAME)
    data[name:name] = struct.pack("<HHI", 1, 4, 0)
    _field(b"PK\1\2", 30, "<H", 8)(data)
    _field(b"PK\1\2", 42, "<I", 0xFFFFFFFF)(data)
    _field(b"PK\5\6", 12, "<I", len(data) - 22 - data.rindex(b"PK\1\2"))(data)


def test_index_of_a_good_archive_is_read(tmp_path: Path) -> None:
    (tmp_path / "engine").write_bytes(archive())
    index = read_index(tmp_path / "engine")
    assert index is not None
    assert index.version == "opencoti-0.5.0-g0c1e570-c1"


@pytest.mark.parametrize(
    "change",
    [
        _grow,
        _break_extra,
        _field(b"PK\1\2", 8, "<H", 1),
        _field(b"PK\1\2", 16, "<I", 7),
        _field(b"PK\1\2", 42, "<I", 0x7FFFFFFF),
        _field(b"PK\3\4", 26, "<H", 5),
        _field(b"PK\5\6", 16, "<I", 0x7FFFFFFF),
    ],
    ids=[
        "longer than the file",
        "broken ZIP64 field",
        "encrypted",
        "wrong CRC",
        "far away",
        "other name",
        "no place",
    ],
)
def test_a_damaged_archive_has_no_index(tmp_path: Path, change: Callable[[bytearray], None]) -> None:
    data = bytearray(archive())
    change(data)
    (tmp_path / "engine").write_bytes(data)
    assert read_index(tmp_path / "engine") is None
