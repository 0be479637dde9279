"""The commands `vendor`, `check`, `reset`, `apply` and `capture`: words, results, JSON."""

from __future__ import annotations

import argparse
import io
import json
from typing import Any

import pytest

from ci.context import Context
from ci.patches import cli as patches_cli
from ci.paths import Layout
from ci.sources import cli as sources_cli
from opencoti.console import Console
from opencoti.errors import OpencotiError
from tests.fakes.source_trees import LINE_TWO, Checkout, make_checkout


@pytest.fixture
def checkout(layout: Layout) -> Checkout:
    checkout = make_checkout(layout)
    checkout.add_patch("0001-two.patch", LINE_TWO)
    return checkout


def run(checkout: Checkout, *words: str, as_json: bool = False) -> str:
    parser = argparse.ArgumentParser()
    subparsers = parser.add_subparsers()
    for module in (sources_cli, patches_cli):
        module.register(subparsers, argparse.ArgumentParser(add_help=False))
    out = io.StringIO()
    console = Console(as_json=as_json, stdout=out, stderr=io.StringIO())
    args = parser.parse_args(words)
    assert args.command(args, Context(layout=checkout.layout, console=console)) == 0
    return out.getvalue()


def data(checkout: Checkout, *words: str) -> Any:
    return json.loads(run(checkout, *words, as_json=True))


def test_results_are_paths(checkout: Checkout) -> None:
    assert run(checkout, "vendor") == f"{checkout.layout.sources / 'llama.cpp'}\n"
    assert run(checkout, "apply") == f"{checkout.tree}\n"
    assert run(checkout, "reset", "--lane", "elf") == f"{checkout.tree}\n"


def test_check_prints_pin_tree_and_series(checkout: Checkout) -> None:
    assert "tree:    missing" in run(checkout, "check")
    run(checkout, "apply")
    text = run(checkout, "check")
    assert "pin:     llama.cpp 1.0-gc0ffee0" in text
    assert "tree:    clean" in text
    assert "0001-two.patch  Two" in text
    report = data(checkout, "check")
    assert (report["state"], report["invalid"], report["offsets"]) == ("clean", [], [])


def test_json_of_apply_and_vendor_agree(checkout: Checkout) -> None:
    applied, vendored = data(checkout, "apply", "--record"), data(checkout, "vendor", "--offline")
    assert applied["base_tree"] == vendored["tree"]
    (patch,) = applied["patches"]
    assert (patch["name"], patch["tree"], patch["commit"]) == (
        "0001-two.patch",
        applied["tree"],
        applied["commit"],
    )


def test_capture_prints_the_patch(checkout: Checkout) -> None:
    run(checkout, "apply")
    (checkout.tree / "new.cpp").write_text("int n;\n")
    assert run(checkout, "capture", "0002-new") == f"{checkout.series / '0002-new.patch'}\n"
    (checkout.tree / "new.cpp").write_text("int m;\n")
    assert data(checkout, "capture", "0002-new", "--replace")["patches"][1]["name"] == "0002-new.patch"


@pytest.mark.parametrize(
    ("lane", "error_id", "code"), [("ape", "lane-missing", 4), ("elv", "unknown-lane", 2)]
)
def test_lane_without_a_source_is_an_error(checkout: Checkout, lane: str, error_id: str, code: int) -> None:
    for command in (["vendor"], ["check"], ["apply"], ["reset"], ["capture", "0002-x"]):
        with pytest.raises(OpencotiError) as caught:
            run(checkout, *command, "--lane", lane)
        assert (caught.value.error_id, caught.value.exit_code) == (error_id, code)


def test_lane_comes_from_the_environment(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENCOTI_LANE", "ape")
    with pytest.raises(OpencotiError) as caught:
        run(checkout, "apply")
    assert caught.value.error_id == "lane-missing"
