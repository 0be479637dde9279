"""Timing of whole commands: one warm-up that does not count, then the median of several runs.

Things that are compared take turns, each round in another order, so that a busy moment of the machine, and
what the one before left to the disk, falls on all of them.
"""

from __future__ import annotations

import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ci import process
from opencoti.errors import BuildError


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One thing measured: durations in seconds."""

    name: str
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median duration."""
        return statistics.median(self.seconds)


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a bench found, side by side."""

    title: str
    samples: Sequence[Sample]
    facts: Mapping[str, object] = field(default_factory=dict)

    def table(self) -> str:
        """Render as text."""
        rows = [f"{self.title} ({os.cpu_count()} cores, {platform.machine()})"]
        rows += [
            f"  {s.name:<44} median {s.median * 1000:9.1f} ms   min {min(s.seconds) * 1000:9.1f}   "
            f"max {max(s.seconds) * 1000:9.1f}   n={len(s.seconds)}"
            for s in self.samples
        ]
        rows += [f"  {name}: {value}" for name, value in self.facts.items()]
        return "\n".join(rows)

    def as_dict(self) -> dict[str, object]:
        """Return as data."""
        return {
            "title": self.title,
            "cores": os.cpu_count(),
            "samples": {s.name: {"median_s": s.median, "seconds": s.seconds} for s in self.samples},
            "facts": dict(self.facts),
        }


@dataclass(frozen=True, kw_only=True)
class Case:
    """One of several ways that are compared: `prepare` is not measured."""

    name: str
    prepare: Callable[[], object]
    action: Callable[[], object]

    def time(self) -> float:
        """Do it once; return the seconds that it took."""
        self.prepare()
        started = time.perf_counter()
        self.action()
        return time.perf_counter() - started


def time_in_turns(cases: Sequence[Case], *, runs: int) -> list[Sample]:
    """Time cases in rounds: one that warms up, then `runs` that count. Samples of one round are pairs."""
    rounds = [_round(cases, number) for number in range(runs + 1)][1:]
    return [
        Sample(name=case.name, seconds=tuple(seconds[number] for seconds in rounds))
        for number, case in enumerate(cases)
    ]


def _round(cases: Sequence[Case], number: int) -> list[float]:
    """Time every case once; return the seconds in the order of the cases."""
    order = list(range(len(cases)))
    random.Random(number).shuffle(order)  # noqa: S311 (an order, no secret)
    seconds = {place: cases[place].time() for place in order}
    return [seconds[place] for place in range(len(cases))]


def median_ratio(ours: Sample, theirs: Sample) -> float:
    """Return the median of the ratios of the rounds."""
    return statistics.median(a / b for a, b in zip(ours.seconds, theirs.seconds, strict=True))


def median_difference(ours: Sample, theirs: Sample) -> float:
    """Return the median of the differences of the rounds, in seconds."""
    return statistics.median(a - b for a, b in zip(ours.seconds, theirs.seconds, strict=True))


def run_checked(
    name: str, argv: Sequence[str | Path], *, cwd: Path, env: Mapping[str, str] | None = None
) -> None:
    """Run a command that must succeed.

    Raises:
        BuildError: `bench-command-failed`, it ended with another code than 0.
    """
    done = process.run(argv, cwd=cwd, env=env)
    if not done.is_ok:
        raise BuildError("bench-command-failed", f"{name} ended with {done.code}", why=done.error_text[-300:])


def time_call(name: str, action: Callable[[], object], *, runs: int) -> Sample:
    """Time a call: one warm-up, then `runs` that count."""
    action()
    seconds = []
    for _ in range(runs):
        started = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - started)
    return Sample(name=name, seconds=tuple(seconds))


def time_command(
    name: str, argv: Sequence[str | Path], *, runs: int, cwd: Path, env: Mapping[str, str] | None = None
) -> Sample:
    """Time a command from start to exit.

    Raises:
        BuildError: `bench-command-failed`, it ended with another code than 0.
    """

    def once() -> None:
        run_checked(name, argv, cwd=cwd, env=env)

    return time_call(name, once, runs=runs)
