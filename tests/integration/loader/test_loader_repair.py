"""Case B25: what is unpacked is what is in the artifact, at every start, without reading it every time."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.loader.artifacts import ENTRY, Bench

LIBRARY = os.urandom(3_000_000)
SMALL_READ_BYTES = 400_000


def unpacked(bench: Bench) -> Path:
    """Pack and start once; returns the folder."""
    bench.start(bench.pack(bench.files(libggml__so=LIBRARY, __args=b"-a\n...\n")))
    return bench.folder


def restart(bench: Bench) -> str:
    """Start again: the engine must run, from good files only. Returns what was said."""
    done = bench.start(bench.root / "app")
    assert done.code == 0
    assert done.one("exe") == str(bench.folder / ENTRY)
    assert (bench.folder / "libggml.so").read_bytes() == LIBRARY
    assert (bench.folder / ENTRY).read_bytes() == bench.engine
    visible = {path.name for path in bench.folder.iterdir()}
    assert visible == {ENTRY, "libggml.so", ".lock", ".verified"}
    return done.stderr


def test_second_start_reads_no_member(bench: Bench) -> None:
    """Case B25: an unchanged file is known by its stat."""
    artifact = bench.pack(bench.files(libggml__so=LIBRARY))
    first, second = bench.start(artifact), bench.start(artifact)
    assert first.bytes_read > len(LIBRARY)
    assert second.bytes_read < SMALL_READ_BYTES


def plant(path: Path) -> None:
    path.write_bytes(b"\x7fELF planted" + bytes(len(LIBRARY) - 12))


def truncate(path: Path) -> None:
    os.truncate(path, len(LIBRARY) // 2)


def flip_one_bit(path: Path) -> None:
    with open(path, "r+b") as file:
        file.seek(1_000_000)
        byte = file.read(1)[0]
        file.seek(1_000_000)
        file.write(bytes([byte ^ 1]))


def flip_and_restore_times(path: Path) -> None:
    before = path.stat()
    flip_one_bit(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def swap_and_restore_times(path: Path) -> None:
    before = path.stat()
    other = path.with_name("other")
    other.write_bytes(os.urandom(len(LIBRARY)))
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)


def link_elsewhere(path: Path) -> None:
    path.unlink()
    path.symlink_to("/bin/sh")


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    "harm",
    [
        plant,
        truncate,
        flip_one_bit,
        flip_and_restore_times,
        swap_and_restore_times,
        link_elsewhere,
        make_pipe,
        make_folder,
    ],
)
def test_wrong_library_is_replaced_and_told(bench: Bench, harm: Callable[[Path], None]) -> None:
    """Case B25: planted, truncated and older libraries."""
    folder = unpacked(bench)
    harm(folder / "libggml.so")

    assert restart(bench) == (
        f"opencoti: notice: replacing libggml.so in {folder}: it differs from this artifact\n"
    )
    assert restart(bench) == ""


def test_missing_library_is_put_back_silently(bench: Bench) -> None:
    (unpacked(bench) / "libggml.so").unlink()
    assert restart(bench) == ""


def test_writing_through_a_replaced_link_is_impossible(bench: Bench) -> None:
    folder = unpacked(bench)
    victim = bench.root / "victim"
    victim.write_text("precious")
    (folder / "libggml.so").unlink()
    (folder / "libggml.so").symlink_to(victim)
    restart(bench)
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o777, 0o4755])
def test_wrong_mode_is_put_right_without_writing_the_file(bench: Bench, mode: int) -> None:
    folder = unpacked(bench)
    before = (folder / ENTRY).stat().st_ino
    (folder / ENTRY).chmod(mode)
    assert restart(bench) == ""
    after = (folder / ENTRY).stat()
    assert (after.st_ino, after.st_mode & 0o7777) == (before, 0o755)


def test_touched_file_is_read_once_and_kept(bench: Bench) -> None:
    folder = unpacked(bench)
    before = (folder / "libggml.so").stat().st_ino
    os.utime(folder / "libggml.so", (1, 1))

    first = bench.start(bench.root / "app")
    second = bench.start(bench.root / "app")

    assert (folder / "libggml.so").stat().st_ino == before
    assert first.bytes_read > len(LIBRARY)
    assert second.bytes_read < SMALL_READ_BYTES
    assert first.stderr == ""


@pytest.mark.parametrize("name", ["libggml-cpu-evil.so", "ggml-cuda.so", "evil"])
def test_unlisted_file_is_removed_and_told(bench: Bench, name: str) -> None:
    """Case B25: the engine loads whatever lies in its folder."""
    folder = unpacked(bench)
    (folder / name).write_bytes(b"\x7fELF")
    assert restart(bench) == (
        f"opencoti: notice: removed {name} from {folder}: it is not part of this artifact\n"
    )


def test_unlisted_link_is_removed_and_its_target_kept(bench: Bench) -> None:
    folder = unpacked(bench)
    target = bench.root / "target.so"
    target.write_bytes(b"x")
    (folder / "libggml-cpu-evil.so").symlink_to(target)
    restart(bench)
    assert target.exists()


def test_unlisted_full_folder_is_refused(bench: Bench) -> None:
    folder = unpacked(bench)
    (folder / "sub").mkdir()
    (folder / "sub" / "file").write_text("somebody's")
    done = bench.start(bench.root / "app")
    assert done.code == 8
    assert "it holds sub, which is not part of this artifact and cannot be removed" in done.stderr
    assert (folder / "sub" / "file").exists()


def test_leftovers_of_a_killed_start_are_removed_silently(bench: Bench) -> None:
    folder = unpacked(bench)
    (folder / ".tmp-0123456789abcdef").write_bytes(bytes(1000))
    (folder / ".verified").unlink()
    assert restart(bench) == ""


def occupy(path: Path, kind: str, victim: Path) -> None:
    if kind == "link":
        path.symlink_to(victim)
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(b"\n\0junk" * 1000)


@pytest.mark.parametrize("name", [".lock", ".verified"])
@pytest.mark.parametrize("kind", ["link", "folder", "pipe", "junk"])
def test_own_names_occupied_by_something_else(bench: Bench, name: str, kind: str) -> None:
    folder = unpacked(bench)
    path = folder / name
    path.unlink()
    victim = bench.root / "victim"
    victim.write_text("precious")
    occupy(path, kind, victim)
    (folder / "libggml.so").unlink()

    done = bench.start(bench.root / "app")

    assert done.code == 0
    assert (folder / "libggml.so").read_bytes() == LIBRARY
    assert victim.read_text() == "precious"


@pytest.mark.parametrize(
    "change",
    [
        lambda text: b"",
        lambda text: text[:-1],
        lambda text: text + b"\n",
        lambda text: text.replace(b"opencoti-verified 1 ", b"opencoti-verified 2 "),
        lambda text: text[:25] + (b"1" if text[25:26] == b"0" else b"0") + text[26:],
        lambda text: b"\n".join(text.split(b"\n")[:2]) + b"\n",
        lambda text: bytes(len(text)),
    ],
)
def test_damaged_note_means_reading_again(bench: Bench, change: Callable[[bytes], bytes]) -> None:
    folder = unpacked(bench)
    note = folder / ".verified"
    good = note.read_bytes()
    note.write_bytes(change(good))
    if note.read_bytes() == good:
        pytest.fail("the change changed nothing")
    flip_one_bit(folder / "libggml.so")
    assert "replacing libggml.so" in restart(bench)


def test_note_of_another_index_means_reading_again(bench: Bench) -> None:
    note = unpacked(bench) / ".verified"
    header, _, lines = note.read_bytes().partition(b"\n")
    note.write_bytes(header.rsplit(b" ", 1)[0] + b" " + b"0" * 64 + b"\n" + lines)
    assert bench.start(bench.root / "app").bytes_read > len(LIBRARY)
    assert bench.start(bench.root / "app").bytes_read < SMALL_READ_BYTES


def test_two_builds_of_one_tag_do_not_mix(bench: Bench) -> None:
    bench.start(bench.pack(bench.files(libggml__so=b"old")))
    done = bench.start(bench.pack(bench.files(libggml__so=b"new"), name="newer"))
    folder = Path(done.one("exe")).parent
    assert (folder / "libggml.so").read_bytes() == b"new"
    assert len(list(bench.versions.iterdir())) == 2


def test_library_beside_the_artifact_is_not_taken(bench: Bench) -> None:
    """Case B25: the artifact's own folder is no place that anything is loaded from."""
    (bench.root / "libggml.so").write_bytes(b"planted")
    unpacked(bench)
    assert restart(bench) == ""


