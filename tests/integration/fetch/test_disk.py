"""Disks that are full or refuse, and copies of local files (case B42)."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from opencoti.errors import ConfigError, StorageError, VerificationError
from opencoti.fetch.get import Fetched, fetch
from opencoti.fetch.partial import Partial
from opencoti.fetch.settings import Settings
from opencoti.fetch.source import request_for_url
from tests.conftest import RecordedConsole
from tests.fakes.http_faults import Fault, serving
from tests.integration.fetch.bench import CONTENT, SHA, Bench, cli_env, cli_words


class FullAtHalf(Partial):
    """A disk with room for half of the file."""

    def append(self, block: bytes) -> None:
        room = 25_000 - self.size
        super().append(block[:room])
        if room < len(block):
            raise OSError(errno.ENOSPC, "No space left on device")


class FullAtSync(Partial):
    """A disk that notices at the end only that it is full, as with delayed allocation."""

    def finish(self, mode: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_case_b42_disk_full_half_way_keeps_a_partial_that_goes_on(tmp_path: Path) -> None:
    bench = Bench(folder=tmp_path, open_partial=FullAtHalf.open, free=60_000)
    with serving(CONTENT) as server:
        error = bench.outcome(server)
        assert isinstance(error, StorageError)
        assert (error.error_id, error.exit_code) == ("disk-full", 8)
        assert error.why == "25000 more bytes needed, 60000 bytes free"
        assert bench.slot(server).part.read_bytes() == CONTENT[:25_000]
        assert not bench.slot(server).final.exists()
        bench.open_partial = Partial.open
        assert bench.fetch(server).resumed_from == 25_000


def test_case_b42_disk_full_at_sync_is_an_error_and_not_a_file(tmp_path: Path) -> None:
    bench = Bench(folder=tmp_path, open_partial=FullAtSync.open)
    with serving(CONTENT) as server:
        error = bench.outcome(server)
        assert isinstance(error, StorageError)
        assert (error.error_id, error.exit_code) == ("disk-full", 8)
        assert not bench.slot(server).final.exists()


def run_on_small_disk(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command with a file system of 16 KiB mounted on `folder`, in a mount namespace of its own."""
    script = 'mount -t tmpfs -o size=16k none "$0" && exec "$@"'
    argv = ["unshare", "-rm", "sh", "-c", script, str(folder), *cli_words(*words)]
    return subprocess.run(argv, env=cli_env(), capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def small_disks(tmp_path_factory: pytest.TempPathFactory) -> None:
    probe = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", str(tmp_path_factory.mktemp("probe"))]
    try:
        is_allowed = subprocess.run(probe, capture_output=True).returncode == 0
    except FileNotFoundError:
        is_allowed = False
    if not is_allowed:
        pytest.skip("this machine lets no user mount a tmpfs in a namespace")


@pytest.mark.usefixtures("small_disks")
@pytest.mark.parametrize(
    ("kind", "why"), [("good", "50000 more bytes needed"), ("chunked", "more needed, 0 ")]
)
def test_case_b42_real_disk_that_is_too_small(tmp_path: Path, kind: str, why: str) -> None:
    with serving(CONTENT, Fault(kind=kind)) as server:  # type: ignore[arg-type]
        words = ("--url", server.url(), "--sha256", SHA, "--dest", str(tmp_path))
        done = run_on_small_disk(tmp_path, *words)
    assert (done.returncode, done.stdout) == (8, "")
    assert "error [disk-full] no room for engine.bin" in done.stderr
    assert why in done.stderr


def copy(source: Path, dest: Path, console: RecordedConsole, sha256: str = SHA) -> Fetched:
    settings = Settings(artifacts=dest)
    return fetch(
        request_for_url(source.as_uri(), sha256, name="engine"), settings, console.console, dest=dest
    )


def test_local_copy_has_the_bytes_and_leaves_the_source(tmp_path: Path, recorded: RecordedConsole) -> None:
    source = tmp_path / "source"
    content = os.urandom((8 << 20) + 12_345)
    source.write_bytes(content)
    fetched = copy(source, tmp_path / "d", recorded, hashlib.sha256(content).hexdigest())
    assert (fetched.action, fetched.transferred_bytes) == ("copied", len(content))
    assert fetched.path.read_bytes() == content
    assert fetched.path.stat().st_ino != source.stat().st_ino
    assert source.read_bytes() == content


def test_local_file_with_another_hash_is_refused(tmp_path: Path, recorded: RecordedConsole) -> None:
    source = tmp_path / "source"
    source.write_bytes(CONTENT + b"x")
    with pytest.raises(VerificationError) as caught:
        copy(source, tmp_path / "d", recorded)
    assert caught.value.error_id == "hash-mismatch"
    assert os.listdir(tmp_path / "d") == [".engine.lock"]
    assert source.read_bytes() == CONTENT + b"x"


@pytest.mark.parametrize("kind", ["absent", "folder", "pipe"])
def test_local_source_must_be_a_file(tmp_path: Path, recorded: RecordedConsole, kind: str) -> None:
    source = tmp_path / "source"
    if kind == "folder":
        source.mkdir()
    if kind == "pipe":
        os.mkfifo(source)
    with pytest.raises(ConfigError) as caught:
        copy(source, tmp_path / "d", recorded)
    assert (caught.value.error_id, caught.value.exit_code) == ("local-file-missing", 3)


def test_local_copy_goes_over_the_partial_of_a_download(tmp_path: Path, recorded: RecordedConsole) -> None:
    (tmp_path / "source").write_bytes(CONTENT)
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "engine.part").write_bytes(b"?" * 99_000)
    assert copy(tmp_path / "source", tmp_path / "d", recorded).path.read_bytes() == CONTENT


def test_file_of_a_kernel_file_system_is_copied_whole(tmp_path: Path, recorded: RecordedConsole) -> None:
    source = Path("/proc/version")
    if not source.exists():
        pytest.skip("no /proc here")
    sha256 = hashlib.sha256(source.read_bytes()).hexdigest()
    assert copy(source, tmp_path / "d", recorded, sha256).path.read_bytes() == source.read_bytes()
