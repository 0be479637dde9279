"""SHA256SUMS: written in one form, read in that form only."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opencoti.errors import ConfigError, VerificationError
from release.sums import check_sums, hash_folder, parse_sums, render_sums, write_sums
from tests.unit.release.samples import result_or_known_error

GOOD = b"a" * 64 + b"  B.json\n" + b"b" * 64 + b"  a+b_c-1.llamafile\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "b.txt").write_bytes(b"bee")
    (tmp_path / "A.bin").write_bytes(b"")
    (tmp_path / "b.txt.minisig").write_bytes(b"signature")
    return tmp_path


def test_the_list_is_sorted_and_leaves_out_signatures_and_itself(folder: Path) -> None:
    expected = f"{hashlib.sha256(b'').hexdigest()}  A.bin\n{hashlib.sha256(b'bee').hexdigest()}  b.txt\n"
    assert write_sums(folder).read_bytes() == expected.encode()
    assert write_sums(folder).read_bytes() == expected.encode()
    assert check_sums(folder) == 2


def test_what_is_written_is_read_back() -> None:
    assert render_sums(parse_sums(GOOD, "x")) == GOOD


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        GOOD[:-1],
        GOOD + b"\n",
        GOOD.replace(b"  ", b" "),
        GOOD.replace(b"  ", b" *"),
        GOOD.replace(b"a" * 64, b"A" * 64),
        GOOD.replace(b"a" * 64, b"a" * 63),
        GOOD.replace(b"\n", b"\r\n"),
        GOOD.replace(b"B.json", b"../B.json"),
        GOOD.replace(b"B.json", b"/etc/passwd"),
        GOOD.replace(b"B.json", b"CON"),
        GOOD.replace(b"B.json", b"B json"),
        GOOD.replace(b"B.json", b"B\0json"),
        GOOD.replace(b"B.json", "é".encode()),
        GOOD + GOOD,
        GOOD + GOOD.replace(b"B.json", b"b.JSON"),
        b"# comment\n" + GOOD,
        b"a" * (2 << 20),
    ],
)
def test_other_forms_are_refused(data: bytes) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_sums(data, "x")
    assert caught.value.error_id == "sums-malformed"


@settings(max_examples=300)
@given(st.integers(0, len(GOOD)), st.integers(0, 20), st.binary(max_size=12))
def test_damaged_lists_are_refused_or_keep_one_form(at: int, gone: int, new: bytes) -> None:
    data = GOOD[:at] + new + GOOD[at + gone :]
    digests = result_or_known_error(lambda: parse_sums(data, "x"), "sums-malformed")
    if digests is not None:
        assert sorted(render_sums(digests).split(b"\n")) == sorted(data.split(b"\n"))


@pytest.mark.parametrize(("name", "how"), [("b.txt", "changed"), ("new", "not listed"), ("A.bin", "missing")])
def test_every_difference_is_found(folder: Path, name: str, how: str) -> None:
    write_sums(folder)
    if how == "missing":
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(b"other")
    with pytest.raises(VerificationError) as caught:
        check_sums(folder)
    assert caught.value.error_id == "sums-differ"
    assert caught.value.why == f"{name} is {how}"


def test_folders_that_are_no_flat_release_are_refused(folder: Path) -> None:
    (folder / ".hidden").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"\.hidden"):
        hash_folder(folder)
    (folder / ".hidden").unlink()
    os.symlink("/etc/passwd", folder / "link")
    with pytest.raises(ConfigError, match="link"):
        hash_folder(folder)
    (folder / "link").unlink()
    (folder / "sub").mkdir()
    with pytest.raises(ConfigError) as caught:
        hash_folder(folder)
    assert caught.value.error_id == "sums-folder"
    (folder / "sub").rmdir()
    (folder / "ä").write_bytes(b"")
    with pytest.raises(VerificationError) as unsafe:
        hash_folder(folder)
    assert unsafe.value.error_id == "unsafe-name"


def test_an_empty_folder_has_no_list(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        write_sums(tmp_path)
    assert caught.value.error_id == "sums-folder"
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_a_list_says_how_to_make_it(folder: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        check_sums(folder)
    assert (caught.value.error_id, "release sums" in caught.value.hint) == ("sums-missing", True)
