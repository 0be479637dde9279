"""The command line of the build side: one parser, one module per command.

A command module has `register(subparsers, common)`, which adds its parser and sets
`command=function(args, context) -> int` as a default. Only the parsers are built at start; what a command
needs is imported when it runs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

from ci import (
    build_cli,
    docs_cli,
    doctor,
    words,
)
from ci.context import Context
from ci.dso import cli as dso_cli
from ci.package import cli as package_cli
from ci.package import cli_embed
from ci.patches import cli as patches_cli
from ci.paths import Layout
from ci.smoke import cli as smoke_cli
from ci.sources import cli as sources_cli
from ci.toolchains import cli as toolchains_cli
from ci.verify import cli as verify_cli
from opencoti.commandline import Parser
from opencoti.console import Console
from opencoti.entry import run_command

_MODULES = (
    sources_cli,
    patches_cli,
    toolchains_cli,
    build_cli,
    package_cli,
    cli_embed,
    verify_cli,
    dso_cli,
    smoke_cli,
    doctor,
    docs_cli,
)


def build_parser() -> Parser:
    """Make the parser of all commands."""
    common = Parser(add_help=False)
    common.add_argument("--json", action="store_true", help="print results and errors as JSON")
    common.add_argument("--quiet", action="store_true", help="no progress, only results and problems")
    common.add_argument("--traceback", action="store_true", help="show the traceback of an unexpected error")
    parser = Parser(prog="python -m ci", description="Build, package and prove the opencoti engine.")
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
