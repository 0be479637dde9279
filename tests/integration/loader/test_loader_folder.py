"""The folder the engine runs from: who may own it, and what happens when the disk refuses."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.integration.loader.artifacts import ENTRY, Bench, is_root

LEVELS = (".llamafile", "v", "version")


def level_of(bench: Bench, name: str) -> Path:
    """One of the folders that the loader made in a first start."""
    bench.start(bench.pack(bench.files()))
    return {".llamafile": bench.home / ".llamafile", "v": bench.versions, "version": bench.folder}[name]


@pytest.mark.parametrize("name", LEVELS)
def test_folder_that_is_a_link_is_refused(bench: Bench, name: str) -> None:
    folder = level_of(bench, name)
    real = bench.root / "elsewhere"
    folder.rename(real)
    folder.symlink_to(real)

    done = bench.start(bench.root / "app")

    assert done.code == 8
    assert f"refusing the folder {folder}: it is a symbolic link" in done.stderr
    assert "  next: " in done.stderr


def test_dangling_link_is_not_followed(bench: Bench) -> None:
    (bench.home / ".llamafile").symlink_to(bench.root / "made-by-attack")
    done = bench.start(bench.pack(bench.files()))
    assert done.code == 8
    assert not (bench.root / "made-by-attack").exists()


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777])
def test_folder_that_others_may_write_is_refused(bench: Bench, name: str, mode: int) -> None:
    folder = level_of(bench, name)
    folder.chmod(mode)

    done = bench.start(bench.root / "app")

    assert done.code == 8
    assert f"refusing the folder {folder}: other users may write to it (mode {mode:04o})" in done.stderr


@pytest.mark.skipif(not is_root(), reason="needs root to give a folder away")
@pytest.mark.parametrize("name", LEVELS)
def test_folder_of_another_user_is_refused(bench: Bench, name: str) -> None:
    folder = level_of(bench, name)
    os.chown(folder, 12345, 12345)

    done = bench.start(bench.root / "app")

    assert done.code == 8
    assert f"refusing the folder {folder}: it belongs to user 12345 and you are user 0" in done.stderr


def test_file_in_place_of_a_folder_is_named(bench: Bench) -> None:
    (bench.home / ".llamafile").write_text("a file")
    done = bench.start(bench.pack(bench.files()))
    assert done.code == 8
    assert f"cannot use the folder {bench.home / '.llamafile'}: it is not a folder" in done.stderr
    assert (bench.home / ".llamafile").read_text() == "a file"


def test_home_may_be_a_link_and_folders_of_the_usual_mode_are_used(bench: Bench) -> None:
    (bench.root / "linked").symlink_to(bench.home)
    (bench.home / ".llamafile").mkdir(mode=0o755)
    done = bench.start(bench.pack(bench.files()), env={"HOME": str(bench.root / "linked")})
    assert done.code == 0
    assert (bench.folder / ENTRY).exists()


@pytest.mark.parametrize(("mode", "code"), [(0o1777, 0), (0o777, 8), (0o770, 8), (0o755, 0)])
def test_chosen_folder_may_be_shared_only_like_tmp(bench: Bench, mode: int, code: int) -> None:
    chosen = bench.root / "chosen"
    chosen.mkdir()
    chosen.chmod(mode)
    done = bench.start(bench.pack(bench.files()), env={"OPENCOTI_EXTRACT_DIR": str(chosen)})
    assert done.code == code
    assert ("other users may replace what is in it" in done.stderr) == (code == 8)


def test_full_disk_is_told_with_bytes_and_leaves_nothing(bench: Bench, small_disk: Path) -> None:
    big = os.urandom(3_000_000)
    done = bench.start(bench.pack(bench.files(model__gguf=big)), env={"HOME": str(small_disk)})

    assert done.code == 8
    (folder,) = (small_disk / ".llamafile" / "v").iterdir()
    assert (
        f"cannot write model.gguf to {folder}: No space left on device: 3000000 bytes needed, " in done.stderr
    )
    free = int(done.stderr.split("needed, ")[1].split()[0])
    assert 0 < free < 2_097_152
    assert [path.name for path in folder.iterdir() if path.name != ".lock"] == [ENTRY]


def test_full_disk_with_many_small_files(bench: Bench, small_disk: Path) -> None:
    files = bench.files(**{f"lib{number:02}__so": os.urandom(500_000) for number in range(5)})
    done = bench.start(bench.pack(files), env={"HOME": str(small_disk)})
    assert done.code == 8
    assert "No space left on device" in done.stderr
    (folder,) = (small_disk / ".llamafile" / "v").iterdir()
    assert not list(folder.glob(".tmp-*"))


def test_no_space_for_the_note_only_costs_time(bench: Bench, small_disk: Path) -> None:
    artifact = bench.pack(bench.files())
    home = {"HOME": str(small_disk)}
    bench.start(artifact, env=home)
    (folder,) = (small_disk / ".llamafile" / "v").iterdir()
    (folder / ".verified").unlink()
    fill_up(small_disk / "filler")

    done = bench.start(artifact, env=home)

    assert done.code == 0
    assert done.stderr.startswith(f"opencoti: notice: cannot note in {folder} that its files are verified")


def fill_up(path: Path) -> None:
    with open(path, "wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            return


def test_noexec_is_told_before_anything_is_written(bench: Bench, noexec_disk: Path) -> None:
    done = bench.start(bench.pack(bench.files()), env={"HOME": str(noexec_disk)})
    assert done.code == 8
    assert "its file system is mounted noexec" in done.stderr
    assert "OPENCOTI_EXTRACT_DIR" in done.stderr
    assert not [path for path in noexec_disk.rglob("*") if path.is_file()]


def test_read_only_disk_is_told(bench: Bench, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    done = bench.start(bench.pack(bench.files()), env={"HOME": str(small_disk)})
    assert done.code == 8
    assert f"cannot use the folder {small_disk}/.llamafile: Read-only file system" in done.stderr
    assert "the file system is read-only: set OPENCOTI_EXTRACT_DIR" in done.stderr


def test_unpacked_then_read_only_still_starts(bench: Bench, small_disk: Path) -> None:
    artifact = bench.pack(bench.files())
    home = {"HOME": str(small_disk)}
    bench.start(artifact, env=home)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    done = bench.start(artifact, env=home)
    assert (done.code, done.stderr) == (0, "")


@pytest.mark.skipif(not is_root(), reason="needs root to become another user")
def test_home_without_permission_is_told(bench: Bench) -> None:
    artifact = bench.pack(bench.files())
    open_to_all(bench.root)
    done = bench.start(artifact, user=12345, group=12345, extra_groups=[])
    assert done.code == 8
    assert f"cannot use the folder {bench.home}/.llamafile: Permission denied" in done.stderr
    assert not (bench.home / ".llamafile").exists()


@pytest.mark.skipif(not is_root(), reason="needs root to become another user")
def test_artifact_without_read_permission_is_told(bench: Bench) -> None:
    artifact = bench.pack(bench.files())
    artifact.chmod(0o711)
    open_to_all(bench.root)
    done = bench.start(artifact, user=12345, group=12345, extra_groups=[])
    assert done.code == 8
    assert "cannot read the artifact" in done.stderr
    assert "chmod +r" in done.stderr


def open_to_all(folder: Path) -> None:
    """Let every user into a folder of a test."""
    shared = Path(tempfile.gettempdir())
    for path in (folder, *folder.parents):
        if path.is_relative_to(shared) and path != shared:
            path.chmod(0o755)


def free_bytes(disk: Path) -> int:
    os.sync()
    info = os.statvfs(disk)
    return info.f_bfree * info.f_frsize


def test_large_member_shares_its_blocks_where_the_disk_can(bench: Bench, cloning_disk: Path) -> None:
    model = os.urandom(1 << 20) * 20 + b"and a tail"
    shutil.copy(bench.pack(bench.files(model__gguf=model)), cloning_disk / "app")
    before = free_bytes(cloning_disk)

    done = bench.start(cloning_disk / "app", env={"HOME": str(cloning_disk)})

    assert done.code == 0
    (unpacked,) = cloning_disk.rglob("model.gguf")
    assert unpacked.read_bytes() == model
    assert before - free_bytes(cloning_disk) < len(model) // 10


def test_cloned_bytes_are_hashed_too(bench: Bench, cloning_disk: Path) -> None:
    model = os.urandom(1 << 20) * 3
    data = bytearray(bench.pack(bench.files(model__gguf=model)).read_bytes())
    data[data.index(model) + 1_500_000] ^= 1
    shutil.copy(bench.write(bytes(data)), cloning_disk / "app")

    done = bench.start(cloning_disk / "app", env={"HOME": str(cloning_disk)})

    assert done.code == 6
    assert not list(cloning_disk.rglob("model.gguf"))
