"""A conversation with a sliding-window model goes on where it ended, wherever it was kept (patch 0014)."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.paths import Layout
from tests.e2e.models import SLIDING_WINDOW, sliding_model
from tests.e2e.session_engine import assert_alike, running
from tests.e2e.test_lazy_slots import prompt

pytestmark = pytest.mark.engine

NEW = 5
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
