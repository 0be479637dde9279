"""The folder on loopback: files, ranges, and nothing else."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from opencoti.errors import OpencotiError
from opencoti.fetch.settings import Settings
from release.checking.served import base_address, serve_folder

DATA = bytes(range(256)) * 10


@pytest.mark.parametrize(
    ("asked", "status", "first", "last"),
    [
        (None, 200, 0, 2559),
        ("bytes=0-0", 206, 0, 0),
        ("bytes=100-199", 206, 100, 199),
        ("bytes=2550-", 206, 2550, 2559),
        ("bytes=2550-9999", 206, 2550, 2559),
        ("bytes=2560-", 416, 0, -1),
        ("lines=1-2", 200, 0, 2559),
    ],
)
def test_ranges(tmp_path: Path, asked: str | None, status: int, first: int, last: int) -> None:
    (tmp_path / "a").write_bytes(DATA)
    with serve_folder(tmp_path) as url:
        headers = {"range": asked} if asked else {}
        answer = httpx.get(f"{url}/a", headers=headers, trust_env=False)
    assert answer.status_code == status
    if status == 206:
        assert answer.headers["content-range"] == f"bytes {first}-{last}/2560"
    if status != 416:
        assert answer.content == DATA[first : last + 1]


@pytest.mark.parametrize("path", ["", "folder/", "none", "../secret", "..%2fsecret"])
def test_nothing_but_files_of_the_folder(tmp_path: Path, path: str) -> None:
    (tmp_path / "web" / "folder").mkdir(parents=True)
    (tmp_path / "secret").write_text("x")
    with serve_folder(tmp_path / "web") as url:
        answer = httpx.get(f"{url}/{path}", headers={"range": "bytes=0-"}, trust_env=False)
    assert answer.status_code == 404


def test_where_releases_are(tmp_path: Path) -> None:
    settings = Settings(artifacts=tmp_path, base_url="https://mirror.example")
    for words, expected in (
        (None, "https://mirror.example"),
        ("github", "https://mirror.example"),
        ("https://other.example", "https://other.example"),
    ):
        with base_address(words, settings) as url:
            assert url == expected
    for words, error in ((f"dir:{tmp_path}/no", "release-folder-missing"), ("ftp://x", "address-refused")):
        with pytest.raises(OpencotiError) as caught, base_address(words, settings):
            pass
        assert caught.value.error_id == error
