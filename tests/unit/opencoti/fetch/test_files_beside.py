"""The partial, its note, the stamp and the final name: links, strangers and damage (case B44)."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path

import pytest

from opencoti.errors import BusyError, StorageError
from opencoti.fetch import store
from opencoti.fetch.partial import Partial, ResumeNote
from opencoti.fetch.store import Slot

DATA = b"some bytes" * 500
SHA = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def slot(tmp_path: Path) -> Slot:
    folder = tmp_path / "dest"
    folder.mkdir()
    return Slot(folder=folder, name="engine")


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_bytes(b"precious")
    return path


def fill_and_place(slot: Slot) -> None:
    with Partial.open(slot.part) as part:
        part.restart()
        part.append(DATA)
        part.finish(0o755)
        part.reopen_for_reading()
        store.place(slot, part, part.hexdigest())


def test_placed_file_is_whole_executable_and_known_without_reading(slot: Slot) -> None:
    fill_and_place(slot)
    assert slot.final.read_bytes() == DATA
    assert stat.S_IMODE(slot.final.stat().st_mode) == 0o755
    found = store.inspect(slot)
    assert (found.sha256, found.size, found.was_read) == (SHA, len(DATA), False)
    assert store.inspect(slot, read_all=True).was_read


def test_stamp_does_not_hide_a_change_even_with_the_old_times(slot: Slot) -> None:
    fill_and_place(slot)
    before = slot.final.stat()
    with open(slot.final, "r+b") as file:
        file.write(b"X")
    os.utime(slot.final, ns=(before.st_atime_ns, before.st_mtime_ns))
    found = store.inspect(slot)
    assert found.was_read
    assert found.sha256 == hashlib.sha256(b"X" + DATA[1:]).hexdigest()


@pytest.mark.parametrize("text", ["", "{}", "[1]", "{", "[" * 4000, json.dumps({"sha256": 7})])
def test_odd_stamp_is_the_same_as_none(slot: Slot, text: str) -> None:
    fill_and_place(slot)
    slot.stamp.write_text(text)
    found = store.inspect(slot)
    assert (found.sha256, found.was_read) == (SHA, True)


@pytest.mark.parametrize("kind", ["symlink", "hard link"])
def test_case_b44_partial_that_is_a_link_leaves_its_victim_alone(slot: Slot, victim: Path, kind: str) -> None:
    slot.part.symlink_to(victim) if kind == "symlink" else slot.part.hardlink_to(victim)
    fill_and_place(slot)
    assert victim.read_bytes() == b"precious"
    assert slot.final.read_bytes() == DATA


def test_case_b44_final_name_that_is_a_link_is_replaced(slot: Slot, victim: Path) -> None:
    slot.final.symlink_to(victim)
    assert store.inspect(slot).sha256 is None
    fill_and_place(slot)
    assert victim.read_bytes() == b"precious"
    assert not slot.final.is_symlink()


@pytest.mark.parametrize("side", ["stamp", "note"])
def test_case_b44_side_files_that_are_links_are_neither_read_nor_followed(
    slot: Slot, victim: Path, side: str
) -> None:
    getattr(slot, side).symlink_to(victim)
    note = ResumeNote(sha256=SHA, url="u", etag="", last_modified="", total=None)
    note.store(slot.note)
    fill_and_place(slot)
    assert victim.read_bytes() == b"precious"


def test_pipe_in_the_place_of_the_partial_or_the_file_holds_nobody_up(slot: Slot) -> None:
    os.mkfifo(slot.part)
    os.mkfifo(slot.final)
    assert store.inspect(slot).sha256 is None
    fill_and_place(slot)
    assert slot.final.read_bytes() == DATA


def test_folder_in_the_place_of_the_file_is_said_before_any_work(slot: Slot) -> None:
    slot.final.mkdir()
    with pytest.raises(StorageError) as caught:
        store.prepare(slot)
    assert caught.value.error_id == "target-is-folder"


def test_partial_that_lost_its_name_is_not_placed(slot: Slot) -> None:
    with Partial.open(slot.part) as part:
        part.append(DATA)
        slot.part.unlink()
        slot.part.write_bytes(b"of somebody else")
        with pytest.raises(BusyError) as caught:
            store.place(slot, part, SHA)
    assert caught.value.error_id == "partial-replaced"
    assert not slot.final.exists()


def test_partial_goes_on_with_what_is_there(slot: Slot) -> None:
    slot.part.write_bytes(DATA[:1000])
    with Partial.open(slot.part) as part:
        part.load(lambda size: None)
        part.append(DATA[1000:])
        assert (part.size, part.hexdigest(), part.head) == (len(DATA), SHA, DATA[:256])
        part.restart()
        assert (part.size, part.stored_bytes, part.head) == (0, 0, b"")


def test_note_survives_a_round_trip(slot: Slot) -> None:
    note = ResumeNote(sha256=SHA, url="https://example.com/a", etag='"v1"', last_modified="x", total=5)
    note.store(slot.note)
    assert ResumeNote.load(slot.note) == note


@pytest.mark.parametrize(
    "change",
    [
        {"total": -1},
        {"total": True},
        {"total": "5"},
        {"etag": None},
        {"etag": '"a"\r\nX: y'},
        {"etag": '"é"'},
        {"more": 1},
    ],
)
def test_note_with_odd_content_counts_as_none(slot: Slot, change: dict[str, object]) -> None:
    good = {"sha256": SHA, "url": "u", "etag": "", "last_modified": "", "total": 5}
    slot.note.write_text(json.dumps({**good, **change}))
    assert ResumeNote.load(slot.note) is None


def test_disk_full_tells_needed_and_free(slot: Slot) -> None:
    error = store.write_failure(OSError(28, "No space"), slot, needed=700, free=300)
    assert (error.error_id, error.exit_code) == ("disk-full", 8)
    assert error.why == "700 more bytes needed, 300 bytes free"
    assert "engine.part" in error.hint


def test_pipe_in_the_place_of_a_note_counts_as_none_and_holds_nobody_up(slot: Slot) -> None:
    os.mkfifo(slot.note)
    assert ResumeNote.load(slot.note) is None


def test_note_that_cannot_be_removed_is_named(slot: Slot) -> None:
    slot.note.mkdir()
    with pytest.raises(StorageError) as caught:
        store.discard(slot)
    assert slot.note.name in caught.value.what
