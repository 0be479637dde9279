"""Commands `rebase` and `hygiene`."""

from __future__ import annotations

import argparse
from pathlib import Path

from ci.context import Context
from ci.sources.lanes import add_lane_option
from opencoti.errors import BuildError


def register(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser
) -> None:
    """Add the parsers."""
    rebase = subparsers.add_parser(
        "rebase", parents=[common], help="try the patch series on another upstream source, and report"
    )
    rebase.add_argument(
        "--onto",
        required=True,
        metavar="PIN",
        help='a pin file, a line of one ("URL COMMIT"), or with --from a commit, tag or tree',
    )
    rebase.add_argument(
        "--from", dest="clone", type=Path, metavar="CLONE", help="git repository to look --onto up in"
    )
    rebase.add_argument(
        "--out", type=Path, metavar="DIR", help="write the patches that could be carried over to this folder"
    )
    rebase.set_defaults(command=run_rebase)
    hygiene = subparsers.add_parser(
        "hygiene",
        parents=[common],
        help="judge the patch series: what can be left out alone, does capturing again give the same bytes",
    )
    hygiene.add_argument(
        "--warnings",
        action="store_true",
        help="also compile the files that the series adds, and look for warnings (after `build` or `make`)",
    )
    hygiene.set_defaults(command=run_hygiene)
    for parser in (rebase, hygiene):
        add_lane_option(parser)


def run_rebase(args: argparse.Namespace, context: Context) -> int:
    """Print the report; patches that conflict end with the code of a failed patch."""
    from ci.patches.rebasing import rebase

    report = rebase(
        context.layout, context.console, args.onto, lane=args.lane, clone=args.clone, out=args.out
    )
    context.console.result("\n".join(report.lines()), report.as_dict())
    return 0 if report.is_carried else BuildError.exit_code


def run_hygiene(args: argparse.Namespace, context: Context) -> int:
    """Print the report; a patch that cannot be left out is no failure, the other findings are."""
    from ci.patches.hygiene import judge

    report = judge(context.layout, context.console, lane=args.lane, has_warnings=args.warnings)
    context.console.result("\n".join(report.lines()), report.as_dict())
    return 0 if report.is_clean else BuildError.exit_code
