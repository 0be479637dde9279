"""What a bench of two servers found: rows of paired samples, and how they are shown. Pure.

A row is one figure of one scenario, measured on the stock server and on ours. Timings come in pairs taken one
right after the other, so that a busy moment of the machine falls on both. A row with a reason against it has
no ratio: it is shown with that reason instead.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from perf.bounds import CONFIDENCE, Ratio, paired_ratio
from perf.gate import Judgement

Better = Literal["lower", "higher"]
SCHEMA = "opencoti.perf/1"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One figure of one scenario.

    Attributes:
        scenario: what was done.
        metric: what was measured, with `unit`.
        better: which direction is good.
        stock: samples of the stock server, the warm-up left out; empty where it was not asked.
        ours: samples of the server under test; pairs with `stock` where `is_paired`.
        is_timing: noisy, so it has bounds and the gate looks at it; counts are exact and shown as they are.
        problems: why it does not count.
        judgement: what the gate says, if there is a baseline.
    """

    scenario: str
    metric: str
    unit: str
    better: Better = "lower"
    stock: tuple[float, ...] = ()
    ours: tuple[float, ...] = ()
    is_timing: bool = False
    is_paired: bool = True
    problems: tuple[str, ...] = ()
    judgement: Judgement | None = None

    @property
    def key(self) -> str:
        """What tells the row apart from the others of its bench."""
        return f"{self.scenario} | {self.metric}"

    @property
    def ratio(self) -> Ratio | None:
        """Ours in units of stock's; None where that says nothing."""
        values = (*self.stock, *self.ours)
        if self.problems or not (self.is_timing and self.is_paired and self.stock and self.ours):
            return None
        return paired_ratio(self.ours, self.stock) if min(values) > 0 else None

    @property
    def verdict(self) -> str:
        """Say in words what the ratio means."""
        if self.problems:
            return f"does not count: {self.problems[0]}"
        ratio = self.ratio
        if ratio is None:
            return ""
        if not (ratio.is_above_one or ratio.is_below_one):
            return "no difference that is certain"
        return "better" if ratio.is_below_one == (self.better == "lower") else "worse"

    def cells(self) -> tuple[str, ...]:
        """Return the row of a table: scenario, metric, stock, ours, ratio, verdict."""
        return (
            self.scenario,
            f"{self.metric} [{self.unit}]" if self.unit else self.metric,
            "-" if self.problems else _shown(self.stock),
            "-" if self.problems else _shown(self.ours),
            str(self.ratio or ""),
            self.verdict,
        )

    def as_dict(self) -> dict[str, object]:
        """Return the row as data."""
        ratio = self.ratio
        return {
            "scenario": self.scenario,
            "metric": self.metric,
            "unit": self.unit,
            "better": self.better,
            "stock": {"median": _median(self.stock), "samples": list(self.stock)},
            "ours": {"median": _median(self.ours), "samples": list(self.ours)},
            "ratio": {"estimate": ratio.estimate, "low": ratio.low, "high": _finite(ratio.high)}
            if ratio
            else None,
            "pairs": len(self.ours) if self.is_paired else None,
            "problems": list(self.problems),
            "verdict": self.verdict,
            "gate": {"verdict": self.judgement.verdict, "why": self.judgement.why}
            if self.judgement
            else None,
        }


HEADINGS = ("scenario", "figure", "stock", "ours", "ours / stock", "")


@dataclass(frozen=True, kw_only=True)
class PairedReport:
    """All rows of a bench. `facts` say on what and with what, `notes` what a reader must know."""

    title: str
    rows: tuple[Row, ...]
    facts: Mapping[str, str]
    notes: tuple[str, ...] = ()
    key: Mapping[str, str] = field(default_factory=dict)

    @property
    def failures(self) -> tuple[Row, ...]:
        """Rows that the gate stops at."""
        return tuple(row for row in self.rows if row.judgement and row.judgement.is_failed)

    @property
    def is_valid(self) -> bool:
        """Whether every row counts."""
        return not any(row.problems for row in self.rows)

    def with_rows(self, rows: Sequence[Row]) -> PairedReport:
        """Return the report with other rows."""
        return replace(self, rows=tuple(rows))

    def table(self) -> str:
        """Render as text."""
        cells = [HEADINGS, *(row.cells() for row in self.rows)]
        widths = [max(len(line[at]) for line in cells) for at in range(len(HEADINGS))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in cells
        ]
        return "\n".join([self.title, *lines, *self._footer("  ")])

    def markdown(self) -> str:
        """Render as a Markdown document with one table."""
        lines = [_markdown_row(HEADINGS), _markdown_row(("---",) * len(HEADINGS))]
        lines += [_markdown_row(row.cells()) for row in self.rows]
        return "\n".join([f"# {self.title}", "", *lines, "", *self._footer("- ")]) + "\n"

    def _footer(self, bullet: str) -> list[str]:
        gates = [f"gate, {row.key}: {row.judgement}" for row in self.rows if row.judgement]
        facts = [f"{name}: {value}" for name, value in self.facts.items()]
        return [f"{bullet}{line}" for line in (*facts, *self.notes, *self._chance(), *gates)]

    def _chance(self) -> list[str]:
        """Say how many of the differences that seem certain are none, since so many were looked for."""
        compared = sum(1 for row in self.rows if row.ratio and math.isfinite(row.ratio.high))
        if not compared:
            return []
        expected = compared * (1 - CONFIDENCE)
        return [
            f"{compared} ratios with bounds of {CONFIDENCE:.0%}: about {expected:.1f} differ by chance alone"
        ]

    def as_dict(self) -> dict[str, object]:
        """Return as data, the form that `--json` prints and that plots are made from."""
        return {
            "schema": SCHEMA,
            "title": self.title,
            "key": dict(self.key),
            "facts": dict(self.facts),
            "notes": list(self.notes),
            "is_valid": self.is_valid,
            "rows": [row.as_dict() for row in self.rows],
        }


def _shown(values: Sequence[float]) -> str:
    """Show the median, and the largest where they differ; counts without decimals."""
    if not values:
        return "-"
    middle = statistics.median(values)
    text = _number(middle)
    return text if _number(max(values)) == text else f"{text} (max {_number(max(values))})"


def _number(value: float) -> str:
    if value == int(value) and abs(value) < 1e9:
        return f"{int(value)}"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _finite(value: float) -> float | None:
    return None if value == float("inf") else value


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
