"""What nobody uses goes; what is used stays."""

from __future__ import annotations

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


def test_a_use_begins_the_month_anew_and_an_absent_parent_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "used").mkdir()
    mark_used(tmp_path / "used")
    mark_used(tmp_path / "nowhere" / "used")
    assert remove_unused(tmp_path, now=time.time() + 5) == []
