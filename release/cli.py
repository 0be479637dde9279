"""The command line of the release side: one parser, one module per group of commands.

Only the parsers are built at start.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from typing import NoReturn

from ci.program import CommandModule, make_parser, run_program
from release import publish_cli, root_cli, sbom_cli, sign_cli, sums_cli
from release.checking import cli as checking_cli
from release.notes import cli as notes_cli
from release.planning import cli as planning_cli
from release.postrelease import cli as postrelease_cli
from release.provenance import cli as provenance_cli
from release.staging import cli as staging_cli

_MODULES: tuple[CommandModule, ...] = (
    planning_cli,
    staging_cli,
    publish_cli,
    notes_cli,
    provenance_cli,
    checking_cli,
    postrelease_cli,
    sign_cli,
    sums_cli,
    root_cli,
    sbom_cli,
)


def build_parser() -> ArgumentParser:
    """Make the parser of all commands."""
    return make_parser("python -m release", "Sign and publish the opencoti engine.", _MODULES)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit with its code."""
    run_program(build_parser, argv)
