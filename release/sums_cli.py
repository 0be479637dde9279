"""The command `sums`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ci.context import Context
from opencoti.errors import UsageError
from release.sign_cli import add_signing_options, sign_with_options


def register(subparsers: Any, common: argparse.ArgumentParser) -> None:
    """Add the parser."""
    parser = subparsers.add_parser(
        "sums", parents=[common], help="write, sign or check SHA256SUMS of a folder"
    )
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--sign", action="store_true", help="sign the list too")
    parser.add_argument("--check", action="store_true", help="compare the folder with its list instead")
    add_signing_options(parser)
    parser.set_defaults(command=_sums)


def _sums(args: argparse.Namespace, context: Context) -> int:
    from release import sums

    if args.check and args.sign:
        raise UsageError("bad-usage", "--check and --sign exclude each other")
    if not args.sign and (args.key is not None or args.ephemeral):
        raise UsageError("bad-usage", "a key is named, but nothing is to be signed", hint="add --sign")
    if args.check:
        count = sums.check_sums(args.folder)
        context.console.result(f"{count} files are as listed", {"files": count})
        return 0
    path = sums.write_sums(args.folder)
    if args.sign:
        context.console.info(str(path))
        return sign_with_options(args, context, [path])
    context.console.result(str(path), {"sums": str(path)})
    return 0
