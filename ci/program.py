"""What the programs of the build side share: a parser made of command modules, and one run of a command.

A command module has `register(subparsers, common)`, which adds its parser and sets
`command=function(args, context) -> int` as a default.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn, Protocol

from ci import words
from ci.context import Context
from ci.paths import Layout
from opencoti.commandline import Parser, common_options
from opencoti.console import Console
from opencoti.entry import run_command


class CommandModule(Protocol):
    """A module that owns one command, or a few that belong together."""

    def register(
        self,
        subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
        common: argparse.ArgumentParser,
    ) -> None:
        """Add its parsers."""


def make_parser(program: str, description: str, modules: Iterable[CommandModule]) -> argparse.ArgumentParser:
    """Make the parser of a program with the commands of `modules`."""
    common = common_options()
    parser: argparse.ArgumentParser = Parser(prog=program, description=description)
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True, dest="command_name")
    for module in modules:
        module.register(subparsers, common)
    return parser


def run_program(build: Callable[[], argparse.ArgumentParser], argv: Sequence[str] | None) -> NoReturn:
    """Run the command that `argv` (or the command line) names, and exit with its code."""
    given = list(sys.argv[1:] if argv is None else argv)
    console = Console(quiet="--quiet" in given, as_json="--json" in given)

    def command() -> int:
        parser = build()
        args = parser.parse_args(words.own_words(parser, given))
        return int(args.command(args, Context(layout=Layout.find(), console=console)))

    run_command(command, console, show_traceback="--traceback" in given)
