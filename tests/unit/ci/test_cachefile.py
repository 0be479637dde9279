"""A file of the build cache is used again only with the bytes that were made."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.cachefile import kept_file


@pytest.mark.parametrize(
    ("damage", "makes"),
    [("none", 1), ("flipped", 2), ("cut", 2), ("gone", 2), ("note gone", 2), ("note is garbage", 2)],
)
def test_it_is_made_again_exactly_when_it_differs(tmp_path: Path, damage: str, makes: int) -> None:
    path = tmp_path / "loader"
    made: list[Path] = []

    def make(target: Path) -> None:
        made.append(target)
        target.write_bytes(b"good bytes")

    kept_file(path, make)
    note = tmp_path / "loader.sha256"
    match damage:
        case "flipped":
            path.write_bytes(b"gooD bytes")
        case "cut":
            path.write_bytes(b"")
        case "gone":
            path.unlink()
        case "note gone":
            note.unlink()
        case "note is garbage":
            note.write_bytes(b"\xff\x00")
    assert kept_file(path, make).read_bytes() == b"good bytes"
    assert len(made) == makes
    kept_file(path, make)
    assert len(made) == makes
