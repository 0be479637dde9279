"""Run one bench by name and print its table."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import NoReturn

from ci.context import Context
from ci.paths import Layout
from opencoti.commandline import Parser
from opencoti.console import Console
from opencoti.entry import run_command
from perf.measure import Report

BENCHES = {
    "startup": "how long the commands take to say something",
    "quickstart": "the main job: nothing changed, and one source file changed",
    "loader": "start-up of an artifact against starting the engine directly",
}


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run one bench and exit."""
    parser = Parser(prog="python -m perf", description=__doc__)
    parser.add_argument(
        "name", choices=BENCHES, help="; ".join(f"{name}: {text}" for name, text in BENCHES.items())
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--runs", type=int, default=7, help="measured runs after one warm-up (default 7)")
    given = sys.argv[1:] if argv is None else list(argv)
    console = Console(as_json="--json" in given)

    def command() -> int:
        args = parser.parse_args(given)
        bench = importlib.import_module(f"perf.{args.name}")
        report: Report = bench.run(Context(layout=Layout.find(), console=console), runs=args.runs)
        console.result(report.table(), report.as_dict())
        return 0

    run_command(command, console)
