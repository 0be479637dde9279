"""Unpacking an archive that may be hostile."""

from __future__ import annotations

import gzip
import stat
import tarfile
from pathlib import Path

import pytest

from ci.sources.unpack import Limits, unpack_folder
from opencoti.errors import VerificationError
from tests.fakes.source_trees import FILES, FOLDER, TOP, entry, make_archive, make_sdist

IN = f"{TOP}/{FOLDER}"


def unpack(archive: Path, target: Path, limits: Limits | None = None) -> int:
    return unpack_folder(archive, FOLDER, target, origin="pin x.txt", limits=limits).files


def test_only_the_pinned_folder_comes_out_with_plain_modes(tmp_path: Path) -> None:
    make_sdist(tmp_path / "a.tar.gz", FILES)
    assert unpack(tmp_path / "a.tar.gz", tmp_path / "out") == len(FILES)
    found = {str(p.relative_to(tmp_path / "out")): p for p in (tmp_path / "out").rglob("*") if p.is_file()}
    assert {name: path.read_bytes() for name, path in found.items()} == FILES
    modes = {name: stat.S_IMODE(path.stat().st_mode) for name, path in found.items()}
    assert modes.pop("run.sh") == 0o755
    assert set(modes.values()) == {0o644}


@pytest.mark.parametrize(
    "bad",
    [
        entry(f"{IN}/../../../../evil", b"x"),
        entry(f"{TOP}/elsewhere/../../evil", b"x"),
        entry("/etc/evil", b"x"),
        entry(f"{IN}/l", kind=tarfile.SYMTYPE, link="/etc/passwd"),
        entry(f"{IN}/l", kind=tarfile.SYMTYPE, link="../../x"),
        entry(f"{IN}/src/l", kind=tarfile.SYMTYPE, link="../../x"),
        entry(f"{IN}/hard", kind=tarfile.LNKTYPE, link=f"{IN}/src/main.cpp"),
        entry(f"{IN}/dev", kind=tarfile.CHRTYPE),
        entry(f"{IN}/pipe", kind=tarfile.FIFOTYPE),
        entry(f"{IN}/src/main.cpp", b"again"),
        entry(f"{IN}/SRC/other.cpp", b"x"),
        entry(f"{IN}/Cmakelists.txt", b"x"),
        entry(f"{IN}/src", b"a file where a folder is"),
        entry(f"{IN}/src/main.cpp/x", b"a file below a file"),
        entry(f"{IN}/a\\b", b"x"),
    ],
    ids=lambda value: str(value[0])[-30:],
)
def test_hostile_entry_refuses_the_archive_and_leaves_nothing(
    tmp_path: Path, bad: tuple[str, object]
) -> None:
    good = [entry(f"{IN}/{name}", data) for name, data in FILES.items()]
    make_archive(tmp_path / "a.tar.gz", [*good, bad])
    with pytest.raises(VerificationError) as caught:
        unpack(tmp_path / "a.tar.gz", tmp_path / "out")
    assert caught.value.error_id == "archive-unsafe"
    assert "pin x.txt" in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar.gz"]


def test_file_below_a_link_of_the_archive_is_refused(tmp_path: Path) -> None:
    entries = [entry(f"{IN}/l", kind=tarfile.SYMTYPE, link="src"), entry(f"{IN}/l/x", b"x")]
    make_archive(tmp_path / "a.tar.gz", entries)
    with pytest.raises(VerificationError, match="through the link l"):
        unpack(tmp_path / "a.tar.gz", tmp_path / "out")


def test_chain_of_links_that_leads_out_is_refused(tmp_path: Path) -> None:
    entries = [
        entry(f"{IN}/b", kind=tarfile.SYMTYPE, link="a/up/../x"),
        entry(f"{IN}/a/up", kind=tarfile.SYMTYPE, link=".."),
    ]
    make_archive(tmp_path / "a.tar.gz", entries)
    with pytest.raises(VerificationError, match="points out of the tree"):
        unpack(tmp_path / "a.tar.gz", tmp_path / "out")


def test_link_inside_the_tree_is_kept(tmp_path: Path) -> None:
    make_archive(
        tmp_path / "a.tar.gz", [entry(f"{IN}/x", b"x"), entry(f"{IN}/d/l", kind=tarfile.SYMTYPE, link="../x")]
    )
    unpack(tmp_path / "a.tar.gz", tmp_path / "out")
    assert (tmp_path / "out" / "d" / "l").readlink() == Path("../x")


@pytest.mark.parametrize("keep", [0.3, 0.8, 0.99])
def test_archive_cut_short_is_damaged(tmp_path: Path, keep: float) -> None:
    make_sdist(tmp_path / "a.tar.gz", FILES | {"big": bytes(range(256)) * 4000})
    data = (tmp_path / "a.tar.gz").read_bytes()
    (tmp_path / "a.tar.gz").write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(VerificationError) as caught:
        unpack(tmp_path / "a.tar.gz", tmp_path / "out")
    assert caught.value.error_id == "archive-damaged"
    assert not (tmp_path / "out").exists()


def test_file_that_is_no_archive_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(b"<html>not found</html>"))
    with pytest.raises(VerificationError) as caught:
        unpack(tmp_path / "a.tar.gz", tmp_path / "out")
    assert caught.value.error_id == "archive-damaged"


@pytest.mark.parametrize("limits", [Limits(size_bytes=50_000), Limits(members=5)])
def test_archive_beyond_the_limits_is_refused(tmp_path: Path, limits: Limits) -> None:
    make_sdist(tmp_path / "a.tar.gz", FILES | {"bomb": bytes(1_000_000)})
    with pytest.raises(VerificationError) as caught:
        unpack(tmp_path / "a.tar.gz", tmp_path / "out", limits)
    assert caught.value.error_id == "archive-too-large"
    assert not (tmp_path / "out").exists()


def test_archive_without_the_folder_is_refused(tmp_path: Path) -> None:
    make_archive(tmp_path / "a.tar.gz", [entry(f"{TOP}/other/x", b"x")])
    with pytest.raises(VerificationError) as caught:
        unpack(tmp_path / "a.tar.gz", tmp_path / "out")
    assert caught.value.error_id == "archive-folder"


def test_target_that_exists_is_left_alone(tmp_path: Path) -> None:
    from opencoti.errors import StorageError

    make_sdist(tmp_path / "a.tar.gz", FILES)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(StorageError):
        unpack(tmp_path / "a.tar.gz", tmp_path / "out")
    assert (tmp_path / "out" / "mine").exists()
