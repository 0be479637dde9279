"""The command `stage`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ci.context import Context
from opencoti.errors import UsageError, storage_error
from release.notes.cli import add_previous_option, previous_of
from release.planning.cli import add_plan_options, plan_of

if TYPE_CHECKING:
    from release.planning.model import Plan


def register(subparsers: Any, common: argparse.ArgumentParser) -> None:
    """Add the parser."""
    parser = subparsers.add_parser(
        "stage",
        parents=[common],
        help="gather artifacts, manifests, evidence and plan into dist/release/TAG, with the unsigned index",
    )
    parser.add_argument(
        "--plan", type=Path, metavar="FILE", help="what `plan --json` printed (default: plan now)"
    )
    add_previous_option(parser)
    add_plan_options(parser)
    parser.set_defaults(command=_stage)


def _stage(args: argparse.Namespace, context: Context) -> int:
    from release.staging.stage import stage

    plan = _read(args.plan) if args.plan is not None else _plan_now(args, context)
    if args.tag is not None and args.tag != plan.tag:
        raise UsageError("bad-usage", f"--tag {args.tag[:80]} is not that of the plan, {plan.tag}")
    before = previous_of(args, context, repo=plan.repo, tag=plan.tag)
    done = stage(context, plan, before=before)
    if not done.is_new:
        context.console.info(f"{done.folder}: already staged, nothing to do")
    context.console.result(
        str(done.folder),
        {
            "folder": str(done.folder),
            "tag": done.index.tag,
            "sequence": done.index.sequence,
            "indexSha256": done.index_sha256,
            "planSha256": done.index.plan_sha256,
            "assets": list(done.asset_names),
            "isNew": done.is_new,
        },
    )
    return 0


def _read(path: Path) -> Plan:
    from release.planning.model import load_plan

    try:
        return load_plan(path.read_bytes(), str(path))
    except OSError as exc:
        raise storage_error(exc, f"cannot read plan {path}") from exc


def _plan_now(args: argparse.Namespace, context: Context) -> Plan:
    """Make the plan, or take the staged one where that decided the same: its time is that of the release."""
    from release.planning.model import PLAN_NAME
    from release.staging.stage import stage_folder

    plan = plan_of(args, context)
    path = stage_folder(context, plan.tag) / PLAN_NAME
    if path.is_file():
        staged = _read(path)
        if staged.decisions() == plan.decisions():
            return staged
    return plan
