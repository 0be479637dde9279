"""The command line of the release side: one parser, one module per group of commands.

Only the parsers are built at start.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from typing import NoReturn

from ci.program import CommandModule, make_parser, run_program
from release import root_cli, sbom_cli, sign_cli, sums_cli

_MODULES: tuple[CommandModule, ...] = (sign_cli, sums_cli, root_cli, sbom_cli)


def build_parser() -> ArgumentParser:
    """Make the parser of all commands."""
    return make_parser("python -m release", "Sign and publish the opencoti engine.", _MODULES)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit with its code."""
    run_program(build_parser, argv)
