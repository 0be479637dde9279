"""The benches of two servers, from the command line to the report, on stand-ins and on the real engine."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from ci.context import Context
from ci.paths import Layout
from ci.pins import SourcePin
from ci.sources.lanes import find_lane
from opencoti.console import Console
from opencoti.errors import OpencotiError
from perf.cli import make_parser, run_paired
from perf.sides import default_server
from tests.conftest import require
from tests.fakes.bench_server import Kind, write_server


def bench(layout: Layout, *words: str) -> dict[str, Any]:
    """Run a bench with its files under the layout; return its JSON."""
    out = io.StringIO()
    console = Console(as_json=True, stdout=out, stderr=io.StringIO())
    run_paired(make_parser().parse_args(words), Context(layout=layout, console=console))
    data: dict[str, Any] = json.loads(out.getvalue())
    return data


@pytest.fixture
def faked(layout: Layout, real_layout: Layout) -> Layout:
    """A layout that has pin and vocabulary of the real one, and a build folder of its own."""
    layout.pins.parent.mkdir()
    layout.pins.symlink_to(real_layout.pins)
    layout.sources.symlink_to(real_layout.sources)
    return Layout(root=layout.root, cache=real_layout.cache)


def words(folder: Path, name: str, *, stock: Kind = "stock", ours: Kind = "sessions") -> list[str]:
    servers = {"--stock": stock, "--server": ours}
    pairs = [
        word
        for option, kind in servers.items()
        for word in (option, str(write_server(folder / option / kind, kind)))
    ]
    return [name, *pairs, "--runs", "1"]


TURN2 = ("--tokens", "400", "--sessions", "2", "--shares", "75")


def rows(data: dict[str, Any], metric: str) -> dict[str, Any]:
    return {row["scenario"]: row for row in data["rows"] if row["metric"] == metric}


def test_turn2_shows_what_sessions_save_and_that_they_outlive_a_restart(
    faked: Layout, tmp_path: Path
) -> None:
    files = {name: tmp_path / f"report.{name}" for name in ("json", "svg", "md")}
    data = bench(
        faked,
        *words(tmp_path, "turn2"),
        *TURN2,
        *("--out", str(files["json"]), "--plot", str(files["svg"]), "--markdown", str(files["md"])),
    )
    assert data["is_valid"]
    again = rows(data, "tokens computed again, turn 2 and later")["2 sessions on 4 slots, 75 % shared"]
    assert 95 <= again["stock"]["median"] <= 105  # its own quarter of 400, thrown out by the other session
    assert again["ours"]["samples"] == [0, 0]
    after = rows(data, "tokens computed again, after a restart")["2 sessions on 4 slots, 75 % shared"]
    assert after["stock"]["samples"][0] > 390
    assert after["ours"]["samples"] == [0, 0]
    assert data["notes"] == ["the server under test offers no lazy slots"]
    assert json.loads(files["json"].read_text()) == data
    assert files["svg"].read_text().startswith("<svg")
    assert "| 2 sessions on 4 slots, 75 % shared |" in files["md"].read_text()
    assert not list((faked.build).glob("perf-sessions-*"))


def test_server_without_sessions_is_measured_and_said(faked: Layout, tmp_path: Path) -> None:
    data = bench(faked, *words(tmp_path, "turn2", ours="stock"), *TURN2)
    assert "the server under test offers no sessions" in data["notes"]
    again = rows(data, "tokens computed again, turn 2 and later")["2 sessions on 4 slots, 75 % shared"]
    assert again["ours"]["samples"] == again["stock"]["samples"]
    assert data["facts"]["ours server"].startswith("x1, patch set stock, sha256 ")
    assert "both servers are the same file: whatever differs is noise" in data["notes"]


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("counts-cached", "the counts contradict each other"),
        ("ends-early", "the answer has 1 tokens, 8 were asked for"),
        ("knows-too-much", "tokens are said to be reused, and at most 0 were sent before"),
        ("fast-clock", "the server says it took 1000.000 s"),
    ],
)
def test_server_that_lies_gets_no_figures(faked: Layout, tmp_path: Path, kind: Kind, says: str) -> None:
    data = bench(faked, *words(tmp_path, "turn2", ours=kind), *TURN2)
    assert not data["is_valid"]
    assert all(says in row["problems"][0] and row["ratio"] is None for row in data["rows"])
    assert all(row["problems"][0].startswith("ours: ") for row in data["rows"])


def test_template_that_rewrites_history_is_told_with_the_place_case_b57(
    faked: Layout, tmp_path: Path
) -> None:
    data = bench(faked, *words(tmp_path, "turn2", ours="rewrites"), *TURN2)
    assert all(
        "prefix not stable: the prompts differ from character" in row["problems"][0] for row in data["rows"]
    )
    assert all(row["ratio"] is None for row in data["rows"])


def test_bigctx_and_slots_run_on_servers_that_offer_less(faked: Layout, tmp_path: Path) -> None:
    data = bench(faked, *words(tmp_path, "bigctx", ours="stock"), "--tokens", "300")
    assert data["is_valid"]
    assert rows(data, "answers that differ from stock's")["tiny, 0k"]["ours"]["samples"] == [0]
    pairs = {row["metric"]: len(row["ours"]["samples"]) for row in data["rows"]}
    assert (pairs["prefill"], pairs["prefill at depth"], pairs["decoding at depth"]) == (1, 8, 8)
    data = bench(faked, *words(tmp_path, "slots", ours="stock"), "--tokens", "2k")
    assert data["facts"]["small slots"] == "not offered"
    assert {row["scenario"] for row in data["rows"]} == {"as it starts"}


@pytest.mark.parametrize(
    ("stock", "ours", "error_id"),
    [("stock", "other-pin", "perf-other-pin"), ("stock", "no-help", "bench-command-failed")],
)
def test_servers_that_cannot_be_compared_are_refused(
    faked: Layout, tmp_path: Path, stock: Kind, ours: Kind, error_id: str
) -> None:
    with pytest.raises(OpencotiError) as caught:
        bench(faked, *words(tmp_path, "turn2", stock=stock, ours=ours), *TURN2)
    assert (caught.value.error_id, caught.value.exit_code) == (error_id, 5)


def test_missing_stock_server_is_said_with_the_command_that_makes_it(faked: Layout, tmp_path: Path) -> None:
    server = write_server(tmp_path / "ours", "stock")
    with pytest.raises(OpencotiError) as caught:
        bench(faked, "turn2", "--server", str(server))
    assert caught.value.error_id == "perf-no-server"
    assert caught.value.hint == "python -m ci build cpu --series-until 0003"


@pytest.mark.parametrize(
    "words",
    [
        ("turn2", "--tokens", "8kk"),
        ("turn2", "--sessions", "0"),
        ("turn2", "--size", "8"),
        ("turn2", "--tokens", "²"),
    ],
)
def test_words_that_mean_nothing_are_refused(faked: Layout, words: tuple[str, ...]) -> None:
    with pytest.raises(OpencotiError) as caught:
        bench(faked, *words)
    assert caught.value.exit_code == 2


def test_gate_learns_from_accepted_runs(faked: Layout, tmp_path: Path) -> None:
    given = [*words(tmp_path, "turn2"), *TURN2, "--baselines", str(tmp_path / "baselines"), "--accept"]
    bench(faked, *given)
    (path,) = (tmp_path / "baselines").iterdir()
    assert len(json.loads(path.read_text())["runs"]) == 1
    data = bench(faked, *given, "--gate")
    assert {row["gate"]["verdict"] for row in data["rows"] if row["unit"] == "s"} == {"learning"}


@pytest.mark.engine
def test_real_server_answers_both_sides_case_b57(real_layout: Layout) -> None:
    pin = SourcePin.load(find_lane(real_layout, "elf").pin)
    server = default_server(real_layout, pin, is_stock=False)
    require(server.is_file(), "no server in dist/backends/cpu: run ./noxw -s quickstart")
    given = ("turn2", "--server", str(server), "--stock", str(server), "--tokens", "200", "--sessions", "1")
    data = bench(real_layout, *given, "--runs", "1", "--shares", "75")
    assert data["is_valid"], [row["problems"] for row in data["rows"]]
    again = rows(data, "tokens computed again, turn 2 and later")["1 sessions on 4 slots, 75 % shared"]
    assert max(again["stock"]["samples"]) <= 4
