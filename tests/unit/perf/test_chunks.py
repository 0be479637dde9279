"""What counts as moved: pieces at their multiples, shifts that are followed, ranges."""

from __future__ import annotations

import mmap
import random
from pathlib import Path

import pytest

from perf.chunks import Cut, moved, moved_following

SIZE = 4096
CUT = Cut(
    name="fixed 4 KiB",
    spans=lambda data: [(start, min(SIZE, len(data) - start)) for start in range(0, len(data), SIZE)],
    entry_bytes=32,
)
OLD = random.Random(3).randbytes(100 * SIZE)


@pytest.fixture
def mapped(tmp_path: Path):  # type: ignore[no-untyped-def]
    def map_bytes(data: bytes) -> mmap.mmap:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        path.write_bytes(data)
        with open(path, "rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    return map_bytes


def plain(new: bytes) -> tuple[int, int]:
    found = moved(memoryview(OLD), memoryview(new), CUT)
    return found.piece_bytes, found.ranges


def test_the_same_file_moves_its_table_only() -> None:
    found = moved(memoryview(OLD), memoryview(OLD), CUT)
    assert (found.piece_bytes, found.table_bytes, found.ranges) == (0, 64 + 100 * 32, 0)
    assert found.all_bytes == found.table_bytes


def test_changed_bytes_move_their_pieces_and_neighbours_are_one_range() -> None:
    new = bytearray(OLD)
    for at in (5 * SIZE + 1, 6 * SIZE + 1, 50 * SIZE + 1):
        new[at] ^= 1
    assert plain(bytes(new)) == (3 * SIZE, 2)


def test_what_moved_by_whole_pieces_is_found() -> None:
    assert plain(OLD[50 * SIZE :] + OLD[: 50 * SIZE]) == (0, 0)


def test_a_shift_moves_all_unless_it_is_followed(mapped) -> None:  # type: ignore[no-untyped-def]
    new = OLD[: 10 * SIZE] + b"forty bytes more, in front of all of this" + OLD[10 * SIZE :]
    assert plain(new)[0] == len(new) - 10 * SIZE
    found = moved_following(mapped(OLD), mapped(new), SIZE)
    assert (found.piece_bytes, found.ranges) == (SIZE, 1)


def test_a_second_shift_is_followed_too(mapped) -> None:  # type: ignore[no-untyped-def]
    new = b"x" * 24 + OLD[: 40 * SIZE] + b"y" * 16 + OLD[40 * SIZE :]
    found = moved_following(mapped(OLD), mapped(new), SIZE)
    assert (found.piece_bytes, found.ranges) == (2 * SIZE, 2)


def test_new_bytes_are_fetched_once_each(mapped) -> None:  # type: ignore[no-untyped-def]
    new = random.Random(4).randbytes(20 * SIZE)
    found = moved_following(mapped(OLD), mapped(new), SIZE)
    assert (found.piece_bytes, found.ranges) == (20 * SIZE, 1)


def test_an_end_of_zeros_is_not_looked_for(mapped) -> None:  # type: ignore[no-untyped-def]
    """Zeros stand everywhere: the piece after them, which ends in something, finds the shift."""
    new = b"a new piece with a padded end".ljust(SIZE, b"\0") + bytes(24) + OLD
    found = moved_following(mapped(bytes(SIZE) + OLD), mapped(new), SIZE)
    assert (found.piece_bytes, found.ranges) == (2 * SIZE, 1)
