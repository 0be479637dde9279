"""Command `package`."""

from __future__ import annotations

import argparse
from pathlib import Path

from ci.build_cli import options_of
from ci.context import Context
from ci.engines.cli import add_engine_options


def register(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser
) -> None:
    """Add the parser."""
    parser = subparsers.add_parser(
        "package",
        parents=[common],
        help="assemble the one-file engine and its manifest; builds what is missing or stale",
    )
    parser.add_argument("--with-args", type=Path, metavar="PATH", help="embed this file as .args")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the result (dist/llamafile)")
    parser.add_argument(
        "--cpu-only", action="store_true", help="no GPU backend (the only kind that there is so far)"
    )
    add_engine_options(parser)
    parser.set_defaults(command=run)


def run(args: argparse.Namespace, context: Context) -> int:
    """Build what is stale, package, and print the artifact's path."""
    from ci.build import build_cpu
    from ci.package.command import PackageOptions, package

    built = build_cpu(context, options_of(args))
    done = package(context, built, PackageOptions(out=args.out, args_file=args.with_args))
    context.console.result(
        str(done.artifact),
        {
            "artifact": str(done.artifact),
            "manifest": str(done.manifest),
            "chunks": str(done.chunks),
            "sha256": done.sha256,
            "size": done.size,
            "is_new": done.is_new,
        },
    )
    return 0
