"""Answers of a server in numbers, for tests of what benches make of them."""

from __future__ import annotations

from perf.sides import Answer
from perf.validity import Counted

GOOD = Counted(
    total_n=8000,
    cache_n=0,
    prompt_n=8000,
    prompt_s=2.0,
    predicted_n=33,
    predicted_s=0.5,
    asked_n=33,
    wall_s=2.6,
)


def answer(*, cached: int, total: int, wall_s: float, text: str = "x", predicted_s: float = 0.1) -> Answer:
    """Return an answer of 33 tokens to a prompt of which `cached` tokens were there."""
    counted = Counted(
        total_n=total,
        cache_n=cached,
        prompt_n=total - cached,
        prompt_s=0.1,
        predicted_n=33,
        predicted_s=predicted_s,
        asked_n=33,
        wall_s=wall_s,
        cpu_s=wall_s / 2,
    )
    return Answer(text=text, counted=counted, session={})
