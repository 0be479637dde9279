"""Commands `check`, `reset`, `apply` and `capture`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ci.context import Context
from ci.sources.lanes import add_lane_option

if TYPE_CHECKING:
    from ci.patches.model import AppliedTree


def register(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser
) -> None:
    """Add the parsers."""
    check = subparsers.add_parser(
        "check", parents=[common], help="show pin, state of the tree and patch series; warn on drift"
    )
    reset = subparsers.add_parser(
        "reset", parents=[common], help="bring the working tree back to the pristine source; edits are lost"
    )
    apply = subparsers.add_parser(
        "apply", parents=[common], help="apply the patch series to the working tree, strictly"
    )
    apply.add_argument("--record", action="store_true", help="write series.lock anew from what comes out")
    capture = subparsers.add_parser(
        "capture", parents=[common], help="turn the work in the tree into a patch of the series"
    )
    capture.add_argument("name", metavar="NNNN-name", help="name of the patch, without .patch")
    capture.add_argument("--replace", action="store_true", help="write the last patch of the series anew")
    for parser, command in (
        (check, run_check),
        (reset, run_reset),
        (apply, run_apply),
        (capture, run_capture),
    ):
        add_lane_option(parser)
        parser.set_defaults(command=command)


def run_check(args: argparse.Namespace, context: Context) -> int:
    """Print the report; what it warns of is no failure."""
    from ci.patches.checking import check

    report = check(context.layout, context.console, lane=args.lane)
    context.console.result("\n".join(report.lines()), report.as_dict())
    return 0


def run_reset(args: argparse.Namespace, context: Context) -> int:
    """Reset and print the folder of the tree."""
    from ci.patches.apply import reset

    applied = reset(context.layout, context.console, lane=args.lane)
    context.console.result(str(applied.folder), _as_dict(applied))
    return 0


def run_apply(args: argparse.Namespace, context: Context) -> int:
    """Apply and print the folder of the tree."""
    from ci.patches.apply import apply, record_series

    action = record_series if args.record else apply
    applied = action(context.layout, context.console, lane=args.lane)
    context.console.result(str(applied.folder), _as_dict(applied))
    return 0


def run_capture(args: argparse.Namespace, context: Context) -> int:
    """Capture and print the path of the patch."""
    from ci.patches.capture import capture

    done = capture(context.layout, context.console, args.name, lane=args.lane, replace_last=args.replace)
    context.console.info(f"captured {done.patch.title!r}, {done.context_lines} line(s) of context")
    data = {"patch": str(done.patch.path), "sha256": done.patch.sha256, **_as_dict(done.tree)}
    context.console.result(str(done.patch.path), data)
    return 0


def _as_dict(applied: AppliedTree) -> dict[str, object]:
    return {
        "lane": applied.lane,
        "pin": applied.pin.name,
        "version": applied.pin.version,
        "folder": str(applied.folder),
        "base_commit": applied.base_commit,
        "base_tree": applied.base_tree,
        "commit": applied.commit,
        "tree": applied.tree,
        "patch_set_hash": applied.patch_set_hash,
        "patches": [
            {
                "name": patch.name,
                "sha256": patch.sha256,
                "commit": patch.commit,
                "tree": patch.tree,
                "title": patch.title,
                "offsets": [str(offset) for offset in patch.offsets],
            }
            for patch in applied.patches
        ],
    }
