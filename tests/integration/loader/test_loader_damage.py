"""Damaged and hostile artifacts: exit code 6 with a reason, never a crash, never a file from them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.loader.artifacts import (
    ENTRY,
    INDEX,
    Bench,
    Layout,
    Member,
    members_of,
    render_index,
    render_zip,
)

HINT = "  next: get this file again from its publisher, and compare its SHA-256"


def refuse(bench: Bench, artifact: Path, reason: str) -> None:
    """Both a start and `--opencoti-verify` give code 6 and the reason, and nothing is unpacked."""
    for words in ([], ["--opencoti-verify"]):
        done = bench.start(artifact, *words)
        assert done.code == 6, done
        assert reason in done.stderr
        assert done.stderr.splitlines()[-1] == HINT
        assert not list(bench.home.rglob("*.so"))
        assert not list(bench.home.rglob(ENTRY))


def with_members(
    bench: Bench, change: Callable[[list[Member]], list[Member]], layout: Layout | None = None
) -> Path:
    members = members_of(bench.files(liba__so=b"a" * 1000))
    return bench.write(render_zip(bench.loader, change(members), layout))


MEMBER_FAULTS: dict[str, tuple[Callable[[Member], Member], str]] = {
    "deflated": (lambda m: replace(m, method=8), "is compressed, encrypted or streamed"),
    "encrypted": (lambda m: replace(m, flags=1), "is compressed, encrypted or streamed"),
    "data descriptor": (lambda m: replace(m, flags=8), "is compressed, encrypted or streamed"),
    "two sizes": (lambda m: replace(m, stored_size=999), "has two different sizes"),
    "size differs": (lambda m: replace(m, size=999), "has 999 bytes, its index says 1000"),
    "size beyond the file": (lambda m: replace(m, size=0x7FFFFFFF), "reaches beyond the end of its data"),
    "offset beyond the file": (lambda m: replace(m, offset=0x7FFFFFF0), "reaches beyond the end of its data"),
    "zip64 without its field": (lambda m: replace(m, size=0xFFFFFFFF), "its zip directory is cut short"),
    "comment": (lambda m: replace(m, comment=b"hello"), "has a comment"),
    "overlap": (lambda m: replace(m, offset=131_172), "overlaps another one"),
    "unlisted": (
        lambda m: replace(m, name="libb.so"),
        "liba.so is in its index and not in its zip directory",
    ),
    "path": (lambda m: replace(m, name="../liba.so"), "liba.so is in its index and not in its zip directory"),
    "long name": (lambda m: replace(m, name="a" * 201), "has a name of 201 bytes"),
    "nul in the name": (lambda m: replace(m, name="lib\0.so"), "or with a NUL in it"),
    "no name": (lambda m: replace(m, name="", local_name="x"), "has a name of 0 bytes"),
}


@pytest.mark.parametrize("fault", MEMBER_FAULTS)
def test_faulty_member(bench: Bench, fault: str) -> None:
    change, reason = MEMBER_FAULTS[fault]
    refuse(bench, with_members(bench, lambda m: [m[0], change(m[1]), m[2]]), reason)


def test_header_with_another_name(bench: Bench) -> None:
    """The directory and the local header must agree; the loader reads what its directory says."""
    artifact = with_members(bench, lambda m: [m[0], replace(m[1], local_name="libb.so"), m[2]])
    refuse_at_use(bench, artifact, "the header of member liba.so contradicts the zip directory")


def refuse_at_use(bench: Bench, artifact: Path, reason: str) -> None:
    """A fault that shows when the member is read: earlier members may be unpacked, this one is not."""
    done = bench.start(artifact)
    assert (done.code, done.stdout) == (6, b"")
    assert reason in done.stderr
    assert not list(bench.home.rglob("liba.so"))


def test_unlisted_member(bench: Bench) -> None:
    extra = Member(name="libevil.so", data=b"x")
    refuse(bench, with_members(bench, lambda m: [*m, extra]), "member libevil.so is not in its index")


def test_member_twice(bench: Bench) -> None:
    """Case B23: two entries of one name."""
    refuse(bench, with_members(bench, lambda m: [*m, m[1]]), "member liba.so is in it twice")


def test_index_twice(bench: Bench) -> None:
    refuse(bench, with_members(bench, lambda m: [*m, m[2]]), f"member {INDEX} is in it twice")


def test_no_index(bench: Bench) -> None:
    refuse(bench, with_members(bench, lambda m: m[:2]), f"it has no member {INDEX}")


def test_index_with_a_wrong_crc(bench: Bench) -> None:
    reason = "its index has another CRC-32"
    refuse(bench, with_members(bench, lambda m: [*m[:2], replace(m[2], crc=1)]), reason)


def test_too_many_members(bench: Bench) -> None:
    more = [Member(name=f"f{i}", data=b"", is_aligned=False) for i in range(4100)]
    refuse(bench, with_members(bench, lambda m: [*more, *m]), "4103 entries")


LAYOUT_FAULTS: dict[str, tuple[Layout, str]] = {
    "something appended": (Layout(appended=b"junk"), "no zip directory at its end"),
    "comment": (Layout(comment=b"hello"), "no zip directory at its end"),
    "shifted": (Layout(directory_shift=1), "not where its end record says"),
    "shifted back": (Layout(directory_shift=-1), "not where its end record says"),
    "fewer than said": (Layout(count=4), "its zip directory is cut short"),
    "more than said": (Layout(count=2), "more bytes than entries"),
    "none": (Layout(count=0), "0 entries"),
    "zip64 count": (Layout(is_zip64=True, end64={"count": 1 << 40}), "zip64 end record"),
    "zip64 start": (Layout(is_zip64=True, end64={"start": (1 << 64) - 1}), "not where its end record says"),
    "zip64 bytes": (Layout(is_zip64=True, end64={"bytes": (1 << 64) - 1}), "not where its end record says"),
    "zip64 record elsewhere": (Layout(is_zip64=True, end64={"at": 0}), "zip64 end record"),
    "zip64 record of another size": (Layout(is_zip64=True, end64={"size": 100}), "zip64 end record"),
}


@pytest.mark.parametrize("fault", LAYOUT_FAULTS)
def test_faulty_end(bench: Bench, fault: str) -> None:
    layout, reason = LAYOUT_FAULTS[fault]
    refuse(bench, with_members(bench, lambda m: m, layout), reason)


def test_zip64_everywhere_is_read(bench: Bench) -> None:
    artifact = with_members(bench, lambda m: m, Layout(is_zip64=True))
    assert bench.start(artifact).code == 0
    assert bench.start(artifact, "--opencoti-verify").code == 0


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.9, 0.999])
def test_cut_short(bench: Bench, kept: float) -> None:
    data = bench.pack(bench.files(liba__so=b"a" * 300_000)).read_bytes()
    size = max(len(bench.loader), int(len(data) * kept))
    refuse(bench, bench.write(data[:size]), "no zip directory at its end")


def test_bare_loader(bench: Bench) -> None:
    refuse(bench, bench.write(bench.loader), "no zip directory at its end")


def upper_case_hash(index: bytes) -> bytes:
    return index[:76] + index[76:140].upper() + index[140:]


def reverse_files(index: bytes) -> bytes:
    lines = index.splitlines(keepends=True)
    return b"".join(lines[:3] + lines[:2:-1])


def drop_first_file(index: bytes) -> bytes:
    lines = index.splitlines(keepends=True)
    return b"".join(lines[:3] + lines[4:])


def edit(find: bytes, put: bytes) -> Callable[[bytes], bytes]:
    return lambda index: index.replace(find, put, 1)


INDEX_FAULTS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda index: b"", "line 1"),
    "another version of the form": (edit(b"index 1", b"index 2"), "line 1"),
    "carriage returns": (lambda index: index.replace(b"\n", b"\r\n"), "line 1"),
    "no version": (edit(b"version ", b"versio "), "line 2"),
    "version with a path": (edit(b"version o", b"version ../o"), "line 2"),
    "hidden version": (edit(b"version o", b"version .o"), "begins with a dot"),
    "version too long": (edit(b"version o", b"version " + b"o" * 200), "line 2"),
    "no entry": (edit(b"entry llama-server\n", b""), "line 3"),
    "entry not listed": (edit(b"entry llama-server", b"entry llama-cli"), "the program llama-cli"),
    "entry not executable": (edit(b"0755", b"0644"), "the program llama-server"),
    "set-user-id": (edit(b" 0755 ", b" 4755 "), "mode 0644 or 0755"),
    "upper case hash": (upper_case_hash, "lowercase hex digits"),
    "short hash": (lambda index: index[:76] + index[77:], "lowercase hex digits"),
    "size with a sign": (edit(b" 1000 ", b" +1000 "), "a decimal size"),
    "size with a zero": (edit(b" 1000 ", b" 01000 "), "a decimal size"),
    "size of 2^64": (edit(b" 1000 ", b" 18446744073709551616 "), "a decimal size"),
    "path": (edit(b"liba.so", b"a/liba.so"), "line 4"),
    "dots": (edit(b"liba.so", b".."), "line 4"),
    "dot": (edit(b"liba.so", b"."), "line 4"),
    "nul": (edit(b"liba.so", b"liba\0.so"), "line 4"),
    "space": (edit(b"liba.so", b"liba.so "), "line 4"),
    "unsorted": (reverse_files, "not sorted"),
    "twice": (lambda index: index + index.split(b"\n")[-2] + b"\n", "has llama-server twice"),
    "not ended": (lambda index: index[:-1], "the end of the line"),
    "empty line": (lambda index: index + b"\n", "line 6"),
    "missing file": (drop_first_file, "member liba.so is not in its index"),
}  # fmt: skip


@pytest.mark.parametrize("fault", INDEX_FAULTS)
def test_faulty_index(bench: Bench, fault: str) -> None:
    change, reason = INDEX_FAULTS[fault]
    files = bench.files(liba__so=b"a" * 1000)
    refuse(bench, bench.pack(files, change(render_index(files))), reason)


def test_names_that_differ_in_case_only(bench: Bench) -> None:
    """Case B23."""
    refuse(bench, bench.pack(bench.files(liba__so=b"1", LIBA__so=b"2")), "differ in case only")


def test_control_characters_in_names_do_not_reach_the_terminal(bench: Bench) -> None:
    artifact = with_members(bench, lambda m: [*m, Member(name="\x1b]0;evil\x07", data=b"")])
    done = bench.start(artifact, "--opencoti-list")
    assert done.code == 6
    assert "?]0;evil?" in done.stderr
    assert "\x1b" not in done.stderr


@pytest.mark.parametrize("seed", range(8))
def test_random_damage_ends_with_a_known_code(bench: Bench, seed: int) -> None:
    """A few flips in headers, index and directory: a good file, or a refusal in two lines; no signal."""
    chance = random.Random(seed)
    files = {ENTRY: b"not started", "liba.so": b"a" * 100, ".args": b"-x\n...\n"}
    members = [replace(member, is_aligned=False) for member in members_of(files)]
    good = render_zip(b"", members, Layout(is_zip64=seed % 2 == 1))
    for _ in range(40):
        data = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        done = bench.start(bench.write(bench.loader + data), "--opencoti-verify")
        assert done.code in (0, 6), done
        if done.code == 6:
            assert done.stderr.splitlines()[-1] == HINT