def test_file_in_use_is_replaced_by_a_new_one_not_written_to(bench: Bench) -> None:
    folder = unpacked(bench)
    with open(folder / "libggml.so", "rb") as held:
        flip_one_bit(folder / "libggml.so")
        harmed = held.read()
        restart(bench)
        held.seek(0)
        assert held.read() == harmed != LIBRARY


def test_ten_first_starts_at_once(bench: Bench) -> None:
    artifact = bench.pack(bench.files(libggml__so=LIBRARY))
    processes = [bench.popen(artifact) for _ in range(10)]
    for process in processes:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert f"exe {bench.folder / ENTRY}".encode() in out
        assert b"error" not in err
    restart(bench)


def test_ten_starts_at_once_on_a_harmed_folder(bench: Bench) -> None:
    folder = unpacked(bench)
    flip_one_bit(folder / "libggml.so")
    (folder / "libggml-evil.so").write_bytes(b"x")
    processes = [bench.popen(bench.root / "app") for _ in range(10)]
    said = b""
    for process in processes:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        said += err
    assert said.count(b"replacing libggml.so") == 1
    assert said.count(b"removed libggml-evil.so") == 1
    restart(bench)


def test_ten_first_starts_at_once_without_locks(bench: Bench) -> None:
    """A lock file that cannot be opened stands for a file system without locks."""
    artifact = bench.pack(bench.files(libggml__so=LIBRARY))
    bench.start(artifact, env={"ENTRY_EXIT": "0"})
    folder = bench.folder
    for path in folder.iterdir():
        path.unlink()
    (folder / ".lock").mkdir()
    (folder / ".lock" / "full").touch()
    processes = [bench.popen(artifact) for _ in range(10)]
    for process in processes:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    assert (folder / "libggml.so").read_bytes() == LIBRARY
    assert {path.name for path in folder.iterdir()} == {ENTRY, "libggml.so", ".lock", ".verified"}


def test_killed_at_any_moment_the_next_start_recovers(bench: Bench) -> None:
    """Kills spread over the time one unpacking takes; whatever has a good name has the good bytes."""
    artifact = bench.pack(bench.files(libggml__so=LIBRARY, a__so=b"a" * 70_000, z__so=b"z" * 70_000))
    started = time.monotonic()
    bench.start(artifact)
    full_s = time.monotonic() - started
    wanted = {"libggml.so": LIBRARY, "a.so": b"a" * 70_000, "z.so": b"z" * 70_000, ENTRY: bench.engine}
    folder = bench.folder
    for round_number in range(40):
        for path in folder.iterdir():
            path.unlink()
        process = bench.popen(artifact)
        try:
            process.wait(timeout=full_s * round_number / 40)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        process.communicate()
        for path in folder.iterdir():
            if not path.name.startswith("."):
                assert path.read_bytes() == wanted[path.name]
    done = bench.start(artifact)
    assert (done.code, done.stderr) == (0, "")
    assert {path.name for path in folder.iterdir()} == {*wanted, ".lock", ".verified"}
