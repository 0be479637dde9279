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
from opencoti.errors import UsageError
from perf.measure import Report

BENCHES = {
    "startup": "how long the commands take to say something",
    "quickstart": "the main job: nothing changed, and one source file changed",
    "loader": "start-up of an artifact against starting the engine directly",
    "fetch": "downloads beside curl, wget and aria2c; what upgrade, resume and repair move",
    "launch": "the launcher against starting the engine by hand, and its memory",
    "launch_kills": "start and kill engines at random moments (--runs 100); nothing may be left",
    "client": "processor time per streamed token beside the openai package",
    "turns": "tokens computed again in later turns, with prefixes of 2k, 16k and 64k tokens",
    "images": "toolchain images: bytes to download, time of a build, size",
    "backends": "the Vulkan backend with nothing changed, and with one host file changed",
    "package": "packaging and verifying against cp, sync, openssl and zip",
}
_SIZED = ("fetch", "package")


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run one bench and exit."""
    parser = Parser(prog="python -m perf", description=__doc__)
    parser.add_argument(
        "name", choices=BENCHES, help="; ".join(f"{name}: {text}" for name, text in BENCHES.items())
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--runs", type=int, default=7, help="measured runs after one warm-up (default 7)")
    parser.add_argument(
        "--size", type=int, metavar="MIB", help="of what is moved (fetch: 1024, package: 256)"
    )
    given = sys.argv[1:] if argv is None else list(argv)
    console = Console(as_json="--json" in given)

    def command() -> int:
        args = parser.parse_args(given)
        bench = importlib.import_module(f"perf.{args.name}")
        size = {"size_mib": _checked_size(args.name, args.size)} if args.size is not None else {}
        report: Report = bench.run(Context(layout=Layout.find(), console=console), runs=args.runs, **size)
        console.result(report.table(), report.as_dict())
        return 0

    run_command(command, console)


def _checked_size(name: str, size: int) -> int:
    if name not in _SIZED or size < 4:
        raise UsageError(
            "bad-usage",
            f"--size {size} with bench {name}",
            hint=f"4 or more, for {' and '.join(_SIZED)} only",
        )
    return size
