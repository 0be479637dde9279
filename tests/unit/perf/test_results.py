"""Tables, plots and baselines of benches: what is shown, what is kept, what is refused (case B59)."""

from __future__ import annotations

import io
import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from ci.context import Context
from ci.paths import Layout
from opencoti.console import Console
from opencoti.errors import OpencotiError
from perf.baselines import MAX_RUNS, accept, baseline_path, judged, load_baseline
from perf.cli import conclude, make_parser
from perf.plot import render
from perf.results import PairedReport, Row

KEY = {"bench": "turn2", "device": "cpu x", "driver": "6.1", "models": "tiny 1234", "flags": ""}
STEADY = (1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 1.01)


def timing(ours: tuple[float, ...] = STEADY, **changes: object) -> Row:
    row = Row(
        scenario="4 sessions",
        metric="first token",
        unit="s",
        is_timing=True,
        stock=tuple(2 * value for value in STEADY[: len(ours)]),
        ours=ours,
    )
    return replace(row, **changes)  # type: ignore[arg-type]


LOST = Row(
    scenario="4 <sessions>",
    metric="tokens computed again",
    unit="tokens",
    stock=(2061.0, 2110.0, 2070.0),
    ours=(20.0, 20.0, 12.0),
)


def report(*rows: Row) -> PairedReport:
    return PairedReport(title="turn 2 & later", rows=rows, facts={"device": "cpu x"}, key=KEY, notes=("n",))


def test_table_shows_medians_ratio_and_verdict() -> None:
    text = report(timing(), LOST).table()
    assert "0.50 (0.50 to 0.50)" in text
    assert "better" in text
    assert "2070 (max 2110)" in text
    assert text.splitlines()[0] == "turn 2 & later"
    assert "  device: cpu x" in text
    assert "  1 ratios with bounds of 95%: about 0.1 differ by chance alone" in text


def test_markdown_is_one_table_whose_cells_cannot_break_it() -> None:
    text = report(replace(LOST, scenario="a | b")).markdown()
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert lines[0] == "| scenario | figure | stock | ours | ours / stock |  |"
    assert lines[1] == "| --- | --- | --- | --- | --- | --- |"
    assert lines[2].startswith("| a \\| b | tokens computed again [tokens] | 2070 (max 2110) |")
    assert "- device: cpu x" in text


def test_row_that_does_not_count_has_no_figures_and_no_ratio() -> None:
    row = timing(problems=("ours: the answer has 3 tokens, 8 were asked for",))
    assert row.ratio is None
    assert row.cells()[2:4] == ("-", "-")
    assert row.verdict == "does not count: ours: the answer has 3 tokens, 8 were asked for"
    assert not report(row).is_valid
    assert "does not count" in render(report(row).as_dict())


@pytest.mark.parametrize(
    ("ours", "better", "verdict"),
    [
        (tuple(v * 2.5 for v in STEADY), "lower", "worse"),
        (tuple(v * 2.5 for v in STEADY), "higher", "better"),
        (tuple(2 * v for v in reversed(STEADY)), "lower", "no difference that is certain"),
        ((1.0, 1.0), "lower", "no difference that is certain"),
    ],
)
def test_verdict_needs_certainty_and_knows_the_direction(
    ours: tuple[float, ...], better: str, verdict: str
) -> None:
    assert timing(ours, better=better).verdict == verdict


def test_plot_is_valid_svg_with_a_bar_per_side_and_no_reference_elsewhere() -> None:
    data = json.loads(json.dumps(report(timing(), LOST).as_dict()))
    text = render(data)
    assert text == render(data)
    root = ET.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    bars = [rect for rect in root.iter(f"{space}rect") if rect.get("height") == "11"]
    assert len(bars) == 4
    widths = [int(bar.get("width", "0")) for bar in bars]
    assert widths[0] == pytest.approx(2 * widths[1], abs=2)  # first panel: 2 s beside 1 s
    assert widths[2] > 90 * widths[3]  # second panel: 2070 beside 20 tokens
    texts = [element.text or "" for element in root.iter(f"{space}text")]
    assert "4 <sessions>" in texts
    assert "first token [s], lower is better" in texts
    assert any("x0.50 (0.50-0.50)" in item for item in texts)
    assert "href" not in text


def test_empty_report_can_be_drawn_and_shown() -> None:
    empty = report()
    ET.fromstring(render(empty.as_dict()))
    assert "turn 2 & later" in empty.table()


def learned(folder: Path, runs: int = 3) -> None:
    for _ in range(runs):
        accept(folder, load_baseline(folder, KEY), judged(report(timing()), load_baseline(folder, KEY)))


