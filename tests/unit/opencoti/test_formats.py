"""Only an APE may be handed to a shell when the kernel refuses it (case B51)."""

from __future__ import annotations

from pathlib import Path

import pytest

from opencoti.formats import is_ape


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (b"MZqFpD='\n", True),
        (b"jartsr='\n", True),
        (b"\x7fELF\x02\x01", False),
        (b"MZ\x90\x00", False),
        (b"rm -r x\n", False),
        (b"", False),
    ],
)
def test_kinds_of_executable(tmp_path: Path, start: bytes, expected: bool) -> None:
    path = tmp_path / "x"
    path.write_bytes(start)
    assert is_ape(path) is expected


def test_a_missing_file_is_none(tmp_path: Path) -> None:
    assert not is_ape(tmp_path / "none")
