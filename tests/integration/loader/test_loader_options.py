"""The loader's own options; each works without HOME and unpacks nothing by itself."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from tests.integration.loader.artifacts import ENTRY, Bench, Started

LIBRARY = os.urandom(200_000)


def ask(bench: Bench, artifact: Path, *words: str) -> Started:
    done = bench.start(artifact, *words, env={"HOME": None})
    assert not (bench.home / ".llamafile").exists()
    return done


def test_list(bench: Bench) -> None:
    files = bench.files(libggml__so=LIBRARY, __args=b"-a\n")
    done = ask(bench, bench.pack(files), "--opencoti-list")
    expected = [
        f"{name} {len(files[name])} {hashlib.sha256(files[name]).hexdigest()}" for name in sorted(files)
    ]
    assert done.stdout.decode().splitlines() == expected
    assert (done.code, done.stderr) == (0, "")


def test_verify_of_a_good_file(bench: Bench) -> None:
    done = ask(bench, bench.pack(bench.files(libggml__so=LIBRARY, empty=b"")), "--opencoti-verify")
    assert done.stdout.decode().splitlines() == ["ok empty", "ok libggml.so", f"ok {ENTRY}"]
    assert (done.code, done.stderr) == (0, "")


def test_verify_names_what_is_bad(bench: Bench) -> None:
    data = bench.pack(bench.files(libggml__so=LIBRARY)).read_bytes()
    at = data.index(LIBRARY) + 777
    harmed = data[:at] + bytes([data[at] ^ 0x80]) + data[at + 1 :]

    done = ask(bench, bench.write(harmed), "--opencoti-verify")

    assert done.code == 6
    assert done.stdout.decode().splitlines() == ["bad libggml.so", f"ok {ENTRY}"]
    assert "this artifact is damaged: 1 of 2 members differ from its index" in done.stderr


def test_start_of_a_harmed_file_leaves_no_wrong_file(bench: Bench) -> None:
    data = bench.pack(bench.files(libggml__so=LIBRARY)).read_bytes()
    done = bench.start(bench.write(data.replace(LIBRARY, LIBRARY[:-1] + bytes([LIBRARY[-1] ^ 1]))))
    assert done.code == 6
    assert "the SHA-256 of member libggml.so is not the one in its index" in done.stderr
    assert {path.name for path in bench.folder.iterdir()} == {".lock"}


def test_extract(bench: Bench) -> None:
    files = bench.files(libggml__so=LIBRARY, __args=b"-a\n", empty=b"")
    out = bench.root / "out"
    done = ask(bench, bench.pack(files), "--opencoti-extract", str(out))

    assert done.code == 0
    assert {path.name: path.read_bytes() for path in out.iterdir()} == files
    assert (out / ENTRY).stat().st_mode & 0o7777 == 0o755
    assert (out / "libggml.so").stat().st_mode & 0o7777 == 0o644
    assert f"wrote {out}/libggml.so" in done.stdout.decode().splitlines()


def test_extract_keeps_equal_files_and_refuses_others_before_writing(bench: Bench) -> None:
    artifact = bench.pack(bench.files(libggml__so=LIBRARY))
    out = bench.root / "out"
    out.mkdir()
    (out / "libggml.so").write_bytes(LIBRARY)
    (out / ENTRY).write_bytes(b"mine")

    done = ask(bench, artifact, "--opencoti-extract", str(out))
    assert done.code == 8
    assert f"refusing to overwrite {out}/{ENTRY}" in done.stderr
    assert (out / ENTRY).read_bytes() == b"mine"
    assert {path.name for path in out.iterdir()} == {ENTRY, "libggml.so"}

    (out / ENTRY).unlink()
    done = ask(bench, artifact, "--opencoti-extract", str(out))
    assert done.stdout.decode().splitlines() == [f"kept {out}/libggml.so", f"wrote {out}/{ENTRY}"]


def test_extract_never_writes_through_a_link(bench: Bench) -> None:
    out = bench.root / "out"
    out.mkdir()
    (out / ENTRY).symlink_to(bench.root / "victim")
    done = ask(bench, bench.pack(bench.files()), "--opencoti-extract", str(out))
    assert done.code == 8
    assert not (bench.root / "victim").exists()


def test_extract_to_a_relative_folder(bench: Bench) -> None:
    assert ask(bench, bench.pack(bench.files()), "--opencoti-extract", "here").code == 0
    assert (bench.root / "here" / ENTRY).read_bytes() == bench.engine


def test_help(bench: Bench) -> None:
    done = ask(bench, bench.pack(bench.files()), "--opencoti-help")
    assert done.code == 0
    for word in ("--opencoti-list", "--opencoti-verify", "--opencoti-extract DIR", "OPENCOTI_EXTRACT_DIR"):
        assert word in done.stdout.decode()


@pytest.mark.parametrize(
    "words",
    [
        ["--opencoti-verfy"],
        ["--opencoti-"],
        ["--opencoti-list", "x"],
        ["--opencoti-verify", ""],
        ["--opencoti-extract"],
        ["--opencoti-extract", ""],
        ["--opencoti-extract", "a", "b"],
    ],
)
def test_wrong_use(bench: Bench, words: list[str]) -> None:
    done = ask(bench, bench.pack(bench.files()), *words)
    assert done.code == 2
    assert done.stderr.startswith("opencoti: error: ")
    assert done.stderr.splitlines()[1] == "  next: see --opencoti-help"


def test_own_options_count_only_in_front(bench: Bench) -> None:
    done = bench.start(bench.pack(bench.files()), "-x", "--opencoti-list")
    assert done.all("arg")[1:] == ["-x", "--opencoti-list"]


def test_full_output_is_an_error(bench: Bench) -> None:
    artifact = bench.pack(bench.files())
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [artifact, "--opencoti-list"], stdout=full, stderr=subprocess.PIPE, env={}, check=False
        )
    assert done.returncode == 8
    assert b"cannot write the result: No space left on device" in done.stderr
