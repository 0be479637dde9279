"""What nobody uses goes; what is used stays."""

from __future__ import annotations

import os
import time
from pathlib import Path

from ci.toolchains.expiry import mark_used, remove_unused


def test_a_folder_unused_for_a_month_goes_and_unmarked_ones_are_not_ours(tmp_path: Path) -> None:
    for name in ("old", "other"):
        (tmp_path / name / "deep").mkdir(parents=True)
    mark_used(tmp_path / "old")
    assert remove_unused(tmp_path, now=time.time() + 29 * 86400) == []
    assert remove_unused(tmp_path, now=time.time() + 31 * 86400) == ["old"]
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_a_use_begins_the_month_anew(tmp_path: Path) -> None:
    (tmp_path / "used").mkdir()
    mark_used(tmp_path / "used")
    os.utime(tmp_path / ".last-used-used", (1, 1))
    mark_used(tmp_path / "used")
    assert remove_unused(tmp_path, now=time.time() + 5) == []


def test_use_counts_before_the_folder_is_made(tmp_path: Path) -> None:
    """Also where it is the first of its kind; a place that cannot be written is no failure."""
    mark_used(tmp_path / "new" / "used")
    assert (tmp_path / "new" / ".last-used-used").is_file()
    (tmp_path / "file").touch()
    mark_used(tmp_path / "file" / "used")
    assert remove_unused(tmp_path / "new", now=time.time() + 5) == []
