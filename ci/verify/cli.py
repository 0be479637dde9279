"""`python -m ci verify FILE [--manifest FILE] [--full] [--json]`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ci.context import Context


def register(subparsers: Any, common: argparse.ArgumentParser) -> None:
    """Add the command `verify`."""
    parser = subparsers.add_parser(
        "verify",
        parents=[common],
        help="compare an artifact with its manifest, member by member",
        description="Compare an artifact with its manifest: size, every byte, members and index. "
        "Exit code 6 when something differs.",
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
    parser.set_defaults(command=run)


def run(args: argparse.Namespace, context: Context) -> int:
    """Verify, print the report, and return 0 or 6."""
    from ci.artifacts import newest_artifact
    from ci.verify.command import default_manifest, verify_artifact
    from opencoti.errors import VerificationError

    artifact = args.file or newest_artifact(context.layout)
    manifest = args.manifest or default_manifest(artifact)
    report = verify_artifact(artifact, manifest, context.console, full=args.full)
    context.console.result(report.text(), report.as_dict())
    return 0 if report.is_ok else VerificationError.exit_code
