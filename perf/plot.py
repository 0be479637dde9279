"""Drawing a report as SVG: per figure a group of bars, stock beside ours, with whiskers of what was measured.

Plain text out, the same bytes for the same report, no library and nothing loaded from elsewhere. One panel
per metric, since their units differ; ratios with their bounds stand beside the bars.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final
from xml.sax.saxutils import escape

_WIDTH: Final = 960
_LABEL: Final = 330
_RATIO: Final = 240
_BAR: Final = 11
_ROW: Final = 34
_PANEL_HEAD: Final = 40
_TOP: Final = 64
_COLOURS: Final = {"stock": "#9aa5b1", "ours": "#2f6f9f"}
_STYLE: Final = (
    "text{font:12px sans-serif;fill:#222}.h{font-weight:bold}.t{font-size:16px;font-weight:bold}"
    ".s{fill:#666}.w{stroke:#222;stroke-width:1}"
)


def render(report: Mapping[str, Any]) -> str:
    """Draw a report, given as the data of `PairedReport.as_dict` (or read back from its JSON)."""
    rows = sorted(report["rows"], key=lambda row: str(row["metric"]))
    parts: list[str] = []
    top = _TOP
    for metric, group in groupby(rows, key=lambda row: str(row["metric"])):
        panel = list(group)
        parts += _panel(metric, panel, top)
        top += _PANEL_HEAD + _ROW * len(panel)
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{top + 16}" '
        f'viewBox="0 0 {_WIDTH} {top + 16}" role="img">',
        f"<title>{escape(str(report['title']))}</title><style>{_STYLE}</style>",
        f'<rect width="{_WIDTH}" height="{top + 16}" fill="#fff"/>',
        _text(16, 26, str(report["title"]), "t"),
        *_legend(),
    ]
    return "\n".join([*head, *parts, "</svg>"]) + "\n"


def _legend() -> Iterator[str]:
    for number, (name, colour) in enumerate(_COLOURS.items()):
        left = 16 + 90 * number
        yield f'<rect x="{left}" y="38" width="12" height="12" fill="{colour}"/>'
        yield _text(left + 18, 48, name)


def _panel(metric: str, rows: Sequence[Mapping[str, Any]], top: int) -> Iterator[str]:
    unit = str(rows[0]["unit"])
    good = f"{rows[0]['better']} is better"
    yield _text(16, top + 24, f"{metric} [{unit}], {good}" if unit else f"{metric}, {good}", "h")
    values = [float(v) for row in rows for side in _COLOURS for v in row[side]["samples"]]
    scale = (_WIDTH - _LABEL - _RATIO) / (max(values, default=0.0) or 1.0)
    for number, row in enumerate(rows):
        yield from _row(row, top + _PANEL_HEAD + _ROW * number, scale)


def _row(row: Mapping[str, Any], top: int, scale: float) -> Iterator[str]:
    yield _text(24, top + 16, str(row["scenario"]))
    if row["problems"]:
        yield _text(_LABEL, top + 16, f"does not count: {row['problems'][0]}"[:95], "s")
        return
    end = _LABEL
    for number, (side, colour) in enumerate(_COLOURS.items()):
        samples = [float(value) for value in row[side]["samples"]]
        if samples:
            yield from _bar(samples, top + 2 + (_BAR + 2) * number, scale, colour)
            end = max(end, _LABEL + round(max(samples) * scale))
    yield _text(end + 8, top + 18, _ratio_text(row), "s")


def _bar(samples: Sequence[float], top: int, scale: float, colour: str) -> Iterator[str]:
    length = max(1, round(statistics.median(samples) * scale))
    yield f'<rect x="{_LABEL}" y="{top}" width="{length}" height="{_BAR}" fill="{colour}"/>'
    low, high = (_LABEL + round(value * scale) for value in (min(samples), max(samples)))
    if high > low:
        middle = top + _BAR // 2
        yield f'<line class="w" x1="{low}" y1="{middle}" x2="{high}" y2="{middle}"/>'


def _ratio_text(row: Mapping[str, Any]) -> str:
    medians = "/".join(
        "-" if row[side]["median"] is None else f"{row[side]['median']:.4g}" for side in _COLOURS
    )
    ratio = row["ratio"]
    if not ratio or ratio["high"] is None:
        return medians
    return f"{medians}  x{ratio['estimate']:.2f} ({ratio['low']:.2f}-{ratio['high']:.2f})"


def _text(left: int, top: int, words: str, kind: str = "") -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f'<text x="{left}" y="{top}"{attribute}>{escape(words)}</text>'
