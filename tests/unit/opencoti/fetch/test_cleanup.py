"""Which files of the cache go, and which stay."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from opencoti.fetch.cleanup import Cleaning, clean_cache, pinned_hashes
from opencoti.fetch.lock import target_lock
from opencoti.fetch.store import Slot


def put(artifacts: Path, key: str, *, age: int, name: str = "e.llamafile") -> Path:
    """Write a file of the cache that was last used `age` seconds before now."""
    folder = artifacts / (key * 12)
    folder.mkdir(parents=True, exist_ok=True)
    for file in (folder / name, folder / f".{name}.stamp"):
        file.write_bytes(b"x" * 100)
        os.utime(file, (2_000_000_000 - age,) * 2)
    return folder / name


def told(done: Cleaning) -> dict[str, tuple[bool, str]]:
    return {
        item.path.parent.name[0] + item.path.suffix: (item.is_removed, item.reason) for item in done.outcomes
    }


def test_the_newest_and_the_pinned_stay(tmp_path: Path) -> None:
    paths = {key: put(tmp_path, key, age=age) for key, age in (("a", 4), ("b", 3), ("c", 2), ("d", 1))}
    done = clean_cache(tmp_path, keep=1, pinned=["a" * 64])
    assert told(done) == {
        "a.llamafile": (False, "pinned"),
        "b.llamafile": (True, "old"),
        "c.llamafile": (True, "old"),
        "d.llamafile": (False, "among the newest"),
    }
    assert done.freed_bytes == 200
    assert [path.exists() for path in paths.values()] == [True, False, False, True]
    assert os.listdir(paths["b"].parent) == [".e.llamafile.lock"]
    assert (paths["d"].parent / ".e.llamafile.stamp").exists()


def test_last_use_counts_and_not_the_age_of_the_bytes(tmp_path: Path) -> None:
    used, unused = put(tmp_path, "a", age=9), put(tmp_path, "b", age=5)
    os.utime(used.parent / ".e.llamafile.stamp", (2_000_000_000,) * 2)
    clean_cache(tmp_path, keep=1, pinned=[])
    assert (used.exists(), unused.exists()) == (True, False)


def test_unfinished_ones_go_but_not_under_the_hands_of_a_process(tmp_path: Path) -> None:
    left, worked_on = (put(tmp_path, key, age=1, name="e.llamafile.part") for key in "ab")
    slot = Slot(folder=worked_on.parent, name="e.llamafile")
    with target_lock(slot.lock, lambda _: None):
        done = clean_cache(tmp_path, keep=5, pinned=[])
    assert told(done) == {"a.part": (True, "unfinished"), "b.part": (False, "a process works on it")}
    assert (left.exists(), worked_on.exists()) == (False, True)


def test_dry_run_removes_nothing_and_says_the_same(tmp_path: Path) -> None:
    path = put(tmp_path, "a", age=1)
    done = clean_cache(tmp_path, keep=0, pinned=[], is_dry_run=True)
    assert path.exists()
    assert done.as_text().splitlines() == [
        f"would remove: {path} (0.0 MB, old)", "would free 0.0 MB",
    ]  # fmt: skip
    assert done.as_dict()["freed_bytes"] == 100


def test_absent_cache_is_an_empty_one(tmp_path: Path) -> None:
    assert clean_cache(tmp_path / "none", keep=2, pinned=[]).outcomes == ()


@pytest.mark.parametrize("word", ["mann1x/opencoti c1", "file:/x c1"])
def test_pins_name_what_stays(tmp_path: Path, word: str) -> None:
    pin = tmp_path / "pin"
    pin.write_text(f"{word} e.llamafile {'C' * 64}\n")
    assert pinned_hashes([pin]) == {"c" * 64}
