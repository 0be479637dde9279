"""Tar streams to and from a daemon: what is sent, and that nothing but the expected file is taken back."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ci.engines.outputs import CHECKED
from ci.engines.transfer import is_inside, list_source, match_path, receive_file, send_stream
from ci.stages import checks
from opencoti.errors import VerificationError
from opencoti.hashing import sha256_bytes


def archive(*entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for info, data in entries:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def entry(name: str, *, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o755) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    return info


def chunks(data: bytes, size: int = 1000) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


@pytest.mark.parametrize("size", [1, 700, 1 << 20])
def test_a_file_comes_back_whole_with_the_modes_that_we_give(size: int, tmp_path: Path) -> None:
    data = os.urandom(5000)
    stream = chunks(archive((entry("tool", mode=0o4777), data)), size)
    received = receive_file(stream, tmp_path / "a" / "tool", name="tool")
    assert (received.sha256, received.size) == (sha256_bytes(data), 5000)
    assert (tmp_path / "a" / "tool").read_bytes() == data
    assert (tmp_path / "a" / "tool").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize(
    "bad",
    [
        entry("../tool"),
        entry("/etc/passwd"),
        entry("other"),
        entry("tool", kind=tarfile.LNKTYPE, link="/etc/passwd"),
        entry("tool", kind=tarfile.DIRTYPE),
        entry("tool", kind=tarfile.CHRTYPE),
    ],
    ids=["up", "absolute", "another name", "hard link", "folder", "device"],
)
def test_anything_else_than_the_expected_file_is_refused(bad: tarfile.TarInfo, tmp_path: Path) -> None:
    data = b"x" if bad.isreg() else b""
    with pytest.raises(VerificationError) as caught:
        receive_file(chunks(archive((bad, data))), tmp_path / "tool", name="tool")
    assert caught.value.error_id == "remote-file-unsafe"
    assert list(tmp_path.iterdir()) == []


def test_a_link_is_told_and_not_made(tmp_path: Path) -> None:
    stream = chunks(archive((entry("tool", kind=tarfile.SYMTYPE, link="/etc/passwd"), b"")))
    assert receive_file(stream, tmp_path / "tool", name="tool").link == "/etc/passwd"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("length", [0, 300, 512, 900, 1500])
def test_a_stream_that_is_cut_short_is_no_file(length: int, tmp_path: Path) -> None:
    data = archive((entry("tool"), b"y" * 2000))[:length]
    with pytest.raises(tarfile.TarError):
        receive_file(chunks(data), tmp_path / "tool", name="tool")


def test_a_file_in_the_way_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("mine")
    (tmp_path / "tool").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Exception, match="cannot write"):
        receive_file(chunks(archive((entry("tool"), b"theirs"))), tmp_path / "tool", name="tool")
    assert (tmp_path / "elsewhere").read_text() == "mine"


def test_a_source_tree_is_sent_with_owner_times_and_links_but_without_its_history(tmp_path: Path) -> None:
    """case B09"""
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("ref")
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "a" / "b" / "run.sh").chmod(0o700)
    (tmp_path / "a" / "link").symlink_to("b/run.sh")
    (tmp_path / "folder link").symlink_to("a")
    files = list_source(tmp_path)
    assert set(files) == {"a/b/run.sh", "a/link", "folder link"}
    stream = send_stream(
        tmp_path,
        dict.fromkeys(files, 1700000000.25),
        below="src",
        folders=("src", "out"),
        empty=("out/log",),
        uid=1000,
        gid=1001,
    )
    with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as tar:
        members = {member.name: member for member in tar}
        assert tar.extractfile("src/a/b/run.sh").read() == b"#!/bin/sh\n"  # type: ignore[union-attr]
    assert list(members) == [
        "src",
        "out",
        "out/log",
        "src/a",
        "src/a/b",
        "src/a/b/run.sh",
        "src/a/link",
        "src/folder link",
    ]
    assert {(member.uid, member.gid) for member in members.values()} == {(1000, 1001)}
    assert members["src/a/b/run.sh"].mode == 0o755
    assert members["src/a/b/run.sh"].mtime == 1700000000.25
    assert members["src/folder link"].linkname == "a"


@pytest.mark.parametrize(
    ("path", "pattern", "expected"),
    [
        ("bin/a.so", "bin/*.so", True),
        ("bin/x/a.so", "bin/*.so", False),
        ("bin/x/y/a.so", "bin/**/*.so", True),
        ("bin/a.so", "bin/**/*.so", True),
        ("lib/a.so", "bin/**/*.so", False),
        ("tool", "tool", True),
        ("tool2", "tool?", True),
        ("a/tool", "tool", False),
    ],
)
def test_patterns_mean_what_they_mean_for_local_folders(
    path: str, pattern: str, expected: bool, tmp_path: Path
) -> None:
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).touch()
    assert match_path(path, pattern) is expected
    assert [found for found in tmp_path.glob(pattern) if found.is_file()] == (
        [tmp_path / path] if expected else []
    )


@pytest.mark.parametrize("path", ["", "/a", "../a", "a/../../b", "a//b", "a/.."])
def test_paths_that_leave_the_folder_are_known(path: str) -> None:
    assert not is_inside(path)


def test_everything_that_is_checked_between_steps_comes_back() -> None:
    """case B16"""
    assert {"CMakeCache.txt", *checks._COMMAND_FILES} <= set(CHECKED)
