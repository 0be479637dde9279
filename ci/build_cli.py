"""Commands `build`, `make` and `quickstart`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ci.ape.cli import add_side_load_option, is_ape
from ci.context import Context
from ci.engines.cli import add_engine_options, engine_name, job_count, toolchain_name
from ci.sources.lanes import add_lane_option
from ci.stages.elf import CPU_VARIANTS
from ci.toolchains.names import backend_names
from opencoti.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ci.build import BuildOptions
    from ci.stages.runner import StageResult

BACKENDS = backend_names()


def register(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser
) -> None:
    """Add the parsers."""
    build = subparsers.add_parser(
        "build",
        parents=[common],
        help="build backends from the pinned, patched source, several at the same time",
    )
    build.add_argument("backends", nargs="*", metavar="BACKEND", help=", ".join(BACKENDS))
    build.add_argument(
        "--all",
        action="store_true",
        help="the CPU and every GPU backend that can be built here; others are skipped with a warning",
    )
    add_arch_option(build)
    build.add_argument(
        "--archs",
        type=_targets,
        default=None,
        metavar="LIST",
        help="GPUs to build for, such as 75 or 86,89 (default: all of containers/toolchains.toml); each "
        "backend takes those it knows; a release refuses the result",
    )
    build.add_argument(
        "--no-fa",
        action="store_true",
        help="leave the FlashAttention kernels out of CUDA and ROCm; a release refuses the result",
    )
    build.add_argument(
        "--series-until",
        default="",
        metavar="NNNN",
        help="apply the patch series only up to this one (cpu only): the stock server of the benches",
    )
    add_lane_option(build)
    add_side_load_option(build)
    add_engine_options(build)
    build.set_defaults(command=run_build)
    make = subparsers.add_parser(
        "make", parents=[common], help="incremental build of the working tree as it is, edits included"
    )
    add_arch_option(make)
    add_lane_option(make)
    add_engine_options(make)
    make.set_defaults(command=run_make)
    quickstart = subparsers.add_parser(
        "quickstart",
        parents=[common],
        help="vendor, apply, build, package, verify, smoke and fetch in one go",
    )
    add_engine_options(quickstart)
    quickstart.set_defaults(command=run_quickstart)


def add_arch_option(parser: argparse.ArgumentParser) -> None:
    """Add --arch."""
    parser.add_argument(
        "--arch",
        choices=tuple(CPU_VARIANTS),
        default=None,
        help="architecture of the machines that it is for (default: that of this machine)",
    )


def options_of(args: argparse.Namespace) -> BuildOptions:
    """Read the engine options."""
    from ci.build import BuildOptions

    return BuildOptions(
        engine=engine_name(args),
        toolchain=toolchain_name(args),
        jobs=job_count(args),
        use_cache=not args.no_cache,
        arch=getattr(args, "arch", None),
        archs=getattr(args, "archs", None),
        has_flash_attention=not getattr(args, "no_fa", False),
        series_until=getattr(args, "series_until", ""),
    )


def run_build(args: argparse.Namespace, context: Context) -> int:
    """Build and print the folder of each backend."""
    from ci.toolchains.table import load_table

    load_table(context.layout.table)  # before names are looked up in it: it may be what is wrong
    names = _chosen(args)
    options = options_of(args)
    if is_ape(args, context):
        from ci.ape import cli as ape

        if args.series_until:
            raise _until_error()
        return ape.run_build(args, names, options, context)
    skipped: Mapping[str, str] = {}
    if len(names) > 1:
        from ci.several import build_several

        together = build_several(context, names, options, may_skip=args.all)
        rows, skipped = together.rows, together.skipped
    else:
        rows = (_build_one(names[0], options, context),)
    context.console.result(
        "\n".join(str(row["folder"]) for row in rows), {"backends": list(rows), "skipped": dict(skipped)}
    )
    return 0


def _build_one(name: str, options: BuildOptions, context: Context) -> Mapping[str, object]:
    from ci.backends import build_gpu
    from ci.build import build_cpu
    from ci.toolchains.table import load_table

    if name == "cpu":
        built = build_cpu(context, options)
        return _row("cpu", built.arch, built.folder, built.result)
    done = build_gpu(context, load_table(context.layout.table).backend(name), options)
    return _row(name, done.record.arch, done.folder, done.result) | {
        "targets": list(done.record.targets),
        "partial": list(done.record.partial),
    }


def _chosen(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the backends named on the command line.

    Raises:
        UsageError: `build-nothing`, `build-unknown`, `build-until`.
    """
    if args.series_until and (args.all or args.backends != ["cpu"]):
        raise _until_error()
    if args.all:
        return BACKENDS
    if not args.backends:
        raise UsageError(
            "build-nothing", "no backend is named", hint=f"name some of {', '.join(BACKENDS)}, or give --all"
        )
    for name in args.backends:
        if name not in BACKENDS:
            raise UsageError(
                "build-unknown",
                f"there is no backend {name[:80]!r}",
                hint=f"backends are {', '.join(BACKENDS)}",
            )
    return tuple(dict.fromkeys(args.backends))


def _until_error() -> UsageError:
    return UsageError(
        "build-until",
        "--series-until goes with the backend cpu of the lane elf alone",
        why="the patches after it are of the server, which only that build makes",
        hint="python -m ci build cpu --series-until NNNN",
    )


def _row(backend: str, arch: str, folder: Path, result: StageResult) -> dict[str, object]:
    return {
        "backend": backend,
        "arch": arch,
        "folder": str(folder),
        "engine": result.engine,
        "toolchain": result.toolchain_id,
        "key": result.key,
        "from_cache": result.from_cache,
        "duration_s": round(result.duration_s, 1),
        "files": dict(result.files),
    }


def _targets(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def run_make(args: argparse.Namespace, context: Context) -> int:
    """Compile the working tree and print where the server is."""
    if is_ape(args, context):
        from ci.ape import cli as ape

        return ape.run_make(options_of(args), context)
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
