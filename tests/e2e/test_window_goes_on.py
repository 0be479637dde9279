"""Sliding windows: what was kept goes on where it ended (patch 0014), and is whole (patch 0015)."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.paths import Layout
from tests.e2e.conftest import EngineArtifact
from tests.e2e.models import SLIDING_WINDOW, sliding_model
from tests.e2e.running import Running, started
from tests.e2e.session_engine import Answer, assert_alike, running
from tests.e2e.test_lazy_slots import prompt

pytestmark = pytest.mark.engine

NEW = 5
LENGTHS = (1100, 1700, 2300)
"""Of prompts whose parts get into each other's way, so that 11 of 12 seeds show it."""
PROBE = {"n_probs": 10, "n_predict": 1}


@pytest.mark.parametrize("length", [3, 300, 2 * SLIDING_WINDOW], ids=["nothing", "short", "long"])
def test_only_what_is_new_is_computed(real_layout: Layout, tmp_path: Path, length: int) -> None:
    """The answer is longer than the window, so no checkpoint of the prompt is of use."""
    model = sliding_model(real_layout, tmp_path / "sliding.gguf")
    words = ("--parallel", "1", "--session-save-path", str(tmp_path / "states"))
    with running(real_layout, tmp_path, *words, model=model) as sessions:
        sessions.turn("a", prompt(1, length), n_predict=SLIDING_WINDOW + 100)
        sessions.turn("b", prompt(2, 50))  # takes the slot
        assert sessions.turn("a", prompt(3, NEW), n_predict=SLIDING_WINDOW + 100).computed <= NEW + 1
        histories = sessions.histories
        sessions.engine.stop(grace_s=60)
    with running(real_layout, tmp_path, *words, model=model) as sessions:
        history = [*histories["a"], *prompt(4, NEW)]
        restored = sessions.ask(history, "a", **PROBE)
        assert restored.session["restored_from"] == "disk"
        assert restored.computed <= NEW + 1
        assert_alike(restored.logprobs, sessions.ask(history, "c", cache_prompt=False, **PROBE).logprobs)


def likely(server: Running, *prompts: list[int]) -> list[dict[int, float]]:
    """Ask for all at once; return the likeliest first tokens after each."""
    body = {"prompt": list(prompts), "temperature": 0, "cache_prompt": False, **PROBE, "n_predict": 2}
    answer = server.ask("/completion", body)
    assert answer.status == 200, answer.data
    found = answer.data if isinstance(answer.data, list) else [answer.data]
    return [Answer(document=item).logprobs for item in sorted(found, key=lambda item: item["index"])]


@pytest.mark.parametrize("seed", [1, 2])
def test_prompts_that_are_read_at_once_have_all_of_their_windows(
    artifact: EngineArtifact, real_layout: Layout, tmp_path: Path, seed: int
) -> None:
    """In one cache: the parts of a batch are placed there on trial first."""
    model = sliding_model(real_layout, tmp_path / "sliding.gguf")
    words = ("-m", str(model), "-t", "1", "-c", "24000", "--kv-unified", "-fa", "off", "--cache-ram", "0")
    prompts = [prompt(10 * seed + number, length) for number, length in enumerate(LENGTHS)]
    with started(artifact.path, *words, "-np", "3", home=tmp_path) as server:
        together = likely(server, *prompts)
    with started(artifact.path, *words, "-np", "1", home=tmp_path) as server:
        alone = [likely(server, one)[0] for one in prompts]
    for one, other in zip(together, alone, strict=True):
        assert_alike(one, other)


def test_a_draft_that_does_not_fit_is_no_failure(
    artifact: EngineArtifact, real_layout: Layout, tmp_path: Path
) -> None:
    """A slot file has nothing of the draft model's."""
    model = str(sliding_model(real_layout, tmp_path / "sliding.gguf"))
    words = ("-m", model, "--spec-draft-model", model, "--spec-type", "draft-simple", "-t", "1", "-np", "1")
    words = (*words, "-c", "8192", "--slot-save-path", str(tmp_path))
    with started(artifact.path, *words, home=tmp_path) as server:
        answer = server.complete(prompt(1, 5), SLIDING_WINDOW + 100, ignore_eos=True)
        history = [*prompt(1, 5), *answer.data["tokens"]]
        assert server.ask("/slots/0?action=save", {"filename": "slot"}).status == 200
        server.complete(prompt(2, 30), 1)
        assert server.ask("/slots/0?action=restore", {"filename": "slot"}).status == 200
        assert server.complete([*history, 7], 2).status == 200
