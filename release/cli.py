"""The command line of the release side: one parser, one module per group of commands.

A command module has `register(subparsers, common)`, which adds its parsers and sets
`command=function(args, context) -> int` as a default. Only the parsers are built at start.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from ci import words
from ci.context import Context
from ci.paths import Layout
from opencoti.console import Console
from opencoti.entry import run_command
from opencoti.errors import UsageError
from release import root_cli, sbom_cli, sign_cli, sums_cli

_MODULES = (sign_cli, sums_cli, root_cli, sbom_cli)


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are ours, and which never guesses abbreviated options."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **{**kwargs, "allow_abbrev": False})  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        """Raise instead of exiting, so that usage errors look like all others."""
        raise UsageError("bad-usage", message, hint=f"see `{self.prog} --help`")


def build_parser() -> Parser:
    """Make the parser of all commands."""
    common = Parser(add_help=False)
    common.add_argument("--json", action="store_true", help="print results and errors as JSON")
    common.add_argument("--quiet", action="store_true", help="no progress, only results and problems")
    common.add_argument("--traceback", action="store_true", help="show the traceback of an unexpected error")
    parser = Parser(prog="python -m release", description="Sign and publish the opencoti engine.")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True, dest="command_name")
    for module in _MODULES:
        module.register(subparsers, common)
    return parser


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit with its code."""
    given = list(sys.argv[1:] if argv is None else argv)
    console = Console(quiet="--quiet" in given, as_json="--json" in given)

    def command() -> int:
        parser = build_parser()
        args = parser.parse_args(words.own_words(parser, given))
        result = args.command(args, Context(layout=Layout.find(), console=console))
        return int(result)

    run_command(command, console, show_traceback="--traceback" in given)
