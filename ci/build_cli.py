"""Commands `build`, `make` and `quickstart`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ci.context import Context
from ci.engines.cli import add_engine_options, engine_name, job_count, toolchain_name

if TYPE_CHECKING:
    from ci.build import BuildOptions

BACKENDS = ("cpu",)


def register(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser
) -> None:
    """Add the parsers."""
    build = subparsers.add_parser(
        "build", parents=[common], help="build backends from the pinned, patched source"
    )
    build.add_argument("backends", nargs="+", choices=BACKENDS, metavar="BACKEND", help="cpu")
    add_engine_options(build)
    build.set_defaults(command=run_build)
    make = subparsers.add_parser(
        "make", parents=[common], help="incremental build of the working tree as it is, edits included"
    )
    add_engine_options(make)
    make.set_defaults(command=run_make)
    quickstart = subparsers.add_parser(
        "quickstart",
        parents=[common],
        help="vendor, apply, build, package, verify, smoke and fetch in one go",
    )
    add_engine_options(quickstart)
    quickstart.set_defaults(command=run_quickstart)


def options_of(args: argparse.Namespace) -> BuildOptions:
    """Read the engine options."""
    from ci.build import BuildOptions

    return BuildOptions(
        engine=engine_name(args),
        toolchain=toolchain_name(args),
        jobs=job_count(args),
        use_cache=not args.no_cache,
    )


def run_build(args: argparse.Namespace, context: Context) -> int:
    """Build and print the folder of each backend."""
    from ci.build import build_cpu

    built = build_cpu(context, options_of(args))
    context.console.result(
        str(built.folder),
        {
            "backends": [
                {
                    "backend": built.backend,
                    "arch": built.arch,
                    "version_string": built.version_string,
                    "folder": str(built.folder),
                    "engine": built.result.engine,
                    "toolchain": built.result.toolchain_id,
                    "key": built.result.key,
                    "from_cache": built.result.from_cache,
                    "duration_s": round(built.result.duration_s, 1),
                    "files": dict(built.result.files),
                }
            ]
        },
    )
    return 0


def run_make(args: argparse.Namespace, context: Context) -> int:
    """Compile the working tree and print where the server is."""
    from ci.build import make
    from ci.stages.elf import SERVER

    result = make(context, options_of(args))
    server = result.folder / "bin" / SERVER
    context.console.result(str(server), {"server": str(server), "duration_s": round(result.duration_s, 1)})
    return 0


def run_quickstart(args: argparse.Namespace, context: Context) -> int:
    """Do the main job."""
    from ci.quickstart import run

    return run(args, context)
