"""Estimates with bounds that need no assumption about the noise: by ranks, exact for small samples. Pure.

Times are compared as ratios, so everything works on logarithms. An estimate is the Hodges-Lehmann one: the
median of all pairwise values, which no single wild sample can move far. Bounds come from the exact null
distribution of the rank statistic, so they hold for five samples as for fifty.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """How many times as large one side is, with the bounds of a two-sided confidence interval.

    Bounds are 0 and infinity where the samples are too few to give any at this confidence.
    """

    estimate: float
    low: float
    high: float
    pairs: int

    def __str__(self) -> str:
        if not math.isfinite(self.high):
            return f"{self.estimate:.2f} (too few runs for bounds)"
        return f"{self.estimate:.2f} ({self.low:.2f} to {self.high:.2f})"

    @property
    def is_above_one(self) -> bool:
        """Whether it is more than 1 for sure."""
        return self.low > 1

    @property
    def is_below_one(self) -> bool:
        """Whether it is less than 1 for sure."""
        return self.high < 1


def paired_ratio(above: Sequence[float], below: Sequence[float], *, confidence: float = CONFIDENCE) -> Ratio:
    """Return `above / below` of samples that were taken in pairs, one right after the other.

    Args:
        above: values of the numerator, all positive.
        below: the partner of each.
        confidence: of the interval.
    """
    differences = [math.log(a) - math.log(b) for a, b in zip(above, below, strict=True)]
    means = sorted(
        (first + second) / 2 for at, first in enumerate(differences) for second in differences[at:]
    )
    skipped = _skipped(_signed_rank_counts(len(differences)), 2 ** len(differences), confidence)
    return _ratio(means, skipped, len(differences))


def unpaired_ratio(
    above: Sequence[float], below: Sequence[float], *, confidence: float = CONFIDENCE
) -> Ratio:
    """Return `above / below` of two independent samples, such as runs of two days."""
    differences = sorted(math.log(a) - math.log(b) for a in above for b in below)
    counts = _rank_sum_counts(len(above), len(below))
    skipped = _skipped(counts, math.comb(len(above) + len(below), len(above)), confidence)
    return _ratio(differences, skipped, min(len(above), len(below)))


def _ratio(values: Sequence[float], skipped: int, pairs: int) -> Ratio:
    """Make the ratio of sorted logarithms, with the bounds after `skipped` values from each end."""
    has_bounds = skipped >= 1
    return Ratio(
        estimate=math.exp(statistics.median(values)),
        low=math.exp(values[skipped - 1]) if has_bounds else 0.0,
        high=math.exp(values[-skipped]) if has_bounds else math.inf,
        pairs=pairs,
    )


def _skipped(counts: Sequence[int], total: int, confidence: float) -> int:
    """Return the largest k with P(statistic < k) <= (1 - confidence) / 2; 0 when there is none."""
    limit = (1 - confidence) / 2 * total
    seen = 0
    for value, count in enumerate(counts):
        seen += count
        if seen > limit:
            return value
    return len(counts)


@lru_cache(maxsize=64)
def _signed_rank_counts(size: int) -> tuple[int, ...]:
    """Return in how many of the 2^size sign patterns each sum of positive ranks comes out."""
    counts = [1]
    for rank in range(1, size + 1):
        grown = [*counts, *([0] * rank)]
        for at, count in enumerate(counts):
            grown[at + rank] += count
        counts = grown
    return tuple(counts)


@lru_cache(maxsize=64)
def _rank_sum_counts(first: int, second: int) -> tuple[int, ...]:
    """Return in how many orders of two samples each number of inversions comes out (Mann and Whitney's U)."""
    # rows[b]: counts for the samples of the first seen so far and b of the second.
    rows = [[1] for _ in range(second + 1)]
    for a in range(1, first + 1):
        grown = [[1]]
        for b in range(1, second + 1):
            size = a * b + 1
            shifted = [0] * b + rows[b]
            grown.append([_at(shifted, at) + _at(grown[b - 1], at) for at in range(size)])
        rows = grown
    return tuple(rows[second])


def _at(values: Sequence[int], index: int) -> int:
    return values[index] if index < len(values) else 0
