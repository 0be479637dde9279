"""The gate: is this run slower than the runs before, and is that certain? Pure.

It neither cries wolf nor sleeps (case B59). A loss must be larger than what is worth a look *and* certain by
ranks at 99 %; where the noise is so large that a real loss could hide in it, the verdict is "undecided" and
says so, instead of a pass. Values under the floor of what can be timed never decide.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from perf.bounds import Ratio, unpaired_ratio

Verdict = Literal["pass", "slower", "faster", "undecided", "learning", "not-gated"]

MIN_SAMPLES: Final = 5
MIN_RUNS: Final = 3
"""Runs that a baseline needs before it judges: one fast or slow run is no baseline."""
TOLERANCE: Final = 1.10
HIDDEN: Final = 1.25
"""A loss of this size must not go unnoticed: a run that cannot exclude it is undecided."""
FLOOR_S: Final = 0.010
_CONFIDENCE: Final = 0.99


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What the gate says of one figure. `loss` is how many times worse it is than the baseline."""

    verdict: Verdict
    loss: Ratio | None
    why: str

    @property
    def is_failed(self) -> bool:
        """Whether it stops."""
        return self.verdict == "slower"

    def __str__(self) -> str:
        return f"{self.verdict}: {self.why}"


def judge(
    current: Sequence[float],
    baseline: Sequence[Sequence[float]],
    *,
    is_lower_better: bool,
    floor: float = 0.0,
) -> Judgement:
    """Compare a run with the runs of a baseline.

    Args:
        current: samples of this run, the warm-up left out.
        baseline: samples of earlier runs on the same device, model and flags, one sequence per run.
        is_lower_better: True for times, False for rates.
        floor: medians below it are not gated; `FLOOR_S` for times.
    """
    if len(baseline) < MIN_RUNS:
        return _no("learning", f"the baseline has {len(baseline)} of {MIN_RUNS} runs")
    if len(current) < MIN_SAMPLES:
        return _no("undecided", f"{len(current)} samples, {MIN_SAMPLES} are the least")
    before = [value for run in baseline for value in run]
    if min(*current, *before) <= 0:
        return _no("not-gated", "a value is not positive")
    if max(statistics.median(current), statistics.median(before)) < floor:
        return _no("not-gated", f"below the floor of {floor:g}")
    above, below = (current, before) if is_lower_better else (before, current)
    return _decide(unpaired_ratio(above, below, confidence=_CONFIDENCE))


def _decide(loss: Ratio) -> Judgement:
    text = f"{loss} times the baseline's cost"
    if loss.is_above_one and loss.estimate > TOLERANCE:
        return Judgement(verdict="slower", loss=loss, why=text)
    if loss.is_below_one and loss.estimate < 1 / TOLERANCE:
        return Judgement(verdict="faster", loss=loss, why=text)
    if loss.high > HIDDEN:
        why = f"{text}; a loss of {HIDDEN:.2f} cannot be excluded: more runs, or a quieter machine"
        return Judgement(verdict="undecided", loss=loss, why=why)
    return Judgement(verdict="pass", loss=loss, why=text)


def _no(verdict: Verdict, why: str) -> Judgement:
    return Judgement(verdict=verdict, loss=None, why=why)
