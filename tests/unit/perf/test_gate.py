"""The gate and its bounds: quiet on noise, awake on a loss, honest when it cannot tell (case B59)."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

import pytest

from perf.bounds import paired_ratio, unpaired_ratio
from perf.gate import FLOOR_S, MIN_RUNS, judge

SEEDS = range(200)
RUNS = 11
Noise = Callable[[random.Random], float]


def gaussian(rng: random.Random) -> float:
    return max(0.2, rng.gauss(1.0, 0.10))


def uniform(rng: random.Random) -> float:
    return rng.uniform(0.9, 1.1)


def with_outliers(rng: random.Random) -> float:
    return rng.gauss(1.0, 0.05) * (3.0 if rng.random() < 0.05 else 1.0)


def verdicts(noise: Noise, factor: float, *, runs: int = RUNS) -> list[str]:
    """Judge a run of a machine with `noise` that is `factor` times as slow, once per seed."""
    found: list[str] = []
    for seed in SEEDS:
        rng = random.Random(seed)
        baseline = [[noise(rng) for _ in range(runs)] for _ in range(MIN_RUNS)]
        current = [factor * noise(rng) for _ in range(runs)]
        found.append(judge(current, baseline, is_lower_better=True, floor=FLOOR_S).verdict)
    return found


@pytest.mark.parametrize("noise", [gaussian, uniform, with_outliers])
def test_same_speed_alarms_in_less_than_one_percent_case_b59(noise: Noise) -> None:
    assert verdicts(noise, 1.0).count("slower") < len(SEEDS) / 100


@pytest.mark.parametrize("noise", [gaussian, uniform, with_outliers])
def test_loss_of_a_quarter_is_found_in_95_percent_case_b59(noise: Noise) -> None:
    found = verdicts(noise, 1.25)
    assert found.count("slower") >= 0.95 * len(SEEDS)
    assert "faster" not in found


def test_five_samples_of_ten_percent_noise_find_a_quarter_or_say_undecided_case_b59() -> None:
    found = verdicts(uniform, 1.25, runs=5)
    assert found.count("slower") + found.count("undecided") == len(SEEDS)
    assert found.count("slower") >= 0.95 * len(SEEDS)


def test_rates_are_judged_the_other_way_round() -> None:
    baseline = [[100.0, 101, 99, 100, 102]] * 3
    assert judge([70.0, 71, 69, 70, 72], baseline, is_lower_better=False).verdict == "slower"
    assert judge([130.0, 131, 129, 130, 132], baseline, is_lower_better=False).verdict == "faster"
    assert judge([100.0, 101, 99, 100, 102], baseline, is_lower_better=False).verdict == "pass"


@pytest.mark.parametrize(
    ("current", "baseline", "verdict"),
    [
        ([9.0] * 5, [[1.0] * 5] * 2, "learning"),
        ([9.0] * 4, [[1.0] * 5] * 3, "undecided"),
        ([0.009] * 5, [[0.001] * 5] * 3, "not-gated"),
        ([0.0] * 5, [[1.0] * 5] * 3, "not-gated"),
        ([1.0, 1.0, 1.0, 1.0, 1.0], [[1.0] * 5] * 3, "pass"),
        ([1.05] * 5, [[1.0] * 5] * 3, "pass"),  # certain, and too small to be worth a stop
        ([0.6, 1.0, 1.5, 0.7, 1.4], [[0.7, 1.4, 1.0, 0.6, 1.5]] * 3, "undecided"),
    ],
)
def test_verdicts_where_nothing_is_to_be_stopped(
    current: list[float], baseline: list[list[float]], verdict: str
) -> None:
    judged = judge(current, baseline, is_lower_better=True, floor=FLOOR_S)
    assert judged.verdict == verdict
    assert not judged.is_failed


def test_noise_too_large_to_tell_is_undecided_and_not_passed_case_b59() -> None:
    """A baseline at the slow end must not hide a real loss."""
    found = verdicts(lambda rng: max(0.1, rng.gauss(1.0, 0.4)), 1.3, runs=5)
    assert found.count("pass") < 0.02 * len(SEEDS)


def test_bounds_of_pairs_are_those_of_every_sign_pattern() -> None:
    values = [1.1, 1.3, 0.95, 1.2, 1.4, 1.05, 1.25]
    ratio = paired_ratio(values, [1.0] * 7)
    walsh = sorted(
        math.sqrt(values[a] * values[b]) for a, b in itertools.combinations_with_replacement(range(7), 2)
    )
    # Seven pairs: 2 of 128 patterns have a rank sum of at most 1, 3 have at most 2: two values are skipped.
    sums = sorted(
        sum(rank for rank, sign in enumerate(signs, start=1) if sign)
        for signs in itertools.product((0, 1), repeat=7)
    )
    skipped = next(k for k in range(28, -1, -1) if sum(s < k for s in sums) <= 0.025 * 128)
    assert ratio.low == pytest.approx(walsh[skipped - 1])
    assert ratio.high == pytest.approx(walsh[-skipped])
    assert ratio.pairs == 7


def test_bounds_of_two_samples_are_those_of_every_order() -> None:
    above, below = [1.0, 2.0, 3.0, 4.0], [0.5, 1.5, 2.5, 3.5, 4.5]
    orders = itertools.combinations(range(9), 4)
    counts = sorted(sum(at - place for place, at in enumerate(order)) for order in orders)
    skipped = next(k for k in range(20, -1, -1) if sum(u < k for u in counts) <= 0.05 * len(counts))
    ratios = sorted(a / b for a in above for b in below)
    found = unpaired_ratio(above, below, confidence=0.9)
    assert found.low == pytest.approx(ratios[skipped - 1])
    assert found.high == pytest.approx(ratios[-skipped])


def test_coverage_of_paired_bounds_is_as_said() -> None:
    inside = 0
    for seed in range(400):
        rng = random.Random(seed)
        ratio = paired_ratio([1.5 * gaussian(rng) for _ in range(8)], [gaussian(rng) for _ in range(8)])
        inside += ratio.low <= 1.5 <= ratio.high
    assert 0.92 * 400 <= inside <= 0.99 * 400


def test_too_few_pairs_give_no_bounds() -> None:
    ratio = paired_ratio([2.0, 2.0], [1.0, 1.0])
    assert ratio.estimate == pytest.approx(2.0)
    assert (ratio.low, ratio.high) == (0.0, math.inf)
    assert "too few runs" in str(ratio)
    assert not ratio.is_above_one
