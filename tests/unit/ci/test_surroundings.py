"""Odd surroundings of the build side: no home, a full disk, an early Ctrl-C, a client that fails."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ci import locks
from ci.git import git_failed
from ci.locks import exclusive_lock
from ci.paths import Layout
from ci.process import Completed
from ci.quickstart import client_error
from opencoti.errors import BuildError, BusyError, ConfigError, StorageError
from tests.conftest import ROOT


def completed(*, code: int = 1, stdout: str = "", stderr: str = "") -> Completed:
    return Completed(argv=("x",), code=code, stdout=stdout.encode(), stderr=stderr.encode())


def test_no_home_folder_is_told_with_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(_: object = None) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("OPENCOTI_BUILD_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nobody)
    with pytest.raises(ConfigError) as caught:
        Layout.find()
    assert caught.value.error_id == "no-build-cache"
    assert "OPENCOTI_BUILD_CACHE" in caught.value.hint


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="there is no /dev/full")
def test_a_lock_is_held_even_if_the_number_of_its_holder_cannot_be_written() -> None:
    with exclusive_lock(Path("/dev/full"), "the test"):
        pass


def test_a_lock_file_that_is_gone_when_its_holder_is_to_be_named_is_still_a_held_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "folder" / "lock"

    def flock(handle: int, operation: int) -> None:
        try:
            fcntl.flock(handle, operation)
        except BlockingIOError:
            shutil.rmtree(path.parent)  # as its holder does that removes what it worked on
            raise

    with exclusive_lock(path, "the test"):
        monkeypatch.setattr(locks, "fcntl", SimpleNamespace(**{**vars(fcntl), "flock": flock}))
        with pytest.raises(BusyError) as caught, exclusive_lock(path, "the test"):
            pass
    assert (caught.value.error_id, caught.value.why) == ("lock-held", f"process ? holds {path}")


@pytest.mark.parametrize("wait", [True, False])
def test_a_file_system_without_locks_is_a_storage_failure(
    wait: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(handle: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(locks, "fcntl", SimpleNamespace(**{**vars(fcntl), "flock": flock}))
    with pytest.raises(StorageError) as caught, exclusive_lock(tmp_path / "lock", "the test", wait=wait):
        pass
    assert (caught.value.what, caught.value.why) == (f"cannot lock {tmp_path / 'lock'}", "No locks available")


def test_a_failure_of_git_on_a_full_disk_is_one_of_the_disk(tmp_path: Path) -> None:
    done = completed(code=128, stderr="fatal: unable to write loose object file\n")
    error = git_failed(done, tmp_path, "add", free_bytes=lambda _: 0)
    assert (type(error), error.error_id) == (StorageError, "git-disk-full")
    assert "0 KiB are free there; git says: fatal: unable to write loose object file" in str(error)


@pytest.mark.parametrize("free", [1 << 40, None])
def test_other_failures_of_git_stay_what_they_are(tmp_path: Path, free: int | None) -> None:
    error = git_failed(completed(stderr="fatal: no"), tmp_path, "add", free_bytes=lambda _: free)
    assert (type(error), error.error_id) == (BuildError, "git-failed")


def test_an_error_of_the_client_keeps_its_name_and_exit_code() -> None:
    told = StorageError("storage-failed", "cannot write x", why="No space left on device", hint="free some")
    error = client_error(completed(code=8, stdout=json.dumps(told.as_dict())))
    assert type(error) is StorageError
    assert error.as_dict() == told.as_dict()


@pytest.mark.parametrize("stdout", ["", "null", "[]", '{"error": "x"}', '{"exit_code": 77}'])
def test_a_client_that_says_nothing_of_use_is_a_failed_step(stdout: str) -> None:
    error = client_error(completed(stdout=stdout, stderr="first\nlast words\n"))
    assert (type(error), error.error_id, error.why) == (BuildError, "quickstart-fetch", "last words")


def test_ctrl_c_while_modules_are_loaded_leaves_no_traceback() -> None:
    code = (
        "import os, runpy, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'ci.cli': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "runpy.run_module('ci', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
