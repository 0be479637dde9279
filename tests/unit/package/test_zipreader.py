"""The zip reader against archives that are damaged, ambiguous or hostile."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ci.package.zipreader import ALIGNMENT_BYTES, check_own_layout, find_archive, read_archive
from ci.package.zipwriter import NewMember, write_archive
from opencoti.errors import OpencotiError, VerificationError

PROGRAM = b"\x7fELF" + b"\x90" * 5000


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """An archive of our writer: a program and two members."""
    folder = tmp_path_factory.mktemp("good")
    (folder / "host").write_bytes(PROGRAM)
    members = [NewMember(name=name, mode=0o644, data=name.encode() * 50) for name in ("first", "second")]
    write_archive(folder / "host", members, folder / "out")
    return (folder / "out").read_bytes()


def read(data: bytes) -> object:
    file = io.BytesIO(data)
    archive = read_archive(file, "sample")
    check_own_layout(file, archive, "sample", executable_size=len(PROGRAM))
    return archive


def refused(data: bytes) -> str:
    with pytest.raises(VerificationError) as caught:
        read(data)
    assert caught.value.error_id == "zip-malformed"
    return caught.value.why


def patched(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


def test_a_good_archive_is_read(good: bytes) -> None:
    archive = read_archive(io.BytesIO(good), "sample")
    assert [entry.name for entry in archive.entries] == ["first", "second"]
    first = archive.entries[0]
    assert good[first.data_offset : first.data_end] == b"first" * 50
    assert first.mode == 0o644
    read(good)


def test_files_without_an_archive_have_none() -> None:
    assert find_archive(io.BytesIO(PROGRAM), "sample") is None
    assert find_archive(io.BytesIO(b""), "sample") is None


def test_every_truncation_is_refused(good: bytes) -> None:
    tail = good.index(b"PK\x01\x02")
    for length in range(tail, len(good)):
        refused(good[:length])


def test_an_end_record_that_is_cut_off_is_not_taken_for_a_file_without_an_archive(good: bytes) -> None:
    """Else `embed` would put a second directory behind half of a first one."""
    end = good.rindex(b"PK\x05\x06")
    for length in range(end + 4, len(good)):
        with pytest.raises(VerificationError) as caught:
            find_archive(io.BytesIO(good[:length]), "sample")
        assert "is cut off" in caught.value.why


@pytest.mark.parametrize("junk", [b"\0", b"junk", b"\n" * 100])
def test_bytes_behind_the_directory_are_refused(good: bytes, junk: bytes) -> None:
    assert "follow its zip directory" in refused(good + junk)


def test_junk_between_members_and_directory_is_refused(good: bytes) -> None:
    at = good.index(b"PK\x01\x02")
    data = good[:at] + b"junk" + good[at:]
    end = data.rindex(b"PK\x05\x06")
    moved = patched(data, end + 16, struct.pack("<I", at + 4))
    assert "between the last member and the directory" in refused(moved)


def test_padding_that_is_not_zero_is_refused(good: bytes) -> None:
    assert "padding" in refused(patched(good, len(PROGRAM) + 3, b"!"))


def test_a_prefix_that_offsets_do_not_count_is_refused_in_our_own(good: bytes) -> None:
    data = b"prefix" + good
    assert read_archive(io.BytesIO(data), "sample").prefix == 6
    assert "do not count from the start" in refused(data)


def test_overlapping_members_are_refused(good: bytes) -> None:
    second = good.rindex(b"PK\x01\x02")
    first_offset = struct.unpack_from("<I", good, good.index(b"PK\x01\x02") + 42)[0]
    data = patched(good, second + 42, struct.pack("<I", first_offset))
    assert refused(data)


def test_a_member_that_reaches_into_the_directory_is_refused(good: bytes) -> None:
    record = good.rindex(b"PK\x01\x02")
    data = patched(good, record + 20, struct.pack("<2I", 100_000, 100_000))
    assert "overlaps the directory" in refused(data)


@pytest.mark.parametrize(
    ("offset", "new", "why"),
    [
        (8, struct.pack("<H", 1), "encrypted"),
        (10, struct.pack("<H", 8), "does not match the directory"),
        (16, b"\1\2\3\4", "does not match the directory"),
        (24, struct.pack("<I", 7), "two sizes"),
        (42, struct.pack("<I", 0x7FFFFFFF), "outside the file"),
        (46, b"Xecond", "has another name"),
        (46, b"../../", "leaves the archive"),
        (46, b"/abs/x", "leaves the archive"),
        (46, b"a\\..\\b", "leaves the archive"),
        (46, b"nu\0l..", "leaves the archive"),
        (46, b"\xff\xff\xff\xff\xff\xff", "not UTF-8"),
        (30, struct.pack("<H", 60_000), "longer than the directory"),
    ],
)
def test_a_directory_record_that_lies_is_refused(good: bytes, offset: int, new: bytes, why: str) -> None:
    """Case B44 (names)."""
    record = good.rindex(b"PK\x01\x02")
    assert why in refused(patched(good, record + offset, new))


def test_duplicate_and_case_colliding_names_are_refused() -> None:
    """Case B23."""
    for twin in ("a", "A"):
        file = io.BytesIO()
        warned = pytest.warns(UserWarning, match="Duplicate name") if twin == "a" else nullcontext()
        with warned, zipfile.ZipFile(file, "w") as archive:
            archive.writestr("a", b"1")
            archive.writestr(twin, b"2")
        with pytest.raises(VerificationError, match="stands twice"):
            read_archive(file, "sample")


def test_two_end_records_are_refused(good: bytes) -> None:
    end = good.rindex(b"PK\x05\x06")
    fake = good[end:]
    data = patched(good, end + 20, struct.pack("<H", len(fake))) + fake
    assert "two end records" in refused(data)


@pytest.mark.parametrize(
    ("offset", "new"),
    [
        (4, struct.pack("<H", 1)),
        (8, struct.pack("<H", 3)),
        (8, struct.pack("<2H", 3, 3)),
        (8, struct.pack("<2H", 0, 0)),
        (12, struct.pack("<I", 10)),
        (12, struct.pack("<I", 0xFFFFFFFF)),
        (16, struct.pack("<I", 0xFFFFFFF0)),
    ],
)
def test_an_end_record_that_lies_is_refused(good: bytes, offset: int, new: bytes) -> None:
    end = good.rindex(b"PK\x05\x06")
    assert refused(patched(good, end + offset, new))


def test_compressed_members_are_refused_in_our_own_but_never_unpacked() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb", b"\0" * (50 << 20))
    archive_read = read_archive(file, "sample")
    assert archive_read.entries[0].size == 50 << 20
    with pytest.raises(VerificationError, match="not simply stored"):
        check_own_layout(file, archive_read, "sample", executable_size=0)


def test_a_member_off_its_alignment_is_refused() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x", b"x")
    with pytest.raises(VerificationError, match=f"no multiple of {ALIGNMENT_BYTES}"):
        check_own_layout(file, read_archive(file, "sample"), "sample", executable_size=0)


def test_a_gap_of_a_whole_page_is_refused(good: bytes) -> None:
    file = io.BytesIO(good)
    with pytest.raises(VerificationError, match="bytes lie in front of member first"):
        check_own_layout(file, read_archive(file, "sample"), "sample", executable_size=-10_000)


def only_known_errors(action: Callable[[], object]) -> None:
    found = None
    try:
        action()
    except OpencotiError as error:
        found = error.error_id
    assert found in {None, "zip-malformed"}


@settings(max_examples=400, deadline=2000)
@given(
    changes=st.lists(
        st.tuples(st.integers(0, 400), st.binary(min_size=1, max_size=8)), min_size=1, max_size=4
    ),
    cut=st.integers(0, 60),
)
def test_damaged_ends_raise_known_errors_only(
    tail_of_good: bytes, changes: list[tuple[int, bytes]], cut: int
) -> None:
    data = tail_of_good
    for back, new in changes:
        data = patched(data, max(0, len(data) - back), new)
    only_known_errors(lambda: read(data[: len(data) - cut]))


@settings(max_examples=300, deadline=2000)
@given(st.binary(max_size=300), st.binary(max_size=60))
def test_any_bytes_raise_known_errors_only(head: bytes, comment: bytes) -> None:
    record = b"PK\x05\x06" + head[:16].ljust(16, b"\0") + struct.pack("<H", len(comment)) + comment
    only_known_errors(lambda: read(head + record))
    only_known_errors(lambda: read(b"PK\x03\x04" + head))


@pytest.fixture(scope="module")
def tail_of_good(good: bytes) -> bytes:
    return good


def test_reading_writes_nothing(good: bytes, tmp_path: Path) -> None:
    path = tmp_path / "good"
    path.write_bytes(good)
    path.chmod(0o444)
    with open(path, "rb") as file:
        read_archive(file, "good")
    assert path.read_bytes() == good
    assert [entry.name for entry in tmp_path.iterdir()] == ["good"]
