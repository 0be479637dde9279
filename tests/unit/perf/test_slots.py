"""The bench of slots: what is compared, and whether limits are kept; what procfs tells of a process."""

from __future__ import annotations

import os

import pytest

from opencoti import procfs
from perf.slots import LIMIT_START, Memory, limits, memory_rows, speed_rows
from tests.unit.perf.answers import answer

CACHE = 64e6
REST = (10e6, 40e6, 40e6)  # what a server holds besides its cache, at each moment


def stock(**changes: list[float]) -> Memory:
    held = [[CACHE + rest] for rest in REST]
    return Memory(start=held[0], loaded=held[1], idle=held[2], cache=changes.get("cache", [CACHE]))


def lazy(start: float, idle: float) -> Memory:
    return Memory(start=[REST[0] + start], loaded=[REST[1] + 16e6], idle=[REST[2] + idle], cache=[0.0])


def test_cache_is_what_ours_holds_less_what_stock_holds_besides_its_own() -> None:
    rows = {row.metric: row for row in memory_rows("small slots", stock(), lazy(4e6, 5e6))}
    assert rows["cache, after the start"].stock == (64.0,)
    assert rows["cache, after the start"].ours == (4.0,)
    assert rows["cache, every slot at work"].ours == (16.0,)
    assert rows["cache, idle again"].ours == (5.0,)
    assert rows["memory, idle again"].ours == (45.0,)


def test_limits_are_told_with_their_measure() -> None:
    told = limits(list(memory_rows("small slots", stock(), lazy(4e6, 4.2e6))))
    assert told == {
        "cache after the start, of stock's": f"0.062, within the limit of {LIMIT_START:.3f}",
        "cache idle again, of the start's": "1.050, within the limit of 1.100",
    }
    over = limits(list(memory_rows("small slots", stock(), lazy(8e6, 90e6))))
    assert over["cache after the start, of stock's"].startswith("0.125, OVER")
    assert over["cache idle again, of the start's"].startswith("11.250, OVER")


def test_server_without_small_slots_has_no_limits() -> None:
    assert limits(list(memory_rows("as it starts", stock(), lazy(4e6, 4e6)))) == {}


def test_amounts_carry_what_is_wrong() -> None:
    wrong = lazy(4e6, 4e6)
    wrong.problems.append("early end")
    assert all(row.problems == ("early end",) for row in memory_rows("small slots", stock(), wrong))
    silent = list(memory_rows("small slots", stock(cache=[0.0]), lazy(4e6, 4e6)))
    assert "does not say how large its cache is" in silent[0].problems[0]


def test_speed_leaves_the_first_answer_out_and_compares_the_texts() -> None:
    stock = [answer(cached=0, total=100, wall_s=1.0, predicted_s=p) for p in (9.0, 0.32, 0.32)]
    ours = [answer(cached=0, total=100, wall_s=1.0, predicted_s=p) for p in (9.0, 0.16, 0.16)]
    speed, texts = speed_rows("small slots", stock, ours)
    assert speed.stock == pytest.approx((100.0, 100.0))
    assert speed.ours == pytest.approx((200.0, 200.0))
    assert texts.ours == (0.0,)
    one, same, cached = (
        answer(cached=cached, total=100, wall_s=1.0, text=said)
        for cached, said in ((0, "a"), (0, "b"), (50, "b"))
    )
    assert list(speed_rows("x", [one], [same]))[1].ours == (1.0,)
    assert list(speed_rows("x", [one], [cached]))[1].ours == (0.0,)  # not computed alike: no comparison


def test_memory_and_processor_time_are_those_of_the_process() -> None:
    pid = os.getpid()
    before = procfs.anonymous_bytes(pid)
    block = bytearray(os.urandom(1 << 20) * 32)
    assert procfs.anonymous_bytes(pid) - before > 24 << 20
    spent = procfs.processor_seconds(pid)
    assert sum(block) > 0
    assert procfs.processor_seconds(pid) > spent
    assert (procfs.anonymous_bytes(2**22 + 1), procfs.processor_seconds(2**22 + 1)) == (0, 0.0)
