"""Sessions in slots that give their memory back: what was computed is kept elsewhere, and comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.paths import Layout
from tests.e2e.session_engine import OWN_CACHES, Sessions, running

pytestmark = pytest.mark.engine

PREFIX = 1500
NAMES = tuple(f"s{number}" for number in range(6))  # more than slots
LAZY = (*OWN_CACHES, "--slot-initial-ctx", "256", "--slot-shrink-idle-ms", "1")


def conversation(sessions: Sessions, shared: list[int]) -> tuple[list[list[int]], list[int]]:
    """Return what every turn answered, and what turns after the first computed beyond the new tokens."""
    answers, beyond = [], []
    for turn in range(3):
        for name in NAMES:
            new = [*shared, *sessions.noise(500)] if turn == 0 else sessions.noise(10)
            answer = sessions.turn(name, new)
            answers.append(answer.tokens)
            if turn:
                beyond.append(answer.computed - len(new))
    return answers, beyond


@pytest.mark.parametrize("is_saved", [False, True], ids=["memory", "disk"])
def test_shrunken_slots_lose_nothing_of_a_session(
    real_layout: Layout, tmp_path: Path, is_saved: bool
) -> None:
    # Without a prompt cache in memory only the disk is left to keep what a slot gives back.
    places = ("--cache-ram", "0", "--session-save-path", str(tmp_path / "states")) if is_saved else ()
    with running(real_layout, tmp_path, *OWN_CACHES) as plain:
        shared = plain.noise(PREFIX)
        expected, _ = conversation(plain, shared)
    with running(real_layout, tmp_path, *LAZY, *places) as lazy:
        assert lazy.noise(PREFIX) == shared, "the same dice"
        found, beyond = conversation(lazy, shared)
        log = lazy.engine.log_path.read_text()
    assert "context memory 256 -> " in log, "slots grew"
    assert " -> 256 tokens" in log, "slots shrank"
    assert max(beyond) <= 20
    assert found == expected
