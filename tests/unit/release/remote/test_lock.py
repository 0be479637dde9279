"""One publisher at a time, also where the staged folder lies on a disk that nobody can write to."""

from __future__ import annotations

from pathlib import Path

import pytest

from opencoti.errors import OpencotiError
from release.publish_cli import publish_lock


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "c7"
    path.mkdir()
    return path


@pytest.mark.parametrize("can_write", [True, False])
def test_second_publisher_is_told_and_the_next_one_may(folder: Path, can_write: bool) -> None:
    with publish_lock(folder, "c7", can_write=can_write):
        with pytest.raises(OpencotiError) as caught, publish_lock(folder, "c7", can_write=can_write):
            pytest.fail("two at once")
        assert (caught.value.error_id, caught.value.exit_code) == ("lock-held", 9)
    with publish_lock(folder, "c7", can_write=can_write):
        pass


def test_nothing_is_written_where_nothing_can_be(folder: Path) -> None:
    with publish_lock(folder, "c7", can_write=False):
        assert [path.name for path in folder.parent.iterdir()] == ["c7"]
    assert list(folder.iterdir()) == []


def test_folder_that_is_not_there_is_left_to_who_looks_into_it(folder: Path) -> None:
    """What is wrong is said by the check of the folder, not by its lock."""
    for can_write in (True, False):
        with publish_lock(folder.with_name("c8"), "c8", can_write=can_write):
            assert [path.name for path in folder.parent.iterdir()] == ["c7"]
