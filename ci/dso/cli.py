"""`python -m ci inspect DSO… [--json]`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ci.context import Context


def register(subparsers: Any, common: argparse.ArgumentParser) -> None:
    """Add the command `inspect`."""
    parser = subparsers.add_parser(
        "inspect",
        parents=[common],
        help="show what executables and libraries need, offer and give away",
        description="Show what ELF files need, offer and give away. Files of the engine, known by their "
        "name, are compared with what they must be: exit code 6 when one differs.",
    )
    parser.add_argument("files", type=Path, nargs="+", metavar="DSO", help="an executable or a shared object")
    parser.add_argument(
        "--prefix",
        action="append",
        default=[],
        metavar="DIR",
        help="report strings that start with this folder, besides the usual ones of build machines",
    )
    parser.set_defaults(command=run)


def run(args: argparse.Namespace, context: Context) -> int:
    """Inspect, print, and return 0 or 6."""
    from ci.dso.elf import BUILD_PREFIXES, inspect_elf
    from ci.dso.report import as_dict, as_text
    from ci.dso.rules import check_elf, role_of, rules_for
    from opencoti.errors import VerificationError

    prefixes = (*BUILD_PREFIXES, *args.prefix)
    inspected = []
    for path in args.files:
        facts = inspect_elf(path, build_prefixes=prefixes)
        role = role_of(path.name)
        inspected.append((facts, check_elf(facts, rules_for(role)) if role else []))
    context.console.result(
        "\n".join(as_text(facts, problems) for facts, problems in inspected),
        [as_dict(facts, problems) for facts, problems in inspected],
    )
    return VerificationError.exit_code if any(problems for _, problems in inspected) else 0
