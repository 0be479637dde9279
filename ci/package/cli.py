"""Command `package`."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from ci.ape.cli import add_side_load_option, is_ape
from ci.build_cli import add_arch_option, options_of
from ci.context import Context
from ci.engines.cli import add_engine_options
from ci.sources.lanes import add_lane_option

if TYPE_CHECKING:
    from ci.package.artifact import Packaged
    from ci.package.command import PackageOptions
    from ci.package.plan import PackagePlan


def register(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser
) -> None:
    """Add the parser."""
    parser = subparsers.add_parser(
        "package",
        parents=[common],
        help="assemble the one-file engine and its manifest; builds what is missing or stale",
        description="Assemble the one-file engine and its manifest, and with a model a second file that "
        "holds both. Builds what is missing or stale first.",
    )
    parser.add_argument(
        "--with-model", type=Path, metavar="PATH", help="also make the embedding server with this GGUF in it"
    )
    parser.add_argument("--mmproj", type=Path, metavar="PATH", help="multimodal projector of that model")
    parser.add_argument(
        "--with-args",
        type=Path,
        metavar="PATH",
        help="embed this file as .args (with a model: in that artifact, instead of the generated one)",
    )
    parser.add_argument(
        "--backends",
        type=_backends,
        metavar="LIST",
        help="backends that it must hold, such as cpu,vulkan (default: all that can be built)",
    )
    parser.add_argument(
        "--cpu-only", action="store_true", help="no GPU backend; assumed while none can be built"
    )
    parser.add_argument(
        "--cublas",
        choices=("system", "bundle"),
        default="system",
        help="system: CUDA's libraries come with the user's CUDA (default); bundle: embed them, about 0.6 GB",
    )
    parser.add_argument(
        "--flavor",
        type=_flavor,
        metavar="NAME",
        help="make a second artifact of this version, named with the suffix -NAME; `cuda12` embeds that "
        "generation of CUDA instead of the newer one",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the result (dist/llamafile)")
    parser.add_argument(
        "--plan", action="store_true", help="build and write nothing: print what would be embedded"
    )
    add_arch_option(parser)
    add_lane_option(parser)
    add_side_load_option(parser)
    add_engine_options(parser)
    parser.set_defaults(command=run)


def run(args: argparse.Namespace, context: Context) -> int:
    """Build what is stale, package, and print the path of each artifact; or print the plan."""
    from ci.build import build_cpu
    from ci.package.command import check_request, package_set
    from ci.package.planning import plan_package

    options = _options(args)
    is_other = is_ape(args, context)
    if args.plan:
        plan = _plan_ape(context, options) if is_other else plan_package(context, options)
        context.console.result(plan.text(), plan.as_dict())
        return 0
    if is_other:
        from ci.ape import cli as ape

        done = ape.package(args, options_of(args), options, context)
    else:
        check_request(options)
        done = package_set(context, build_cpu(context, options_of(args)), options)
    made = [done.engine, *([done.embedder] if done.embedder else [])]
    data = _as_dict(done.engine)
    if done.embedder:
        data["embedder"] = _as_dict(done.embedder)
    context.console.result("\n".join(str(item.artifact) for item in made), data)
    return 0


def _plan_ape(context: Context, options: PackageOptions) -> PackagePlan:
    from ci.ape.planning import plan_package

    return plan_package(context, options)


def _options(args: argparse.Namespace) -> PackageOptions:
    from ci.package.command import PackageOptions

    return PackageOptions(
        out=args.out,
        args_file=args.with_args,
        model=args.with_model,
        mmproj=args.mmproj,
        backends=args.backends,
        arch=args.arch,
        flavor=args.flavor,
        is_cpu_only=args.cpu_only,
        is_bundled=args.cublas == "bundle",
    )


def _flavor(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9]{1,20}", text):
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not made of 1 to 20 lowercase letters and digits")
    return text


def _backends(text: str) -> tuple[str, ...]:
    from ci.package.backends import parse_backends

    return parse_backends(text)


def _as_dict(done: Packaged) -> dict[str, object]:
    from ci.package.naming import release_parts

    return {
        "artifact": str(done.artifact),
        "manifest": str(done.manifest),
        "chunks": str(done.chunks),
        "sha256": done.sha256,
        "size": done.size,
        "parts": [{"offset": part.offset, "size": part.size} for part in release_parts(done.size)],
        "is_new": done.is_new,
    }
