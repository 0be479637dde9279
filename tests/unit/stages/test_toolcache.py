"""What tools keep between builds: bounded, never taken from under a build, and private where it has to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.stages.toolcache import tool_cache
from opencoti.errors import StorageError
from tests.conftest import RecordedConsole

KEPT = "zig/o/1/a.o"


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """What earlier builds left: 1000 bytes of Zig's, and something of the compiler cache's."""
    folder = tmp_path / "cache" / "host-1"
    for name, size in ((KEPT, 1000), ("ccache/b", 5000)):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_bytes(bytes(size))
    return folder


@pytest.mark.parametrize(("limit", "stays"), [(1000, True), (999, False)])
def test_zig_is_emptied_above_its_limit(
    shared: Path, tmp_path: Path, recorded: RecordedConsole, limit: int, stays: bool
) -> None:
    console = recorded.console
    with tool_cache(shared=shared, private=tmp_path / "p", console=console, max_zig_bytes=limit) as folder:
        assert folder == shared
        assert (shared / KEPT).exists() is stays
        assert (shared / "ccache/b").stat().st_size == 5000
    assert ("is emptied" in recorded.text) is not stays


def test_nothing_goes_while_another_build_uses_it(
    shared: Path, tmp_path: Path, recorded: RecordedConsole
) -> None:
    console = recorded.console
    with (
        tool_cache(shared=shared, private=tmp_path / "p", console=console),
        tool_cache(shared=shared, private=tmp_path / "q", console=console, max_zig_bytes=1),
    ):
        assert (shared / KEPT).exists()
    with tool_cache(shared=shared, private=tmp_path / "q", console=console, max_zig_bytes=1):
        assert not (shared / KEPT).exists()


def test_without_a_shared_one_it_is_empty_and_goes(tmp_path: Path, recorded: RecordedConsole) -> None:
    private = tmp_path / "p"
    (private / "of-a-killed-build").mkdir(parents=True)
    with tool_cache(shared=None, private=private, console=recorded.console) as folder:
        assert folder == private
        assert not list(folder.iterdir())
    assert not private.exists()


def test_one_that_cannot_be_written_is_told_and_left_alone(tmp_path: Path, recorded: RecordedConsole) -> None:
    """case B19"""
    shared, private = tmp_path / "in-the-way" / "host-1", tmp_path / "p"
    shared.parent.write_text("")
    with tool_cache(shared=shared, private=private, console=recorded.console) as folder:
        assert folder == private
    assert not private.exists()
    assert "goes without" in recorded.text


def test_no_place_at_all_is_an_error(tmp_path: Path, recorded: RecordedConsole) -> None:
    (tmp_path / "p").write_text("")
    with (
        pytest.raises(StorageError),
        tool_cache(shared=None, private=tmp_path / "p" / "q", console=recorded.console),
    ):
        pass
