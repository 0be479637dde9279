"""Archives of their publishers: by hash, unpacked inside their folder, or a word about what to bring."""

from __future__ import annotations

import hashlib
import os
import stat
import zipfile
from pathlib import Path

import pytest

from ci.toolchains.archives import fetch_archives, unpack_archive
from ci.toolchains.recipe import ArchiveRule
from opencoti.errors import MissingError, VerificationError
from tests.conftest import RecordedConsole


def rule(sha256: str = "0" * 64, url: str = "https://nowhere.invalid/tool.zip") -> ArchiveRule:
    return ArchiveRule(name="tool", version="1.0", url=url, sha256=sha256, target="tool")


def archive(path: Path, members: dict[str, tuple[int, bytes]]) -> Path:
    with zipfile.ZipFile(path, "w") as bundle:
        for name, (mode, data) in members.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            bundle.writestr(info, data)
    return path


def test_what_lies_in_the_cache_needs_no_network(tmp_path: Path, recorded: RecordedConsole) -> None:
    sha256 = hashlib.sha256(b"zip").hexdigest()
    (tmp_path / sha256).write_bytes(b"zip")
    assert fetch_archives([rule(sha256)], tmp_path, recorded.console) == {"tool": tmp_path / sha256}


def test_an_address_that_cannot_be_reached_is_told_with_the_hash(
    tmp_path: Path, recorded: RecordedConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """case B16"""
    monkeypatch.setenv("OPENCOTI_OFFLINE", "1")
    with pytest.raises(MissingError) as caught:
        fetch_archives([rule()], tmp_path, recorded.console)
    assert caught.value.exit_code == 4
    assert "https://nowhere.invalid/tool.zip" in caught.value.what
    assert f"{tmp_path / ('0' * 64)} (sha256 {'0' * 64})" in caught.value.hint


def test_modes_and_links_are_those_of_the_archive(tmp_path: Path) -> None:
    made = archive(
        tmp_path / "tool.zip",
        {
            "bin/": (stat.S_IFDIR | 0o755, b""),
            "bin/cc": (stat.S_IFREG | 0o755, b"#!/bin/sh\n"),
            "bin/c++": (stat.S_IFLNK | 0o777, b"cc"),
            "share/text": (stat.S_IFREG | 0o600, b"words"),
        },
    )
    unpack_archive(made, rule(), tmp_path / "out")
    root = tmp_path / "out/tool"
    assert os.access(root / "bin/cc", os.X_OK)
    assert os.readlink(root / "bin/c++") == "cc"
    assert stat.S_IMODE((root / "share/text").stat().st_mode) == 0o644


@pytest.mark.parametrize(
    ("name", "mode", "data"),
    [
        ("../outside", stat.S_IFREG | 0o644, b"x"),
        ("/outside", stat.S_IFREG | 0o644, b"x"),
        ("a/../../outside", stat.S_IFREG | 0o644, b"x"),
        ("link", stat.S_IFLNK | 0o777, b"../../outside"),
        ("link", stat.S_IFLNK | 0o777, b"/etc/passwd"),
    ],
)
def test_a_member_that_leads_out_is_refused(name: str, mode: int, data: bytes, tmp_path: Path) -> None:
    with pytest.raises(VerificationError) as caught:
        unpack_archive(archive(tmp_path / "evil.zip", {name: (mode, data)}), rule(), tmp_path / "out")
    assert caught.value.error_id == "archive-unsafe-member"
    assert not (tmp_path / "outside").exists()
