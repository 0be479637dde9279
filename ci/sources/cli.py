"""Command `vendor`."""

from __future__ import annotations

import argparse

from ci.context import Context


def register(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser
) -> None:
    """Add the parser."""
    from ci.sources.lanes import add_lane_option

    parser = subparsers.add_parser(
        "vendor", parents=[common], help="fetch and check the pinned upstream source"
    )
    parser.add_argument("--offline", action="store_true", help="use the download cache only")
    add_lane_option(parser)
    parser.set_defaults(command=run_vendor)


def run_vendor(args: argparse.Namespace, context: Context) -> int:
    """Vendor the source of a lane and print its folder."""
    from ci.pins import SourcePin
    from ci.sources.lanes import find_lane
    from ci.sources.vendoring import origin_text, vendor

    lane = find_lane(context.layout, args.lane)
    pin = SourcePin.load(lane.pin)
    source = vendor(context.layout, pin, context.console, offline=args.offline)
    context.console.info(f"{pin.name} {pin.version}: tree {source.tree}")
    context.console.result(
        str(source.folder),
        {
            "lane": lane.name,
            "pin": pin.name,
            "origin": origin_text(pin),
            "commit": pin.commit,
            "version": pin.version,
            "tree": source.tree,
            "folder": str(source.folder),
        },
    )
    return 0
