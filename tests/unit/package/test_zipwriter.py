"""The zip writer, read back by readers that we did not write."""

from __future__ import annotations

import os
import shutil
import subprocess
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from ci.package.zipformat import ZipLimits
from ci.package.zipreader import ALIGNMENT_BYTES, check_own_layout, find_archive, read_archive
from ci.package.zipwriter import NewMember, WriteOptions, WrittenArchive, write_archive
from opencoti.errors import BuildError, ConfigError, OpencotiError, UsageError, VerificationError
from opencoti.hashing import sha256_bytes, sha256_file
from tests.conftest import require

PROGRAM = b"\x7fELF" + bytes(range(256)) * 20


@pytest.fixture
def host(tmp_path: Path) -> Path:
    path = tmp_path / "host"
    path.write_bytes(PROGRAM)
    path.chmod(0o640)
    return path


def member(name: str, data: bytes = b"data") -> NewMember:
    return NewMember(name=name, mode=0o644, data=data)


def names(path: Path) -> list[str]:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        return archive.namelist()


def unzip_accepts(path: Path) -> bool:
    require(shutil.which("unzip") is not None, "unzip is not installed")
    return subprocess.run(["unzip", "-tqq", path], capture_output=True).returncode == 0


def write(host: Path, members: Sequence[NewMember], out: Path, **options: object) -> WrittenArchive:
    return write_archive(host, members, out, options=WriteOptions(**options))  # type: ignore[arg-type]


def test_members_are_stored_aligned_and_read_by_other_tools(host: Path, tmp_path: Path) -> None:
    source = tmp_path / "engine"
    source.write_bytes(b"engine" * 50_000)
    out = tmp_path / "out"
    written = write(
        host, [member(".args", b"-v\n...\n"), NewMember(name="engine", mode=0o755, path=source)], out
    )
    with zipfile.ZipFile(out) as archive:
        assert archive.read("engine") == source.read_bytes()
        assert archive.read(".args") == b"-v\n...\n"
        info = archive.getinfo("engine")
        assert info.compress_type == zipfile.ZIP_STORED
        assert info.date_time == (1980, 1, 1, 0, 0, 0)
        assert info.external_attr >> 16 == 0o100755
    assert [m.offset for m in written.members] == [ALIGNMENT_BYTES, 2 * ALIGNMENT_BYTES]
    assert unzip_accepts(out)
    assert written.sha256 == sha256_file(out)
    assert written.size == out.stat().st_size
    assert written.members[1].sha256 == sha256_bytes(source.read_bytes())
    assert written.members[1].crc32 == zlib.crc32(source.read_bytes())


