"""A sliding window with a cache for every position (`--swa-full`, patch 0010): states of it are whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ci.paths import Layout
from tests.e2e.conftest import EngineArtifact
from tests.e2e.models import sliding_model
from tests.e2e.running import started
from tests.e2e.session_engine import Conversations, saved_files, wait_for
from tests.e2e.test_lazy_slots import prompt

pytestmark = pytest.mark.engine

_PREFIX = 600
# Rounding, where another slot or another batch computes the same; a token that is missed makes it 0.2 to 95.
_ROUNDING = 0.06


@pytest.fixture(scope="module")
def model(real_layout: Layout, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sliding_model(real_layout, tmp_path_factory.mktemp("sliding") / "sliding.gguf")


def distance(sessions: Conversations, prompt: list[int], **options: Any) -> float:
    """Return how far the likeliest token is from what a fresh computation says, which comes second."""
    found = sessions.ask(prompt, n_predict=1, n_probs=10, **options)
    fresh = sessions.ask(prompt, n_predict=1, n_probs=10, cache_prompt=False).logprobs
    assert found.computed < _PREFIX, "nothing was taken over, so nothing is proved"
    likeliest = max(fresh, key=lambda token: fresh[token])
    return abs(found.logprobs.get(likeliest, -99.0) - fresh[likeliest])


@pytest.mark.parametrize("beyond", [63, 600], ids=["within the window", "before it"])
def test_a_copy_that_is_cut_says_what_a_fresh_text_says(
    artifact: EngineArtifact, model: Path, tmp_path: Path, beyond: int
) -> None:
    words = ("-m", str(model), "--swa-full", "-t", "1", "-np", "4", "-c", "16384", "--no-kv-unified")
    with started(artifact.path, *words, home=tmp_path) as server:
        sessions = Conversations(server.url)
        common = prompt(1, _PREFIX)
        sessions.ask([*common, *prompt(2, beyond)], "a")
        assert distance(sessions, [*common, *prompt(3, 5)], session="b") < _ROUNDING


def test_cells_that_a_window_has_passed_are_given_to_nobody_else(
    artifact: EngineArtifact, model: Path, tmp_path: Path
) -> None:
    """In cells that slots share: a text begins where a shorter one was, before those of another slot."""
    words = ("-m", str(model), "--swa-full", "-t", "1", "-np", "2", "-c", "4096", "--kv-unified")
    with started(artifact.path, *words, "--cache-ram", "0", home=tmp_path) as server:
        sessions = Conversations(server.url)
        text = prompt(1, 2 * _PREFIX)
        sessions.ask(prompt(2, 300), id_slot=0)
        sessions.ask(text, id_slot=1)
        sessions.ask(prompt(3, 1_000), id_slot=0)
        assert distance(sessions, [*text[:_PREFIX], *prompt(4, 5)], id_slot=1) < _ROUNDING


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_a_state_that_was_kept_can_be_cut_anywhere(
    artifact: EngineArtifact, model: Path, tmp_path: Path, place: str
) -> None:
    states = tmp_path / "states"
    keep = ("--session-save-path", str(states)) if place == "disk" else ()
    words = ("-m", str(model), "--swa-full", "-t", "1", "-np", "1", "-c", "8192", *keep)
    with started(artifact.path, *words, home=tmp_path) as server:
        sessions = Conversations(server.url)
        common = prompt(1, _PREFIX)
        sessions.ask([*common, *prompt(2, 600)], "a")
        if place == "memory":
            sessions.ask(prompt(3, 1_000), "b")
            assert distance(sessions, [*common, 5, 6], session="a") < _ROUNDING
            return
        wait_for(lambda: len(saved_files(states)) == 1)
    with started(artifact.path, *words, home=tmp_path) as server:
        assert distance(Conversations(server.url), [*common, 5, 6], session="a") < _ROUNDING
