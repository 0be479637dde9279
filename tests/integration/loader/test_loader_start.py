"""Starting the engine: what it sees is what the user gave, and its end is the artifact's end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.loader.artifacts import ENTRY, VERSION, Bench, is_root, render_index


def test_engine_gets_arguments_environment_and_folder_of_the_caller(bench: Bench) -> None:
    done = bench.start(bench.pack(bench.files()), "-m", "a b", "", "ü", env={"SOME": "thing"})

    assert done.code == 0
    assert done.all("arg") == [str(bench.root / "app"), "-m", "a b", "", "ü"]
    assert set(done.all("env")) == {f"HOME={bench.home}", "PATH=/usr/bin:/bin", "SOME=thing"}
    assert done.one("cwd") == str(bench.root)
    assert done.stderr == ""


@pytest.mark.parametrize("given", ["/opt/lib", "", ":/opt/lib"])
def test_folder_comes_before_a_given_library_path(bench: Bench, given: str) -> None:
    """Case B25: libraries elsewhere, or in the working directory for an empty element, must not win."""
    done = bench.start(bench.pack(bench.files()), env={"LD_LIBRARY_PATH": given})

    folder = Path(done.one("exe")).parent
    assert f"LD_LIBRARY_PATH={folder}:{given}" in done.all("env")


def test_engine_runs_from_the_folder_of_version_and_index(bench: Bench) -> None:
    import hashlib

    files = bench.files()
    done = bench.start(bench.pack(files))

    digest = hashlib.sha256(render_index(files)).hexdigest()
    folder = bench.versions / f"{VERSION}-{digest[:12]}"
    assert done.one("exe") == str(folder / ENTRY)
    assert folder.stat().st_mode & 0o7777 == 0o700
    assert (bench.home / ".llamafile").stat().st_mode & 0o7777 == 0o700
    assert (folder / ENTRY).stat().st_mode & 0o7777 == 0o755


def test_argument_zero_is_what_the_user_typed(bench: Bench) -> None:
    bench.pack(bench.files())

    done = subprocess.run(["./app"], cwd=bench.root, env=bench.environment, capture_output=True, check=True)

    assert b"arg ./app\n" in done.stdout


def test_found_through_path_and_through_a_link(bench: Bench) -> None:
    bench.pack(bench.files())
    (bench.root / "bin").mkdir()
    (bench.root / "bin" / "linked").symlink_to(bench.root / "app")

    done = subprocess.run(
        ["sh", "-c", "linked x"],
        env={**bench.environment, "PATH": f"{bench.root}/bin:/usr/bin:/bin"},
        capture_output=True,
        check=True,
    )

    assert b"arg linked\narg x\n" in done.stdout


@pytest.mark.parametrize("code", [0, 1, 6, 77, 255])
def test_exit_code_is_the_engines(bench: Bench, code: int) -> None:
    assert bench.start(bench.pack(bench.files()), env={"ENTRY_EXIT": str(code)}).code == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_death_by_signal_is_seen_by_the_caller(bench: Bench, number: signal.Signals) -> None:
    done = bench.start(bench.pack(bench.files()), env={"ENTRY_SIGNAL": str(int(number))})
    assert done.code == -number


def test_standard_input_reaches_the_engine_whole(bench: Bench) -> None:
    data = b"line\n" * 100_000
    done = bench.start(bench.pack(bench.files()), env={"ENTRY_CAT": "1"}, stdin=data)
    assert done.stdout.endswith(data)


def test_process_descriptors_umask_and_signals_are_untouched(bench: Bench) -> None:
    artifact = bench.pack(bench.files())

    def prepare() -> None:
        os.umask(0o027)
        for number in range(1, 32):
            if number not in (signal.SIGKILL, signal.SIGSTOP):
                signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    for _ in ("unpacking", "unpacked"):
        process = subprocess.Popen(
            [artifact],
            env=bench.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=prepare,
        )
        out = process.communicate(timeout=60)[0].decode().splitlines()
        assert f"pid {process.pid}" in out
        assert "umask 027" in out
        assert [line for line in out if line.startswith("fd ")] == ["fd 0", "fd 1", "fd 2"]
        assert [line for line in out if line.startswith("ignored ")] == [f"ignored {int(signal.SIGUSR1)}"]


def test_closed_streams_stay_closed_and_no_file_takes_their_number(bench: Bench) -> None:
    artifact = bench.pack(bench.files(libx__so=b"x" * 100))
    bench.start(artifact)
    (bench.folder / "libx.so").write_bytes(b"planted")  # the loader now has a notice to write

    done = subprocess.run(
        ["sh", "-c", 'exec "$0" <&- 2>&-', artifact], env=bench.environment, capture_output=True, check=True
    )

    assert [line for line in done.stdout.split(b"\n") if line.startswith(b"fd ")] == [b"fd 1"]
    assert (bench.folder / "libx.so").read_bytes() == b"x" * 100
    assert (bench.folder / ".lock").read_bytes() == b""


def test_odd_umask_does_not_lock_the_loader_out(bench: Bench) -> None:
    done = bench.start(bench.pack(bench.files()), preexec_fn=lambda: os.umask(0o777))
    assert done.code == 0
    assert done.one("umask") == "777"
    assert bench.folder.stat().st_mode & 0o7777 == 0o700


@pytest.mark.parametrize(
    ("home", "reason"), [(None, "not set"), ("", "empty"), ("relative/home", "not an absolute path")]
)
def test_unusable_home_is_explained(bench: Bench, home: str | None, reason: str) -> None:
    done = bench.start(bench.pack(bench.files()), env={"HOME": home})

    assert done.code == 8
    assert done.stderr.splitlines() == [
        f"opencoti: error: cannot unpack the engine: HOME is {reason}, and OPENCOTI_EXTRACT_DIR is not set",
        "  next: set HOME, or set OPENCOTI_EXTRACT_DIR to an absolute path where the engine may be unpacked",
    ]
    assert done.stdout == b""


def test_home_that_does_not_exist_is_named(bench: Bench) -> None:
    done = bench.start(bench.pack(bench.files()), env={"HOME": "/nonexistent/home"})
    assert done.code == 8
    assert "HOME is /nonexistent/home: No such file or directory" in done.stderr


def test_extract_dir_replaces_home(bench: Bench) -> None:
    chosen = bench.root / "chosen"
    done = bench.start(bench.pack(bench.files()), env={"HOME": None, "OPENCOTI_EXTRACT_DIR": str(chosen)})

    (folder,) = chosen.iterdir()
    assert done.one("exe") == str(folder / ENTRY)
    assert not (bench.home / ".llamafile").exists()


def test_relative_extract_dir_is_refused(bench: Bench) -> None:
    done = bench.start(bench.pack(bench.files()), env={"OPENCOTI_EXTRACT_DIR": "here"})
    assert done.code == 8
    assert "OPENCOTI_EXTRACT_DIR is here: not an absolute path" in done.stderr


def test_engine_for_another_system_is_explained(bench: Bench, tmp_path: Path) -> None:
    done = bench.start(bench.pack({ENTRY: b"\x7fELF but not really"}))
    assert done.code == 4
    assert "it is for another kind of processor" in done.stderr


def test_missing_dynamic_loader_is_explained(bench: Bench) -> None:
    done = bench.start(bench.pack({ENTRY: b"#!/lib64/no-such-loader.so.2\n"}))
    assert done.code == 4
    assert "this system lacks the dynamic loader of glibc" in done.stderr


@pytest.mark.skipif(not is_root(), reason="chroot needs root")
def test_works_without_proc(bench: Bench) -> None:
    artifact = bench.pack(bench.files())
    root = bench.root / "root"
    (root / "home").mkdir(parents=True)
    shutil.copy(artifact, root / "app")

    code = (
        "import os, sys; os.chroot(sys.argv[1]); os.chdir('/'); os.execve('app', ['app'], {'HOME': '/home'})"
    )
    done = subprocess.run([sys.executable, "-c", code, root], capture_output=True, check=False)

    assert done.returncode == 0, done.stderr
    assert b"arg app\nenv HOME=/home\n" in done.stdout
