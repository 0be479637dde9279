"""Run one bench by name and print its table."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ci.context import Context
from ci.paths import Layout
from opencoti.commandline import Parser
from opencoti.console import Console
from opencoti.entry import run_command
from opencoti.errors import UsageError, VerificationError
from opencoti.files import write_atomic
from perf.measure import Report

if TYPE_CHECKING:
    from perf.results import PairedReport

BENCHES = {
    "startup": "how long the commands take to say something",
    "quickstart": "the main job: nothing changed, and one source file changed",
    "loader": "start-up of an artifact against its engine, and its first start against a copy",
    "fetch": "downloads beside curl, wget and aria2c; what upgrade, resume and repair move",
    "chunks": "what an upgrade moves, for pieces of several sizes, fixed and by content",
    "launch": "the launcher against starting the engine by hand, and its memory",
    "launch_kills": "start and kill engines at random moments (--runs 100); nothing may be left",
    "client": "processor time per streamed token beside the openai package",
    "turns": "tokens computed again in later turns, with prefixes of 2k, 16k and 64k tokens",
    "turn2": "turn 2 and later of many sessions, and after a restart: stock server against ours",
    "bigctx": "prefill, decoding and the next turn at 8k, 32k and 64k tokens: stock against ours",
    "slots": "memory of slots at the start, full and idle: stock against ours",
    "images": "toolchain images: bytes to download, time of a build, size",
    "backends": "the Vulkan backend with nothing changed, and with one host file changed",
    "package": "packaging and verifying against cp, sync, openssl and zip",
}
_SIZED: Final = ("fetch", "loader", "package")
_LONG: Final = ("turns",)
PAIRED: Final = ("turn2", "bigctx", "slots")
_BASELINES: Final = Path("perf") / "baselines"
_KIBI: Final = {"k": 1000, "": 1}


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of all benches."""
    parser = Parser(prog="python -m perf", description=__doc__)
    parser.add_argument(
        "name", choices=BENCHES, help="; ".join(f"{name}: {text}" for name, text in BENCHES.items())
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the report as JSON here as well")
    parser.add_argument("--runs", type=int, default=7, help="measured runs after one warm-up (default 7)")
    parser.add_argument(
        "--size", type=int, metavar="MIB", help="of what is moved (fetch: 1024, loader: 10, package: 256)"
    )
    _add_paired(parser.add_argument_group(f"two servers ({', '.join(PAIRED)})"))
    return parser


def _add_paired(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--server", type=Path, metavar="PATH", help="llama-server to look at (default: the built one)"
    )
    group.add_argument(
        "--stock",
        type=Path,
        metavar="PATH",
        help="llama-server to compare with (default: that of `python -m ci build cpu --series-until 0003`)",
    )
    group.add_argument("--backend", default="cpu", metavar="NAME", help="what both compute on (default: cpu)")
    group.add_argument(
        "--backend-library", type=Path, metavar="PATH", help="its library (default: the built one)"
    )
    group.add_argument("--models", default="tiny", metavar="LIST", help="tiny, wide (default: tiny)")
    group.add_argument(
        "--tokens",
        default="",
        metavar="LIST",
        help="context lengths such as 8k,32k (default: the bench's own)",
    )
    group.add_argument(
        "--shares", default="", metavar="LIST", help="percent in common, of turn2 (default: 50,75,97)"
    )
    group.add_argument("--sessions", default="", metavar="LIST", help="of turn2 (default: 2,4,8,16)")
    group.add_argument(
        "--threads", type=int, default=0, metavar="N", help="of each server (default: its own)"
    )
    group.add_argument("--plot", type=Path, metavar="FILE", help="draw the report as SVG")
    group.add_argument("--markdown", type=Path, metavar="FILE", help="write the report as a Markdown table")
    group.add_argument(
        "--baselines", type=Path, default=_BASELINES, metavar="DIR", help="where baselines are kept"
    )
    group.add_argument("--gate", action="store_true", help="fail if slower than the baseline")
    group.add_argument("--accept", action="store_true", help="add this run to the baseline")
    group.add_argument(
        "--accept-faster", action="store_true", help="start the baseline anew with this run, which is faster"
    )


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run one bench and exit."""
    parser = make_parser()
    given = list(sys.argv[1:] if argv is None else argv)
    console = Console(as_json="--json" in given)

    def command() -> int:
        args = parser.parse_args(given)
        context = Context(layout=Layout.find(), console=console)
        run_paired(args, context) if args.name in PAIRED else _run_plain(args, context)
        return 0

    run_command(command, console)


def _run_plain(args: argparse.Namespace, context: Context) -> None:
    bench = importlib.import_module(f"perf.{args.name}")
    size = {"size_mib": _checked_size(args.name, args.size)} if args.size is not None else {}
    # One that takes long writes its report as it goes.
    keep = {"keep": lambda part: _write_json(args.out, part.as_dict())} if args.name in _LONG else {}
    report: Report = bench.run(context, runs=args.runs, **size, **keep)
    _write_json(args.out, report.as_dict())
    context.console.result(report.table(), report.as_dict())


def run_paired(args: argparse.Namespace, context: Context) -> None:
    """Run a bench of two servers, and conclude.

    Raises:
        OpencotiError: those of the bench and of `conclude`.
    """
    _checked_size(args.name, args.size)
    bench = importlib.import_module(f"perf.{args.name}")

    def keep(part: PairedReport) -> None:
        _write_json(args.out, part.as_dict())

    conclude(args, context, bench.run(context, paired_options(args), keep=keep))


def conclude(args: argparse.Namespace, context: Context, report: PairedReport) -> None:
    """Judge a report by its baseline, show it, and keep what is to be kept.

    Raises:
        VerificationError: `perf-slower`, with --gate; `baseline-refused`.
        StorageError: a file cannot be written.
    """
    from perf.baselines import accept, judged, load_baseline

    folder = context.layout.root / args.baselines
    baseline = load_baseline(folder, report.key)
    report = judged(report, baseline) if args.gate or args.accept or baseline.runs else report
    _show(args, context, report)
    if args.gate and report.failures:
        raise VerificationError(
            "perf-slower",
            f"{len(report.failures)} figures of {args.name} are worse than the baseline",
            why="; ".join(f"{row.key}: {row.judgement.why}" for row in report.failures[:3] if row.judgement),
            hint="run it again on a quiet machine; if it stays, find the change that did it",
        )
    if args.accept or args.accept_faster:
        accept(folder, baseline, report, is_forced=args.accept_faster)


def _show(args: argparse.Namespace, context: Context, report: PairedReport) -> None:
    data = report.as_dict()
    _write_json(args.out, data)
    if args.markdown:
        write_atomic(args.markdown, report.markdown().encode())
    if args.plot:
        from perf.plot import render

        write_atomic(args.plot, render(data).encode())
    context.console.result(report.table(), data)


def paired_options(args: argparse.Namespace) -> Any:
    """Return the options of a bench of two servers.

    Raises:
        UsageError: `bad-usage`.
    """
    from perf.paired import PairedOptions

    return PairedOptions(
        server=args.server,
        stock=args.stock,
        backend=args.backend,
        library=args.backend_library,
        models=tuple(args.models.split(",")),
        contexts=_numbers("--tokens", args.tokens),
        sessions=_numbers("--sessions", args.sessions),
        shares=_numbers("--shares", args.shares),
        runs=args.runs,
        threads=args.threads,
    )


def _numbers(option: str, words: str) -> tuple[int, ...]:
    """Read `8k,32k,100`."""
    found = []
    for word in filter(None, words.split(",")):
        digits = word.removesuffix("k")
        if not (digits.isascii() and digits.isdecimal() and int(digits)):
            raise UsageError("bad-usage", f"{option} {words!r}", hint="numbers such as 8k,32k or 2,4,8")
        found.append(int(digits) * _KIBI["k" if word.endswith("k") else ""])
    return tuple(found)


def _write_json(path: Path | None, data: object) -> None:
    if path is not None:
        write_atomic(path, (json.dumps(data, indent=1) + "\n").encode())


def _checked_size(name: str, size: int | None) -> int:
    if size is None:
        return 0
    if name not in _SIZED or size < 4:
        raise UsageError(
            "bad-usage",
            f"--size {size} with bench {name}",
            hint=f"4 or more, for {' and '.join(_SIZED)} only",
        )
    return size