def verdict(folder: Path, factor: float) -> str:
    found = judged(report(timing(tuple(factor * v for v in STEADY))), load_baseline(folder, KEY))
    assert found.rows[0].judgement is not None
    return found.rows[0].judgement.verdict


def test_baseline_learns_then_judges_case_b59(tmp_path: Path) -> None:
    assert verdict(tmp_path, 3.0) == "learning"
    learned(tmp_path)
    assert [verdict(tmp_path, factor) for factor in (1.0, 1.3, 0.7)] == ["pass", "slower", "faster"]


def test_baseline_is_of_one_device_model_and_flags_only_case_b59(tmp_path: Path) -> None:
    learned(tmp_path)
    for name in KEY:
        if name != "bench":
            assert load_baseline(tmp_path, KEY | {name: "other"}).runs == ()
    path = baseline_path(tmp_path, KEY)
    other = KEY | {"device": "cpu y"}
    path.rename(baseline_path(tmp_path, other))
    with pytest.raises(OpencotiError) as caught:
        load_baseline(tmp_path, other)
    assert caught.value.error_id == "baseline-malformed"


@pytest.mark.parametrize(
    "row",
    [
        timing(tuple(1.4 * v for v in STEADY)),
        timing(tuple(0.6 * v for v in STEADY)),
        timing(problems=("cached",)),
    ],
    ids=["slower", "faster", "invalid"],
)
def test_failing_lucky_and_invalid_runs_never_change_the_baseline_case_b59(tmp_path: Path, row: Row) -> None:
    learned(tmp_path)
    before = baseline_path(tmp_path, KEY).read_bytes()
    baseline = load_baseline(tmp_path, KEY)
    with pytest.raises(OpencotiError) as caught:
        accept(tmp_path, baseline, judged(report(row), baseline))
    assert (caught.value.error_id, caught.value.exit_code) == ("baseline-refused", 6)
    assert baseline_path(tmp_path, KEY).read_bytes() == before


def test_run_that_is_meant_to_be_faster_starts_the_baseline_anew(tmp_path: Path) -> None:
    learned(tmp_path)
    baseline = load_baseline(tmp_path, KEY)
    faster = judged(report(timing(tuple(0.6 * v for v in STEADY))), baseline)
    assert len(accept(tmp_path, baseline, faster, is_forced=True).runs) == 1
    slower = judged(report(timing(tuple(1.4 * v for v in STEADY))), baseline)
    with pytest.raises(OpencotiError):
        accept(tmp_path, baseline, slower, is_forced=True)


def concluded(layout: Layout, factor: float, *words: str) -> str:
    args = make_parser().parse_args(["turn2", *words])
    out = io.StringIO()
    context = Context(layout=layout, console=Console(stdout=out, stderr=io.StringIO()))
    conclude(args, context, report(timing(tuple(factor * value for value in STEADY))))
    return out.getvalue()


def test_gate_ends_with_6_on_a_loss_and_shows_the_table_first_case_b59(
    layout: Layout, tmp_path: Path
) -> None:
    folder = ("--baselines", str(tmp_path / "kept"))
    for _ in range(3):
        concluded(layout, 1.0, *folder, "--accept", "--gate")
    assert "gate, 4 sessions | first token: pass" in concluded(layout, 1.0, *folder)
    before = [path.read_bytes() for path in (tmp_path / "kept").iterdir()]
    plot = tmp_path / "plot.svg"
    with pytest.raises(OpencotiError) as caught:
        concluded(layout, 1.4, *folder, "--gate", "--accept", "--plot", str(plot))
    assert (caught.value.error_id, caught.value.exit_code) == ("perf-slower", 6)
    assert "4 sessions | first token: 1.4" in caught.value.why
    assert plot.read_text().startswith("<svg")
    assert [path.read_bytes() for path in (tmp_path / "kept").iterdir()] == before


def test_baseline_keeps_the_newest_runs(tmp_path: Path) -> None:
    learned(tmp_path, MAX_RUNS + 2)
    assert len(load_baseline(tmp_path, KEY).runs) == MAX_RUNS


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": "x"}', '{"schema": "opencoti.perf-baseline/1"}'])
def test_damaged_baseline_is_said_and_not_used(tmp_path: Path, text: str) -> None:
    baseline_path(tmp_path, KEY).write_text(text)
    with pytest.raises(OpencotiError) as caught:
        load_baseline(tmp_path, KEY)
    assert caught.value.exit_code == 3
