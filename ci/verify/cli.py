"""`python -m ci verify FILE|--pid N [--manifest FILE] [--features] [--full] [--json]`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ci.context import Context

if TYPE_CHECKING:
    from ci.verify.features_report import FeatureReport
    from ci.verify.report import VerifyReport


def register(subparsers: Any, common: argparse.ArgumentParser) -> None:
    """Add the command `verify`."""
    from ci.sources.lanes import add_lane_option

    parser = subparsers.add_parser(
        "verify",
        parents=[common],
        help="compare an artifact with its manifest, or say which patches are in a binary",
        description="Compare an artifact with its manifest: size, every byte, members and index. "
        "With --features or --pid: say which patches of the series are in a binary that has no manifest. "
        "Exit code 6 when something differs or is missing.",
    )
    parser.add_argument(
        "file",
        type=Path,
        nargs="?",
        metavar="FILE",
        help="the artifact (default: the newest in dist/llamafile)",
    )
    parser.add_argument(
        "--manifest", type=Path, metavar="FILE", help="its manifest (default: FILE.MANIFEST.json)"
    )
    parser.add_argument(
        "--full", action="store_true", help="hash the whole file and every member too, not the chunks alone"
    )
    parser.add_argument(
        "--features",
        action="store_true",
        help="say which patches are in FILE: an artifact, an executable, a library, or a folder of them",
    )
    parser.add_argument(
        "--pid", type=int, metavar="N", help="the same of a running engine; with --manifest, its bytes too"
    )
    add_lane_option(parser)
    parser.set_defaults(command=run)


def run(args: argparse.Namespace, context: Context) -> int:
    """Verify, print the report, and return 0 or 6."""
    from opencoti.errors import UsageError, VerificationError

    if args.pid is not None and args.file is not None:
        raise UsageError("bad-usage", "FILE and --pid exclude each other", hint="see `verify --help`")
    if args.full and (args.features or args.pid is not None):
        raise UsageError("bad-usage", "--full goes with a manifest only, not with --features or --pid")
    report = _inspect(args, context) if args.features or args.pid is not None else _verify(args, context)
    context.console.result(report.text(), report.as_dict())
    return 0 if report.is_ok else VerificationError.exit_code


def _verify(args: argparse.Namespace, context: Context) -> VerifyReport:
    from ci.artifacts import newest_artifact
    from ci.verify.command import default_manifest, verify_artifact

    artifact = args.file or newest_artifact(context.layout)
    manifest = args.manifest or default_manifest(artifact)
    return verify_artifact(artifact, manifest, context.console, full=args.full)


def _inspect(args: argparse.Namespace, context: Context) -> FeatureReport:
    from ci.artifacts import newest_artifact
    from ci.verify.features_command import inspect_features, inspect_process

    if args.pid is not None:
        return inspect_process(args.pid, context.layout, manifest=args.manifest, lane=args.lane)
    return inspect_features(args.file or newest_artifact(context.layout), context.layout, lane=args.lane)
