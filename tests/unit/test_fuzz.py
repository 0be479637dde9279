"""The targets of the fuzzer hold for what they begin with: real files, and some that are wrong."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.fuzz import guard
from tests.fuzz.guard import HangError, WriteError, check_one, memory_file
from tests.fuzz.sparse import MAX_BYTES, expand, shrink
from tests.fuzz.targets import TARGETS, Target

NEVER_REFUSE = {"layout", "features", "doctor"}


@pytest.mark.parametrize("target", TARGETS.values(), ids=list(TARGETS))
def test_what_a_target_begins_with_is_taken(target: Target) -> None:
    seeds = target.seeds()
    assert seeds
    assert max(len(data) for data in seeds) <= target.max_bytes
    outcomes = {check_one(target.parse, data) for data in seeds}
    # Archives of other tools are read, and then are no artifacts of ours.
    assert outcomes <= ({None, "zip-malformed"} if target.name == "zip" else {None})
    assert None in outcomes


@pytest.mark.parametrize("target", TARGETS.values(), ids=list(TARGETS))
def test_bad_inputs_are_refused_by_an_error_of_ours(target: Target) -> None:
    outcomes = [check_one(target.parse, data) for data in target.bad()]
    if target.name in NEVER_REFUSE:
        assert outcomes == [None] * len(outcomes)
    else:
        assert outcomes
        assert None not in outcomes


@pytest.mark.parametrize("target", TARGETS.values(), ids=list(TARGETS))
def test_changed_bytes_are_taken_or_refused(target: Target) -> None:
    chance = random.Random(0)
    data = bytearray(target.seeds()[0])
    for _ in range(30):
        changed = bytearray(data)
        for _ in range(chance.randrange(1, 4)):
            changed[chance.randrange(len(changed))] = chance.choice((0, 1, 0x7F, 0xFF, chance.randrange(256)))
        check_one(target.parse, bytes(changed))


def test_the_guard_sees_a_write_a_hang_and_a_foreign_exception(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(WriteError, match="open"):
        check_one(lambda _: (tmp_path / "new").write_bytes(b""), b"")
    with pytest.raises(WriteError, match=r"os\.mkdir"):
        check_one(lambda _: os.mkdir(tmp_path / "folder"), b"")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ZeroDivisionError):
        check_one(lambda _: 1 // 0, b"")
    monkeypatch.setattr(guard, "LIMIT_S", 0.05)
    with pytest.raises(HangError):
        check_one(_spin, b"")
    (tmp_path / "afterwards").write_bytes(b"allowed again")


def _spin(data: bytes) -> None:
    while True:
        pass


def test_memory_files_have_their_bytes_and_short_forms_their_zeros() -> None:
    data = b"a" + bytes(70_000) + b"b" + bytes(15) + b"c"
    assert expand(shrink(data)) == data
    assert len(shrink(data)) < 40
    assert len(expand(b"~0\xff\xff" * 100)) == MAX_BYTES
    with memory_file(data) as path:
        assert path.read_bytes() == data
