"""Finished stages: stored whole, verified on use, bounded, and never a reason to fail (case B19)."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from ci.stages import cache as cache_module
from ci.stages.cache import StageCache
from opencoti.hashing import sha256_file
from tests.conftest import RecordedConsole

KEY = "k" * 64


@pytest.fixture
def product(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "tool").write_bytes(b"program")
    (folder / "bin" / "tool").chmod(0o775)
    (folder / "data").write_bytes(b"data")
    (folder / "data").chmod(0o600)
    (tmp_path / "log").write_text("the log")
    return folder


def store(cache: StageCache, product: Path, key: str = KEY) -> Any:
    files = {name: hashlib.sha256((product / name).read_bytes()).hexdigest() for name in ("bin/tool", "data")}
    facts = {
        "engine": "host",
        "toolchain_id": "t",
        "toolchain": {"kind": "host"},
        "duration_s": 1.5,
        "files": files,
    }
    return cache.store(key, "cpu", source=product, log=product.parent / "log", facts=facts)


def test_a_stored_stage_is_found_with_its_files_log_and_fixed_modes(
    tmp_path: Path, product: Path, recorded: RecordedConsole
) -> None:
    cache = StageCache(tmp_path / "stages", recorded.console)
    store(cache, product)
    found = cache.find(KEY)
    assert found is not None
    assert (found.folder / "bin/tool").read_bytes() == b"program"
    assert found.log.read_text() == "the log"
    assert (found.engine, found.duration_s) == ("host", 1.5)
    modes = [stat.S_IMODE((found.folder / name).stat().st_mode) for name in ("bin/tool", "data")]
    assert modes == [0o755, 0o644]
    assert cache.find("x" * 64) is None
    assert recorded.text == ""


@pytest.mark.parametrize("damage", ["other bytes", "file gone", "record cut", "record of another key"])
def test_a_damaged_entry_is_discarded_with_a_warning(
    damage: str, tmp_path: Path, product: Path, recorded: RecordedConsole
) -> None:
    cache = StageCache(tmp_path / "stages", recorded.console)
    entry = store(cache, product).folder.parent
    match damage:
        case "other bytes":
            (entry / "files/data").write_bytes(b"dat\0")
        case "file gone":
            (entry / "files/bin/tool").unlink()
        case "record cut":
            (entry / "stage.json").write_bytes((entry / "stage.json").read_bytes()[:40])
        case _:
            os.rename(entry, entry.with_name("z" * 64))
    key = "z" * 64 if damage == "record of another key" else KEY
    assert cache.find(key) is None
    assert "is damaged" in recorded.text
    assert not (tmp_path / "stages" / key).exists()


def test_a_cache_that_cannot_be_written_warns_and_keeps_nothing(
    tmp_path: Path, product: Path, recorded: RecordedConsole
) -> None:
    (tmp_path / "stages").write_text("in the way")
    assert store(StageCache(tmp_path / "stages", recorded.console), product) is None
    assert "cannot be written" in recorded.text


def test_storing_what_someone_else_stored_meanwhile_keeps_theirs(
    tmp_path: Path, product: Path, recorded: RecordedConsole
) -> None:
    cache = StageCache(tmp_path / "stages", recorded.console)
    first = store(cache, product).folder.stat().st_ino
    assert store(cache, product).folder.stat().st_ino == first
    assert [path.name for path in (tmp_path / "stages").iterdir()] == [KEY]


def test_only_old_entries_beyond_the_newest_are_removed(
    tmp_path: Path, product: Path, recorded: RecordedConsole
) -> None:
    cache = StageCache(tmp_path / "stages", recorded.console)
    for age_h, name in ((9, "a"), (8, "b"), (7, "c"), (0, "d")):
        record = store(cache, product, name * 64).folder.parent / "stage.json"
        then = time.time() - 3600 * age_h
        os.utime(record, (then, then))
    assert cache.collect_garbage("cpu", keep=2) == ["b" * 64, "a" * 64]
    assert cache.collect_garbage("cpu", keep=0) == ["c" * 64]
    assert cache.collect_garbage("another stage", keep=0) == []


def test_an_entry_is_marked_as_used_before_it_is_read_so_that_nobody_collects_it_meanwhile(
    tmp_path: Path, product: Path, recorded: RecordedConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = (StageCache(tmp_path / "stages", recorded.console) for _ in range(2))
    record = store(mine, product).folder.parent / "stage.json"
    then = time.time() - 2 * 3600
    os.utime(record, (then, then))
    collected: list[str] = []

    def hash_while_another_command_collects(path: Path) -> str:
        collected.extend(other.collect_garbage("cpu", keep=0))
        return sha256_file(path)

    monkeypatch.setattr(cache_module, "sha256_file", hash_while_another_command_collects)
    found = mine.find(KEY)
    assert found is not None
    assert (found.folder / "data").read_bytes() == b"data"
    assert (collected, recorded.text) == ([], "")
