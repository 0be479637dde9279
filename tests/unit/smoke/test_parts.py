"""The small parts: /proc, inotify, scratch folders, explanations of failures."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ci.smoke import scratch
from ci.smoke.failures import died_error, log_tail, start_error
from ci.smoke.scratch import PLANTED_NAME, plant, scratch_folder
from ci.smoke.watch import OpenWatch
from opencoti import procfs
from opencoti.errors import MissingError, StorageError, VerificationError
from opencoti.launch.failures import describe_exit

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the smoke test reads /proc")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def test_a_mapped_file_is_found_by_inode(tmp_path: Path) -> None:
    path = tmp_path / "lib with space.so"
    path.write_bytes(b"x" * 5000)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        [found] = [item for item in procfs.mapped_files(os.getpid()) if item.path == path]
        assert found.inode == path.stat().st_ino
        assert found.is_at_path
        path.unlink()
        [found] = [item for item in procfs.mapped_files(os.getpid()) if item.path == path]
        assert found.is_deleted
        assert not found.is_at_path


def test_another_file_under_the_name_of_the_mapped_one_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.so"
    path.write_bytes(b"old")
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        (tmp_path / "b").write_bytes(b"new")
        (tmp_path / "b").replace(path)
        assert not any(item.path == path and item.is_at_path for item in procfs.mapped_files(os.getpid()))


def test_a_listener_is_found_with_its_owner() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        [found] = [item for item in procfs.listeners() if item.port == port]
        assert found.is_loopback
        assert procfs.sockets_of([os.getpid()])[found.inode] == os.getpid()
        assert procfs.owner_of(found).startswith(f"process {os.getpid()} (")
    assert found.inode not in {item.inode for item in procfs.listeners()}


def test_a_listener_on_every_address_is_not_loopback() -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        assert [item.is_loopback for item in procfs.listeners() if item.port == port] == [False]


def test_a_process_that_is_gone_has_nothing() -> None:
    pid = 2**22 + 1  # above the largest process id
    assert procfs.mapped_files(pid) == ()
    assert procfs.executable(pid) is None
    assert procfs.sockets_of([pid]) == {}


def test_members_are_those_of_the_session() -> None:
    # A session of its own: the one of this process may lie outside the PID namespace and have no number here.
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, start_new_session=True) as child:
        assert procfs.members(child.pid, "no such mark in any environment") == (child.pid,)
    assert procfs.members(-1, "no such mark in any environment") == ()


def test_session_zero_is_nobodys() -> None:
    # Inside a PID namespace every process whose session began outside shows session 0.
    assert procfs.members(0, "no such mark in any environment") == ()


def test_an_open_is_noticed_and_a_stat_is_not(tmp_path: Path) -> None:
    path = tmp_path / "planted.so"
    path.write_bytes(b"x")
    with OpenWatch(path) as watch:
        assert watch.is_active
        path.stat()
        assert not watch.was_opened()
        path.read_bytes()
        assert watch.was_opened()
        assert watch.was_opened()


def test_a_watch_on_nothing_is_not_active(tmp_path: Path) -> None:
    with OpenWatch(tmp_path / "nothing") as watch:
        assert not watch.is_active
        assert not watch.was_opened()


def test_a_scratch_folder_is_private_and_goes_away(temporary: Path, tmp_path: Path) -> None:
    with scratch_folder(tmp_path / "fallback") as made:
        assert made.root.parent == temporary
        assert made.root.stat().st_mode & 0o777 == 0o700
        assert os.listdir(made.home) == []
        (made.home / "locked").mkdir()
        (made.home / "locked" / "file").write_text("x")
        (made.home / "locked").chmod(0o500)
    assert list(temporary.iterdir()) == []


def test_a_kept_folder_stays_and_is_never_swept(temporary: Path, tmp_path: Path) -> None:
    with scratch_folder(tmp_path / "fallback", keep=True) as kept:
        pass
    with scratch_folder(tmp_path / "fallback"):
        assert kept.home.is_dir()


def test_only_folders_of_dead_runs_are_swept(temporary: Path, tmp_path: Path) -> None:
    dead = temporary / "opencoti-smoke-dead"
    dead.mkdir()
    (dead / ".lock").touch()
    foreign = temporary / "opencoti-smoke-notes"
    foreign.mkdir()
    with scratch_folder(tmp_path / "fallback") as living:
        assert not dead.exists()
        with scratch_folder(tmp_path / "fallback"):
            assert living.home.is_dir()
    assert foreign.is_dir()


def test_a_folder_that_a_sweep_met_before_it_was_locked_is_given_up_for_another(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[Path] = []

    def flock(handle: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX and len(lost) < 3:
            lost.extend(temporary.iterdir())
            with scratch_folder(tmp_path / "fallback"):  # another run, which sweeps first
                pass
        fcntl.flock(handle, operation)

    monkeypatch.setattr(scratch, "fcntl", SimpleNamespace(**{**vars(fcntl), "flock": flock}))
    with scratch_folder(tmp_path / "fallback") as made:
        assert made.home.is_dir()
        assert made.root not in lost
        assert list(temporary.iterdir()) == [made.root]
        with scratch_folder(tmp_path / "fallback"):
            assert made.home.is_dir(), "it is locked, and no sweep takes it"
    assert len(set(lost)) == 3
    assert list(temporary.iterdir()) == []


def test_a_noexec_temporary_folder_is_not_used_case_b51(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch, "is_noexec", lambda path: path == temporary)
    with scratch_folder(tmp_path / "fallback") as made:
        assert made.root.parent == tmp_path / "fallback"


def test_the_planted_library_is_a_copy_of_a_real_one(temporary: Path, tmp_path: Path) -> None:
    with scratch_folder(tmp_path / "fallback") as made:
        plant(made)
        assert made.planted.name == PLANTED_NAME
        made.planted.unlink()
        (made.home / "v").mkdir()
        (made.home / "v" / "libggml-cpu-x64.so").write_bytes(b"real")
        plant(made)
        assert made.planted.read_bytes() == b"real"
        assert made.planted.stat().st_ino != (made.home / "v" / "libggml-cpu-x64.so").stat().st_ino


def test_noexec_and_policy_are_told_apart_case_b51(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = tmp_path / "a"
    artifact.touch(mode=0o755)
    refused = PermissionError(errno.EACCES, "Permission denied")
    assert start_error(refused, artifact).error_id == "smoke-not-permitted"
    monkeypatch.setattr("ci.smoke.failures.is_noexec", lambda path: True)
    error = start_error(refused, artifact)
    assert isinstance(error, StorageError)
    assert error.error_id == "smoke-noexec"


@pytest.mark.parametrize(
    ("code", "text"),
    [(0, "exit code 0"), (3, "exit code 3"), (-6, "SIGABRT"), (-15, "SIGTERM"), (-200, "signal 200")],
)
def test_ends_are_described(code: int, text: str) -> None:
    assert text in describe_exit(code)


def test_the_tail_survives_any_bytes_and_lengths(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"\xff\xfe\n" * 100_000 + b"\x00last\n\n")
    lines = log_tail(log).splitlines()
    assert lines[-1].endswith("last")
    assert len(lines) == 12
    assert log_tail(tmp_path / "nothing") == ""


def test_a_silent_death_says_so(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    error = died_error(1, log, what="before it was ready")
    assert isinstance(error, VerificationError)
    assert error.why == "it printed nothing"


def test_wine_in_the_log_is_a_missing_loader_case_b51(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"wine: Bad EXE format for Z:\\a.llamafile.\n")
    assert isinstance(died_error(1, log, what="at start"), MissingError)


def test_session_0_has_no_members_for_it_is_everybody_else() -> None:
    """The number of a process that has ended is 0 in some answers; ending its session would end strangers."""
    assert procfs.members(0, "OPENCOTI_SMOKE_RUN=no-such-run") == ()


def test_a_run_is_found_by_its_mark_alone() -> None:
    mark = f"OPENCOTI_SMOKE_RUN={os.getpid()}-mark"
    name, _, value = mark.partition("=")
    with subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, name: value},
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert procfs.marked(mark) == (child.pid,)
        child.communicate(b"\n")
    assert procfs.marked(mark) == ()
