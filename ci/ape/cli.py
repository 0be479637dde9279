"""What `build`, `make` and `package` do when the lane is ape."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ci.context import Context

if TYPE_CHECKING:
    from ci.ape.libraries import BuiltLibrary
    from ci.build import BuildOptions
    from ci.package.command import PackagedSet, PackageOptions


def add_side_load_option(parser: argparse.ArgumentParser) -> None:
    """Add `--side-load`."""
    parser.add_argument(
        "--side-load",
        action="store_true",
        help="lane ape: also copy the GPU libraries to ~/.llamafile/v/<version>/, where an engine of that "
        "version finds them",
    )


def is_ape(args: argparse.Namespace, context: Context) -> bool:
    """Tell whether a command is for lane ape.

    Raises:
        UsageError: `unknown-lane`; `side-load-elf`.
        MissingError: `lane-missing`.
    """
    from ci.ape.sideload import refuse_for_elf
    from ci.sources.lanes import find_lane

    is_it = find_lane(context.layout, args.lane).name == "ape"
    if not is_it and getattr(args, "side_load", False):
        raise refuse_for_elf()
    return is_it


def run_build(args: argparse.Namespace, names: Sequence[str], options: BuildOptions, context: Context) -> int:
    """Build one after another and print the folder of each."""
    from ci.ape.build import build_host
    from ci.ape.libraries import build_libraries, build_library, mirror_to_home
    from ci.toolchains.table import load_table

    rows: list[dict[str, object]] = []
    skipped: dict[str, str] = {}
    if "cpu" in names:
        host = build_host(context, options)
        rows.append(
            {
                "backend": "cpu",
                "lane": "ape",
                "folder": str(host.folder),
                "from_cache": host.result.from_cache,
            }
        )
    if args.all:
        libraries, skipped = build_libraries(context, options)
    else:
        table = load_table(context.layout.table)
        libraries = [build_library(context, table.backend(name), options) for name in names if name != "cpu"]
    rows += [_row(item) for item in libraries]
    mirrored = mirror_to_home(context, libraries) if args.side_load else ()
    context.console.result(
        "\n".join(str(row["folder"]) for row in rows),
        {"backends": rows, "skipped": skipped, "side_loaded": [str(path) for path in mirrored]},
    )
    return 0


def run_make(options: BuildOptions, context: Context) -> int:
    """Compile the working tree and print where the engine is."""
    from ci.ape.build import make
    from ci.ape.stages import HOST_OUTPUT

    result = make(context, options)
    engine = result.folder / HOST_OUTPUT
    context.console.result(str(engine), {"server": str(engine), "duration_s": round(result.duration_s, 1)})
    return 0


def package(
    args: argparse.Namespace, build: BuildOptions, options: PackageOptions, context: Context
) -> PackagedSet:
    """Build the engine if that is stale, and package it with the libraries that were built."""
    from ci.ape.build import build_host, load_version
    from ci.ape.package import check_ape_request, find_libraries, package_set
    from ci.ape.sideload import side_load

    check_ape_request(options)
    built = build_host(context, build)
    done = package_set(context, built, options)
    if args.side_load:
        libraries = find_libraries(context, load_version(context.layout), tree=built.source.tree)
        chosen = libraries.choose(options).gpu
        side_load(libraries.paths(chosen), load_version(context.layout), context.console, environ=os.environ)
    return done


def _row(item: BuiltLibrary) -> dict[str, object]:
    return {
        "backend": item.record.backend,
        "lane": "ape",
        "folder": str(item.folder),
        "library": str(item.path),
        "sha256": item.record.sha256,
        "from_cache": item.result.from_cache,
        "objects": item.record.objects,
        "targets": list(item.record.targets),
    }
