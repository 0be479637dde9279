"""Parts: models that the engine reads in the artifact, so that nothing of them is unpacked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.integration.loader.artifacts import ENTRY, Bench, render_index

MODEL = b"GGUF" + os.urandom(3_000_000)
SMALL_READ_BYTES = 400_000


def pack(bench: Bench, **more: bytes) -> Path:
    """Write an artifact whose model is a part, and whose `.args` name it."""
    files = bench.files(m__gguf=MODEL, __args=b"-m\n/zip/m.gguf\n...\n", **more)
    return bench.pack(files, render_index(files, parts=["m.gguf"]))


def change(artifact: Path, old: bytes, new: bytes) -> None:
    data = artifact.read_bytes()
    assert data.count(old) == 1
    artifact.write_bytes(data.replace(old, new))


def test_a_part_is_named_and_not_unpacked(bench: Bench) -> None:
    artifact = pack(bench, lib__so=b"code")
    done = bench.start(artifact, "--draft", "/zip/m.gguf")
    assert done.code == 0
    named = f"{artifact.resolve()}!/m.gguf"
    assert done.all("arg")[1:] == ["-m", named, "--draft", named]
    assert {path.name for path in bench.folder.iterdir()} == {ENTRY, "lib.so", ".lock", ".verified"}


def test_a_part_is_hashed_once(bench: Bench) -> None:
    artifact = pack(bench)
    first, second = bench.start(artifact), bench.start(artifact)
    assert first.bytes_read > len(MODEL)
    assert second.bytes_read < SMALL_READ_BYTES
    assert (first.code, second.code, second.stderr) == (0, 0, "")


def test_a_touched_artifact_is_hashed_again_and_starts(bench: Bench) -> None:
    artifact = pack(bench)
    bench.start(artifact)
    os.utime(artifact, ns=(1, 1))
    again = bench.start(artifact)
    assert again.code == 0
    assert again.bytes_read > len(MODEL)
    assert bench.start(artifact).bytes_read < SMALL_READ_BYTES


@pytest.mark.parametrize("is_started_before", [False, True])
def test_a_damaged_part_is_found(bench: Bench, is_started_before: bool) -> None:
    """Case B25: also when the note says that it was good, and the modification time is the old one."""
    artifact = pack(bench)
    if is_started_before:
        assert bench.start(artifact).code == 0
    before = artifact.stat()
    change(artifact, MODEL[1000:1020], b"another twenty bytes")
    os.utime(artifact, ns=(before.st_atime_ns, before.st_mtime_ns))
    done = bench.start(artifact)
    assert done.code == 6
    assert "SHA-256 of member m.gguf" in done.stderr
    assert done.stdout == b""


def test_a_renamed_artifact_names_itself_anew(bench: Bench) -> None:
    artifact = pack(bench)
    bench.start(artifact)
    moved = artifact.rename(artifact.with_name("moved"))
    assert bench.start(moved).all("arg")[2] == f"{moved.resolve()}!/m.gguf"


def test_works_through_a_link(bench: Bench) -> None:
    artifact = pack(bench)
    link = bench.root / "link"
    link.symlink_to(artifact)
    assert bench.start(link).all("arg")[2] == f"{artifact.resolve()}!/m.gguf"


def test_a_part_is_extracted_and_verified_on_request(bench: Bench) -> None:
    artifact = pack(bench)
    assert b"ok m.gguf" in bench.start(artifact, "--opencoti-verify").stdout
    target = bench.root / "out"
    assert bench.start(artifact, "--opencoti-extract", str(target)).code == 0
    assert (target / "m.gguf").read_bytes() == MODEL


@pytest.mark.parametrize(("name", "mode"), [("m.gguf", "0755"), (".m", "0644"), (ENTRY, "0755")])
def test_what_cannot_be_a_part_is_refused(bench: Bench, name: str, mode: str) -> None:
    files = {**bench.files(), name: bench.engine}
    index = render_index(files, modes={name: mode}, parts=[name])
    done = bench.start(bench.pack(files, index))
    assert done.code == 6
    assert f"its index has {name} as a part" in done.stderr
