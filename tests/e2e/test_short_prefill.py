"""Short turns on a long context: the engine folds them, and answers as it does without."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from ci.paths import Layout
from ci.smoke.model import VOCABULARY
from tests.e2e.session_engine import Answer, Sessions, running
from tests.fakes.tiny_gemma import make_tiny_gemma

pytestmark = pytest.mark.engine

LONG: Final = 2500
"""Tokens of a context in which short turns are folded."""
PROBE: Final[dict[str, Any]] = {"n_predict": 1, "n_probs": 8}
NOISE: Final = 0.7
"""By how much a log probability may differ between two ways to sum up; the model's weights are noise."""


@contextmanager
def told(layout: Layout, folder: Path, *words: str, switch: str = "on", **options: Any) -> Iterator[Sessions]:
    """An engine that says what it folds."""
    # Memory is reserved at the start: the engine ends itself if it has to take more for a batch.
    env = {"OPENCOTI_SHORT_PREFILL": switch, "GGML_SCHED_DEBUG_REALLOC": "2"}
    with running(layout, folder, "--log-verbosity", "4", *words, env=env, **options) as sessions:
        yield sessions


def folded(sessions: Sessions) -> list[str]:
    """What the engine has told: once, of the first batch."""
    log = sessions.engine.log_path.read_text(errors="replace")
    return re.findall(r"short batches are folded, the first: (.*?), ", log)


def turns(sessions: Sessions, counts: Sequence[int]) -> list[Answer]:
    """Ask with short ends to one long beginning."""
    beginning = sessions.noise(LONG)
    sessions.ask(beginning, **PROBE)
    answers = []
    for count in counts:
        answers.append(sessions.ask([*beginning, *sessions.noise(count)], **PROBE))
        assert answers[-1].computed == count
    return answers


def assert_alike(some: Answer, other: Answer) -> None:
    """The same token, unless both find two as likely; and the same probabilities."""
    left, right = some.logprobs, other.logprobs
    both = set(left) & set(right)
    assert len(both) >= 4
    assert all(abs(left[token] - right[token]) < NOISE for token in both)
    if some.tokens != other.tokens:
        assert max(right.values()) - right[some.tokens[0]] < NOISE


@pytest.mark.parametrize(
    ("threads", "count", "what"),
    [
        ("1", 31, "31 rows of 2 heads as 64 of 1"),
        # Threads share the rows: some that are masked make their shares as large as tiles.
        ("2", 63, "63 rows of 2 heads as 256 of 2"),
        # Tiled as it is, in four tiles; together the heads fill three.
        ("1", 65, "65 rows of 2 heads as 130 of 1"),
    ],
)
def test_short_turns_are_folded_and_answered_as_without(
    real_layout: Layout, tmp_path: Path, threads: str, count: int, what: str
) -> None:
    words = ("--threads", threads)
    counts = (count, 17, 40, 63, 129)
    with (
        told(real_layout, tmp_path / "on", *words) as on,
        told(real_layout, tmp_path / "off", *words, switch="off") as off,
    ):
        pairs = zip(turns(on, counts), turns(off, counts), strict=True)
        for some, other in pairs:
            assert_alike(some, other)
        assert folded(on) == [what]
        assert folded(off) == []


def test_layers_with_a_sliding_window_are_folded_apart(real_layout: Layout, tmp_path: Path) -> None:
    # Layers of two kinds, each with a mask of its own: four KV heads with a window, one without.
    model = make_tiny_gemma(real_layout.sources / "llama.cpp" / VOCABULARY, tmp_path / "gemma.gguf")
    counts = (31, 63)
    with (
        told(real_layout, tmp_path / "on", model=model) as on,
        told(real_layout, tmp_path / "off", model=model, switch="off") as off,
    ):
        answers = turns(on, counts)
        for some, other in zip(answers, turns(off, counts), strict=True):
            assert some.logprobs == pytest.approx(other.logprobs, abs=NOISE)
        assert len(folded(on)) == 1
        assert folded(off) == []


def test_what_cannot_win_is_left_alone(real_layout: Layout, tmp_path: Path) -> None:
    quantised = ("--cache-type-k", "q8_0", "--cache-type-v", "q8_0")
    with told(real_layout, tmp_path / "quantised", *quantised) as sessions:
        turns(sessions, [31])
        assert folded(sessions) == []
    with told(real_layout, tmp_path / "short") as sessions:
        sessions.ask(sessions.noise(40), **PROBE)  # a context that is short itself
        turns(sessions, [1, 2, 8])  # too few rows
        assert folded(sessions) == []
        sessions.ask(sessions.noise(LONG), **PROBE)
        turns(sessions, [31])
        assert len(folded(sessions)) == 1


def test_rows_of_several_sequences_are_not_put_together(real_layout: Layout, tmp_path: Path) -> None:
    # Choices of one request share the KV cache and are computed side by side: batches of 20 rows.
    body = {"n_cmpl": 20, "n_predict": 24, "temperature": 1, "ignore_eos": True}
    with told(real_layout, tmp_path, "--parallel", "20", "--kv-unified") as sessions:
        prompt = sessions.noise(LONG)
        answer = sessions.http.post("/completion", json=body | {"prompt": prompt})
        assert answer.status_code == 200
        assert len(answer.json()) == 20
        assert folded(sessions) == []
        sessions.ask([*prompt, *sessions.noise(20)], **PROBE)  # as many rows of one sequence
        assert len(folded(sessions)) == 1
