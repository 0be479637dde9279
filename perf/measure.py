"""Timing of whole commands: one warm-up that does not count, then the median of several runs."""

from __future__ import annotations

import os
import platform
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
        done = process.run(argv, cwd=cwd, env=env)
        if not done.is_ok:
            raise BuildError(
                "bench-command-failed", f"{name} ended with {done.code}", why=done.error_text[-300:]
            )

    return time_call(name, once, runs=runs)
