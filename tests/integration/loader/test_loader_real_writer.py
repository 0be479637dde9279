"""The loader together with the project's own index and zip writer."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from collections.abc import Sequence
from pathlib import Path

from ci.package.index import IndexedFile, make_index, render_index
from ci.package.zipformat import ZipLimits
from ci.package.zipwriter import NewMember, WriteOptions, WrittenMember, write_archive
from tests.integration.loader.artifacts import ENTRY, INDEX, VERSION, Bench


def pack(bench: Bench, limits: ZipLimits) -> Path:
    host = bench.root / "loader"
    host.write_bytes(bench.loader)
    host.chmod(0o755)
    members = (
        NewMember(name=ENTRY, mode=0o755, data=bench.engine),
        NewMember(name="libggml.so", mode=0o644, data=b"library" * 30_000),
        NewMember(name=".args", mode=0o644, data=b"-x\n...\n"),
    )

    def index_of(written: Sequence[WrittenMember]) -> list[NewMember]:
        files = [
            IndexedFile(name=m.name, sha256=m.sha256, size=m.size, mode="0755" if m.mode == 0o755 else "0644")
            for m in written
        ]
        index = make_index(version=VERSION, entry=ENTRY, files=files)
        return [NewMember(name=INDEX, mode=0o644, data=render_index(index))]

    return write_archive(
        host, members, bench.root / "app", last=index_of, options=WriteOptions(limits=limits)
    ).path


def test_artifact_of_the_real_writer_starts(bench: Bench) -> None:
    artifact = pack(bench, ZipLimits())
    done = bench.start(artifact, "user")
    assert done.all("arg")[1:] == ["-x", "user"]
    assert bench.start(artifact, "--opencoti-verify").stdout.decode().split() == [
        "ok", ".args", "ok", "libggml.so", "ok", ENTRY,
    ]  # fmt: skip
    library = (bench.folder / "libggml.so").read_bytes()
    assert hashlib.sha256(library).digest() == hashlib.sha256(b"library" * 30_000).digest()


def test_zip64_of_the_real_writer_is_read(bench: Bench) -> None:
    artifact = pack(bench, ZipLimits(size=1, count=1))
    assert bench.start(artifact).code == 0


def test_other_tools_read_the_same_file(bench: Bench) -> None:
    artifact = pack(bench, ZipLimits())
    with zipfile.ZipFile(artifact) as archive:
        assert archive.testzip() is None
    listed = bench.start(artifact, "--opencoti-extract", "out")
    assert listed.code == 0
    with zipfile.ZipFile(artifact) as archive:
        for name in (ENTRY, "libggml.so", ".args"):
            assert archive.read(name) == (bench.root / "out" / name).read_bytes()
    subprocess.run([artifact, "--opencoti-verify"], check=True, env={}, stdout=subprocess.DEVNULL)
