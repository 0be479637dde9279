"""Atomic writing, and names that come from outside (case B44)."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from opencoti.errors import StorageError, VerificationError
from opencoti.fetch.store import Slot, inspect
from opencoti.files import atomic_file, is_safe_name, require_safe_name, write_atomic
from tests.conftest import ROOT


@pytest.mark.parametrize(
    "name",
    ["../../x", "/abs", "a/../../b", "a\\..\\b", "C:\\x", "CON", "nul.txt", "", ".", "..", "x\0y", "a" * 300,
     ".git/config", "ends.", "spa ce", "ümlaut", "-\n"],
)  # fmt: skip
def test_names_with_a_path_or_a_trick_are_refused(name: str) -> None:
    assert not is_safe_name(name)
    with pytest.raises(VerificationError, match="refused"):
        require_safe_name(name, "a manifest")


@pytest.mark.parametrize(
    "name", ["libggml.so.0", "opencoti-llamafile-0.5.0-g0c1e570-c1-linux-x86_64.llamafile", ".args"]
)
def test_ordinary_names_pass(name: str) -> None:
    assert require_safe_name(name, "a manifest") == name


def test_error_in_the_block_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    target = tmp_path / "file"
    write_atomic(target, b"old")

    def write_and_fail() -> None:
        with atomic_file(target) as file:
            file.write(b"new")
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        write_and_fail()
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_mode_does_not_depend_on_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_atomic(tmp_path / "file", b"x", mode=0o755)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o755


def test_symbolic_link_at_the_target_is_replaced_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    link = tmp_path / "link"
    link.symlink_to(victim)
    write_atomic(link, b"new")
    assert victim.read_bytes() == b"precious"
    assert not link.is_symlink()
    assert link.read_bytes() == b"new"


def test_unwritable_folder_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    with pytest.raises(StorageError) as caught:
        write_atomic(tmp_path / "plain" / "file", b"x")
    assert caught.value.exit_code == 8


def test_a_device_or_a_pipe_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(StorageError) as caught:
        write_atomic(pipe, b"data")
    assert caught.value.error_id == "target-special"
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert os.listdir(tmp_path) == ["pipe"]


def test_threads_that_write_one_file_at_the_same_time_both_succeed(tmp_path: Path) -> None:
    both_wrote = threading.Barrier(2)

    def write(data: bytes) -> None:
        with atomic_file(tmp_path / "file") as file:
            file.write(data[: 1 << 19])
            file.flush()
            both_wrote.wait(60)
            file.write(data[1 << 19 :])

    contents = [letter * (1 << 20) for letter in (b"a", b"b")]
    with ThreadPoolExecutor(max_workers=2) as pool:
        assert list(pool.map(write, contents)) == [None, None]
    assert (tmp_path / "file").read_bytes() in contents
    assert os.listdir(tmp_path) == ["file"]


def test_two_writers_of_one_thread_do_not_share_a_file_either(tmp_path: Path) -> None:
    """Nor do two containers, in which both process and thread may have the number 1."""
    with atomic_file(tmp_path / "file") as first:
        first.write(b"first")
        with atomic_file(tmp_path / "file") as second:
            second.write(b"second")
        assert (tmp_path / "file").read_bytes() == b"second"
    assert (tmp_path / "file").read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["file"]


def test_what_a_killed_run_left_goes_and_what_a_living_one_writes_stays(tmp_path: Path) -> None:
    slot = Slot(folder=tmp_path, name="engine")
    slot.final.write_bytes(b"x")
    code = (
        "import os, pathlib, signal, sys\n"
        "from opencoti.files import atomic_file\n"
        "with atomic_file(pathlib.Path(sys.argv[1])):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, slot.stamp], cwd=ROOT)
    assert done.returncode == -signal.SIGKILL
    [left] = tmp_path.glob(".*.tmp")
    with atomic_file(slot.stamp):
        [living] = set(tmp_path.glob(".*.tmp")) - {left}
        assert inspect(slot).was_read  # writes a stamp
        assert list(tmp_path.glob(".*.tmp")) == [living]
