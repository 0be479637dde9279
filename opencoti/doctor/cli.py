"""The command line of `python -m opencoti.doctor`. Only the standard library is loaded to parse it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from opencoti.commandline import Parser, common_options
from opencoti.console import Console
from opencoti.entry import run_command


def build_parser() -> Parser:
    """Make the parser."""
    parser = Parser(
        prog="python -m opencoti.doctor",
        parents=[common_options()],
        description="What this machine has for running the engine, what would be used, and what to fix.",
        epilog="Exit code 0: the engine can be used. Otherwise the code of what is wrong first: 4 missing, "
        "6 not to be trusted, 8 a folder cannot be used.",
    )
    parser.add_argument("--binary", type=Path, metavar="FILE", help="look at this engine")
    parser.add_argument("--no-try", action="store_true", help="do not start the engine once")
    return parser


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Examine this machine and exit with the code of the result."""
    given = list(sys.argv[1:] if argv is None else argv)
    console = Console(quiet="--quiet" in given, as_json="--json" in given)

    def command() -> int:
        args = build_parser().parse_args(given)
        from opencoti.doctor.examination import examine

        result = examine(binary=args.binary, allow_try=not args.no_try)
        console.result(result.as_text(), result.as_dict())
        return result.exit_code

    run_command(command, console, show_traceback="--traceback" in given)
