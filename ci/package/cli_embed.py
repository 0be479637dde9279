"""`python -m ci embed HOST_FILE MEMBER… --out FILE`: the zip writer on its own."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ci.context import Context


def register(subparsers: Any, common: argparse.ArgumentParser) -> None:
    """Add the command `embed`."""
    parser = subparsers.add_parser(
        "embed",
        parents=[common],
        help="append files to an executable as zip members",
        description="Append files, stored and aligned to 64 KiB, to any executable (APE, ELF) or zip. "
        "A member has the file's base name. The host file is not changed.",
    )
    parser.add_argument(
        "host_file", type=Path, metavar="HOST_FILE", help="the executable or zip to start from"
    )
    parser.add_argument(
        "member", type=Path, nargs="+", metavar="MEMBER", help="files to append, in this order"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the file to write")
    parser.add_argument(
        "--replace", action="store_true", help="a member may replace the host's of the same name"
    )
    parser.set_defaults(command=run)


def run(args: argparse.Namespace, context: Context) -> int:
    """Write the file and print its path (with `--json`: its hash and members too)."""
    from ci.package.embed import embed

    written = embed(args.host_file, args.member, args.out, context.console, allow_replace=args.replace)
    context.console.result(
        str(written.path),
        {
            "path": str(written.path),
            "size": written.size,
            "sha256": written.sha256,
            "kept": list(written.kept),
            "members": [
                {
                    "name": m.name,
                    "offset": m.offset,
                    "size": m.size,
                    "sha256": m.sha256,
                    "mode": f"0{m.mode:o}",
                }
                for m in written.members
            ],
        },
    )
    return 0
