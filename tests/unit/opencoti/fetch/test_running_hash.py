"""The hash of a stream of blocks is that of the bytes in their order, whichever thread took them."""

from __future__ import annotations

import hashlib
import random

from opencoti.fetch.running_hash import RunningHash

DATA = random.Random(5).randbytes(3 << 20)


def test_big_and_small_blocks_are_hashed_in_order() -> None:
    running, at, dice = RunningHash(), 0, random.Random(1)
    while at < len(DATA):
        size = dice.choice([1, 1000, 127 << 10, 128 << 10, 400_000])
        take = running.update_now if dice.random() < 0.3 else running.update
        take(DATA[at : at + size])
        at += size
        if dice.random() < 0.3:
            assert running.hexdigest() == hashlib.sha256(DATA[:at]).hexdigest()
    assert running.hexdigest() == hashlib.sha256(DATA).hexdigest()
    running.close()
    running.close()


def test_many_big_blocks_do_not_pile_up() -> None:
    running = RunningHash()
    for _ in range(50):
        running.update(DATA[: 256 << 10])
        assert len(running._waiting) <= 8
    assert running.hexdigest() == hashlib.sha256(DATA[: 256 << 10] * 50).hexdigest()
    running.close()