def test_the_program_is_kept_byte_for_byte_and_gets_executable(host: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(host, [member("a")], out)
    assert out.read_bytes().startswith(PROGRAM)
    assert out.stat().st_mode & 0o777 == 0o750
    assert host.read_bytes() == PROGRAM


def test_the_layout_is_what_the_reader_demands(host: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(host, [member("a"), member("empty", b""), member("b", b"x" * ALIGNMENT_BYTES)], out)
    with open(out, "rb") as file:
        check_own_layout(file, read_archive(file, "out"), "out", executable_size=len(PROGRAM))


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_bytes_do_not_depend_on_time_zone_or_umask(
    host: Path, tmp_path: Path, umask: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = write(host, [member("a")], tmp_path / "first")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    old = os.umask(umask)
    try:
        second = write(host, [member("a")], tmp_path / "second", mode=0o755)
    finally:
        os.umask(old)
    assert first.sha256 == second.sha256
    assert (tmp_path / "second").stat().st_mode & 0o777 == 0o755


def test_appending_to_an_archive_leaves_one_directory_and_no_old_one(host: Path, tmp_path: Path) -> None:
    once, twice, both = tmp_path / "once", tmp_path / "twice", tmp_path / "both"
    write(host, [member("a", b"A")], once)
    written = write(once, [member("b", b"B")], twice)
    write(host, [member("a", b"A"), member("b", b"B")], both)
    assert written.kept == ("a",)
    assert twice.read_bytes() == both.read_bytes()
    assert twice.read_bytes().count(b"PK\x05\x06") == 1


def test_a_file_can_be_its_own_output(host: Path, tmp_path: Path) -> None:
    write(host, [member("a")], host)
    assert names(host) == ["a"]


@pytest.mark.parametrize("position", [0, 1, 2])
def test_replacing_leaves_no_old_bytes_and_keeps_the_others(
    host: Path, tmp_path: Path, position: int
) -> None:
    old = [member("a", b"old-a" * 9), member("b", b"old-b" * 9), member("c", b"old-c" * 9)]
    once, twice = tmp_path / "once", tmp_path / "twice"
    write(host, old, once)
    name = old[position].name
    written = write(once, [member(name, b"new")], twice, allow_replace=True)
    assert sorted(names(twice)) == ["a", "b", "c"]
    assert names(twice)[-1] == name
    assert unzip_accepts(twice)
    assert b"old-" + name.encode() not in twice.read_bytes()
    assert written.size <= once.stat().st_size
    with zipfile.ZipFile(twice) as archive:
        assert archive.read(name) == b"new"
        for other in {"a", "b", "c"} - {name}:
            assert archive.read(other) == b"old-" + other.encode() + (b"old-" + other.encode()) * 8
    with open(twice, "rb") as file:
        assert all(e.data_offset % ALIGNMENT_BYTES == 0 for e in read_archive(file, "twice").entries)


@pytest.mark.parametrize("twins", [("a", "a"), ("ggml-cuda.so", "GGML-cuda.so")])
def test_two_members_never_share_a_name(host: Path, tmp_path: Path, twins: tuple[str, str]) -> None:
    """Case B23."""
    with pytest.raises(ConfigError) as caught:
        write(host, [member(twins[0]), member(twins[1])], tmp_path / "out")
    assert caught.value.error_id == "member-duplicate"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["host"]


def test_a_name_of_the_host_is_refused_unless_replacing_was_asked_for(host: Path, tmp_path: Path) -> None:
    """Case B23."""
    write(host, [member(".args", b"old\n")], host)
    with pytest.raises(ConfigError, match=r"\.args"):
        write(host, [member(".args", b"new\n")], tmp_path / "out")
    write(host, [member(".args", b"new\n")], tmp_path / "out", allow_replace=True)
    assert names(tmp_path / "out") == [".args"]


def test_a_name_that_differs_in_case_only_is_refused_even_when_replacing(host: Path, tmp_path: Path) -> None:
    """Case B23."""
    write(host, [member("Model.gguf")], host)
    with pytest.raises(ConfigError, match=r"as 'Model\.gguf'"):
        write(host, [member("model.gguf")], tmp_path / "out", allow_replace=True)


@pytest.mark.parametrize("name", ["../x", "/abs", "a/../b", "a\\b", "", ".", "..", "x\0y", "y" * 300, "CON"])
def test_names_that_are_no_plain_names_are_refused(host: Path, tmp_path: Path, name: str) -> None:
    """Case B44."""
    with pytest.raises(VerificationError) as caught:
        write(host, [member(name)], tmp_path / "out")
    assert caught.value.error_id == "unsafe-name"
    assert not (tmp_path / "out").exists()


def test_foreign_members_stay_compressed_and_in_place(tmp_path: Path) -> None:
    foreign, out = tmp_path / "foreign", tmp_path / "out"
    foreign.write_bytes(PROGRAM)
    with zipfile.ZipFile(foreign, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("share/text", b"text" * 1000)
        archive.comment = b"a comment"
    start = read_offsets(foreign)["share/text"]
    write(foreign, [member("new")], out)
    assert names(out) == ["share/text", "new"]
    assert read_offsets(out)["share/text"] == start
    with zipfile.ZipFile(out) as archive:
        assert archive.getinfo("share/text").compress_type == zipfile.ZIP_DEFLATED
        assert archive.comment == b"a comment"


def test_streamed_foreign_members_move_with_their_descriptors(tmp_path: Path) -> None:
    foreign, out = tmp_path / "foreign", tmp_path / "out"
    producer = subprocess.run(["python3", "-c", STREAMED_ZIP], capture_output=True, check=True, cwd=tmp_path)
    foreign.write_bytes(PROGRAM + producer.stdout)
    write(foreign, [member("first", b"new")], out, allow_replace=True)
    assert names(out) == ["second", "first"]
    assert unzip_accepts(out)


STREAMED_ZIP = """
import sys, zipfile
class Pipe:
    def write(self, data): return sys.stdout.buffer.write(data)
    def flush(self): pass
with zipfile.ZipFile(Pipe(), "w", zipfile.ZIP_DEFLATED) as archive:
    archive.writestr("first", b"1" * 100)
    archive.writestr("second", b"2" * 100)
"""


def read_offsets(path: Path) -> dict[str, int]:
    with open(path, "rb") as file:
        return {entry.name: entry.header_offset for entry in read_archive(file, str(path)).entries}


def test_a_prefix_that_offsets_do_not_count_is_counted_afterwards(tmp_path: Path) -> None:
    inner, shifted, out = tmp_path / "inner.zip", tmp_path / "shifted", tmp_path / "out"
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("old", b"old")
    shifted.write_bytes(PROGRAM + inner.read_bytes())
    write(shifted, [member("new")], out)
    assert names(out) == ["old", "new"]
    assert unzip_accepts(out)
    with open(out, "rb") as file:
        assert read_archive(file, "out").prefix == 0


def test_an_input_that_changes_meanwhile_is_noticed(host: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "model", tmp_path / "out"
    source.write_bytes(b"x" * (3 << 20))

    def grow(what: str, done: int, total: int) -> None:
        if what == "adding model":
            with open(source, "ab") as file:
                file.write(b"more")

    with pytest.raises(BuildError) as caught:
        write(host, [NewMember(name="model", mode=0o644, path=source)], out, on_progress=grow)
    assert caught.value.error_id == "member-changed"
    assert not out.exists()


def test_what_the_disk_gives_back_differently_is_noticed(host: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "model", tmp_path / "out"
    source.write_bytes(b"x" * 200_000)

    def damage(what: str, done: int, total: int) -> None:
        for path in tmp_path.glob(".out.*.tmp"):
            if what == "adding second" and done == total:
                with open(path, "r+b") as file:
                    file.seek(ALIGNMENT_BYTES + 1000)
                    file.write(b"!")

    members = [NewMember(name=name, mode=0o644, path=source) for name in ("model", "second")]
    with pytest.raises(BuildError) as caught:
        write(host, members, out, on_progress=damage)
    assert caught.value.error_id == "readback-differs"
    assert "member model" in caught.value.what
    assert sorted(path.name for path in tmp_path.iterdir()) == ["host", "model"]


@pytest.mark.parametrize("kind", ["missing", "folder", "fifo"])
def test_inputs_that_are_no_files_are_named(host: Path, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "input"
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    with pytest.raises(UsageError) as caught:
        write(host, [NewMember(name="input", mode=0o644, path=path)], tmp_path / "out")
    assert caught.value.error_id == "member-unreadable"
    assert str(path) in caught.value.what


@pytest.mark.parametrize("size", [99, 100, 101])
def test_fields_move_to_zip64_at_the_limit(host: Path, tmp_path: Path, size: int) -> None:
    """Case B21, with a limit of 100 bytes instead of 4 GiB."""
    out = tmp_path / "out"
    write(host, [member("big", b"b" * size), member("c", b"c")], out, limits=ZipLimits(size=100, count=9))
    data = out.read_bytes()
    assert data.count(b"PK\x06\x06") == 1
    with zipfile.ZipFile(out) as archive:
        assert archive.read("big") == b"b" * size
        assert archive.getinfo("big").extract_version == 45
        assert len(archive.getinfo("big").extra) == 28
    assert unzip_accepts(out)
    again = tmp_path / "again"
    write(out, [member("d", b"d")], again, limits=ZipLimits(size=100, count=9))
    assert names(again) == ["big", "c", "d"]
    assert unzip_accepts(again)


def test_many_members_move_the_count_to_zip64(host: Path, tmp_path: Path) -> None:
    """Case B21."""
    out = tmp_path / "out"
    write(host, [member(f"m{number}") for number in range(5)], out, limits=ZipLimits(count=5))
    assert b"PK\x06\x07" in out.read_bytes()
    assert len(names(out)) == 5


def test_holes_of_the_source_stay_holes(host: Path, tmp_path: Path) -> None:
    sparse, out = tmp_path / "sparse", tmp_path / "out"
    with open(sparse, "wb") as file:
        file.write(b"start")
        file.truncate(40 << 20)
    if sparse.stat().st_blocks * 512 >= 40 << 20:
        pytest.skip("this file system has no holes")
    written = write(host, [NewMember(name="sparse", mode=0o644, path=sparse)], out)
    assert out.stat().st_blocks * 512 < 8 << 20
    assert written.members[0].sha256 == sha256_file(sparse)
    assert names(out) == ["sparse"]


def test_a_host_whose_directory_is_damaged_is_refused(host: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    write(host, [member("a")], broken)
    broken.write_bytes(broken.read_bytes() + b"junk")
    with pytest.raises(OpencotiError) as caught:
        write(broken, [member("b")], tmp_path / "out")
    assert caught.value.error_id == "zip-malformed"


def test_a_host_that_only_mentions_the_signature_has_no_archive(tmp_path: Path) -> None:
    host = tmp_path / "host"
    host.write_bytes(PROGRAM + b"PK\x05\x06" + PROGRAM)
    with open(host, "rb") as file:
        assert find_archive(file, "host") is None
    write(host, [member("a")], tmp_path / "out")
    assert names(tmp_path / "out") == ["a"]
