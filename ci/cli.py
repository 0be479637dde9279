"""The command line of the build side: one parser, one module per command.

Only the parsers are built at start; what a command needs is imported when it runs.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from typing import NoReturn

from ci import (
    build_cli,
    docs_cli,
    doctor,
    workflows_cli,
)
from ci.dso import cli as dso_cli
from ci.package import cli as package_cli
from ci.package import cli_embed
from ci.patches import cli as patches_cli
from ci.patches import rebase_cli
from ci.program import CommandModule, make_parser, run_program
from ci.smoke import cli as smoke_cli
from ci.sources import cli as sources_cli
from ci.toolchains import cli as toolchains_cli
from ci.verify import cli as verify_cli

_MODULES: tuple[CommandModule, ...] = (
    sources_cli,
    patches_cli,
    rebase_cli,
    toolchains_cli,
    build_cli,
    package_cli,
    cli_embed,
    verify_cli,
    dso_cli,
    smoke_cli,
    doctor,
    docs_cli,
    workflows_cli,
)


def build_parser() -> ArgumentParser:
    """Make the parser of all commands."""
    return make_parser("python -m ci", "Build, package and prove the opencoti engine.", _MODULES)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit with its code."""
    run_program(build_parser, argv)
