"""`python -m ci smoke [ARTIFACT] [--backend NAME] [--json]`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ci.context import Context


def register(subparsers: Any, common: argparse.ArgumentParser) -> None:
    """Add the command `smoke`."""
    parser = subparsers.add_parser(
        "smoke",
        parents=[common],
        help="boot an artifact with a tiny model, ask it something, prove that nothing is left",
        description="Boot an artifact with a tiny model and a scratch HOME on loopback, check which "
        "build and libraries run, ask for completions and an embedding, stop it, and prove that no process, "
        "port or file is left. Writes dist/evidence/ARTIFACT.smoke-BACKEND.json.",
    )
    parser.add_argument(
        "artifact", type=Path, nargs="?", metavar="ARTIFACT", help="default: the newest in dist/llamafile"
    )
    parser.add_argument("--backend", default="cpu", metavar="NAME", help="what to compute on (default: cpu)")
    parser.add_argument("--keep-home", action="store_true", help="leave the scratch folder for a look at it")
    parser.set_defaults(command=run)


def run(args: argparse.Namespace, context: Context) -> int:
    """Run the test and print what was found."""
    from ci.artifacts import newest_artifact
    from ci.smoke.command import prove, summary

    artifact = args.artifact or newest_artifact(context.layout)
    proof = prove(context, artifact, backend=args.backend, keep_home=args.keep_home)
    context.console.result(summary(proof), proof.evidence.model_dump(mode="json", by_alias=True))
    return 0
