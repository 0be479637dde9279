"""`python -m ci inspect DSO… [--json]`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ci.context import Context

if TYPE_CHECKING:
    from ci.dso.elf import ElfFacts
    from ci.dso.rules import Rules
    from ci.toolchains.table import Backend


def register(subparsers: Any, common: argparse.ArgumentParser) -> None:
    """Add the command `inspect`."""
    parser = subparsers.add_parser(
        "inspect",
        parents=[common],
        help="show what executables and libraries need, offer and give away",
        description="Show what ELF files need, offer and give away. Files of the engine, known by their "
        "name, are compared with what they must be: exit code 6 when one differs. Their code is decoded, to "
        "find instructions that processors they are meant for may lack.",
    )
    parser.add_argument("files", type=Path, nargs="+", metavar="DSO", help="an executable or a shared object")
    parser.add_argument(
        "--prefix",
        action="append",
        default=[],
        metavar="DIR",
        help="report strings that start with this folder, besides the usual ones of build machines",
    )
    parser.add_argument(
        "--backend",
        metavar="NAME",
        help="compare GPU libraries with this row of containers/toolchains.toml, the GPUs included",
    )
    parser.set_defaults(command=run)


def run(args: argparse.Namespace, context: Context) -> int:
    """Inspect, print, and return 0 or 6."""
    from ci.dso.elf import BUILD_PREFIXES, inspect_elf
    from ci.dso.report import as_dict, as_text
    from ci.dso.rules import check_elf
    from ci.toolchains.table import load_table
    from opencoti.errors import VerificationError

    prefixes = (*BUILD_PREFIXES, *args.prefix)
    row = load_table(context.layout.table).backend(args.backend) if args.backend else None
    inspected = []
    for path in args.files:
        facts = inspect_elf(path, build_prefixes=prefixes, with_instructions=True)
        rules = _rules(facts, row)
        inspected.append((facts, check_elf(facts, rules) if rules else []))
    context.console.result(
        "\n".join(as_text(facts, problems) for facts, problems in inspected),
        [as_dict(facts, problems) for facts, problems in inspected],
    )
    return VerificationError.exit_code if any(problems for _, problems in inspected) else 0


def _rules(facts: ElfFacts, row: Backend | None) -> Rules | None:
    """Return what a file is compared with: its row where it is that backend's library, else by its name."""
    from ci.dso.rules import gpu_rules, role_of, rules_for_file

    name = facts.path.name
    role = role_of(name)
    if row is None or row.kind == "cpu" or role != row.kind:
        return rules_for_file(name)
    return gpu_rules(
        row.kind,
        arch=facts.arch,
        targets=row.targets_for(facts.arch),
        needed=row.needed,
        glibc_ceiling=row.glibc,
        libstdcxx_ceiling=row.libstdcxx,
        lane="elf" if name.startswith("lib") else "ape",
    )
