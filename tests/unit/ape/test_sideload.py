"""The side-load mirror: where it is, that it appears whole, and what it warns of."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.ape.sideload import side_load, side_load_folder
from opencoti.errors import OpencotiError
from tests.conftest import RecordedConsole


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "built" / "ggml-cuda.so"
    path.parent.mkdir()
    path.write_bytes(b"new")
    return path


def home(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path / "home")}


def test_copy_replaces_an_older_one_and_is_told(
    library: Path, tmp_path: Path, recorded: RecordedConsole
) -> None:
    folder = side_load_folder("0.10.1", home(tmp_path))
    assert folder == tmp_path / "home" / ".llamafile" / "v" / "0.10.1"
    folder.mkdir(parents=True)
    old = folder / "ggml-cuda.so"
    old.write_bytes(b"old")
    inode = old.stat().st_ino
    (target,) = side_load([library], "0.10.1", recorded.console, environ=home(tmp_path))
    assert (target, target.read_bytes(), target.stat().st_mode & 0o777) == (old, b"new", 0o755)
    assert target.stat().st_ino != inode  # a process that has the old one mapped keeps it
    assert [path.name for path in folder.iterdir()] == ["ggml-cuda.so"]
    assert f"side-loaded {target} (SHA-256 " in recorded.text
    assert f"inode {target.stat().st_ino}" in recorded.text


@pytest.mark.parametrize(("content", "warns"), [(b"other", True), (b"new", False)])
def test_another_library_in_the_home_folder_is_named(
    library: Path, tmp_path: Path, recorded: RecordedConsole, content: bytes, warns: bool
) -> None:
    stray = tmp_path / "home" / "ggml-cuda.so"
    stray.parent.mkdir()
    stray.write_bytes(content)
    side_load([library], "0.10.1", recorded.console, environ=home(tmp_path))
    assert (f"{stray} is another library of that name" in recorded.text) == warns
    assert stray.read_bytes() == content


@pytest.mark.parametrize("environ", [{}, {"HOME": ""}, {"HOME": "relative"}])
def test_without_a_home_folder_nothing_is_guessed(
    library: Path, recorded: RecordedConsole, environ: dict[str, str]
) -> None:
    with pytest.raises(OpencotiError) as caught:
        side_load([library], "0.10.1", recorded.console, environ=environ)
    assert (caught.value.error_id, caught.value.exit_code) == ("side-load-home", 4)


def test_nothing_to_copy_is_an_error(tmp_path: Path, recorded: RecordedConsole) -> None:
    with pytest.raises(OpencotiError) as caught:
        side_load([], "0.10.1", recorded.console, environ=home(tmp_path))
    assert caught.value.error_id == "side-load-empty"


@pytest.mark.parametrize("place", [".llamafile", ".llamafile/v", ".llamafile/v/0.10.1"])
def test_links_are_not_followed(library: Path, tmp_path: Path, recorded: RecordedConsole, place: str) -> None:
    link = tmp_path / "home" / place
    link.parent.mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OpencotiError) as caught:
        side_load([library], "0.10.1", recorded.console, environ=home(tmp_path))
    assert (caught.value.error_id, caught.value.exit_code) == ("side-load-link", 8)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_library_that_is_a_link_is_replaced_not_followed(
    library: Path, tmp_path: Path, recorded: RecordedConsole
) -> None:
    folder = tmp_path / "home" / ".llamafile" / "v" / "0.10.1"
    folder.mkdir(parents=True)
    (tmp_path / "precious").write_bytes(b"precious")
    (folder / "ggml-cuda.so").symlink_to(tmp_path / "precious")
    side_load([library], "0.10.1", recorded.console, environ=home(tmp_path))
    assert (tmp_path / "precious").read_bytes() == b"precious"
    assert (folder / "ggml-cuda.so").read_bytes() == b"new"


def test_version_with_a_path_in_it_is_refused(
    library: Path, tmp_path: Path, recorded: RecordedConsole
) -> None:
    with pytest.raises(OpencotiError) as caught:
        side_load([library], "../../etc", recorded.console, environ=home(tmp_path))
    assert caught.value.error_id == "unsafe-name"
