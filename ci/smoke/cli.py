"""`python -m ci smoke [ARTIFACT] [--backend NAME] [--json]`, and `bench` with the same words."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ci.context import Context


def register(subparsers: Any, common: argparse.ArgumentParser) -> None:
    """Add the commands `smoke` and `bench`."""
    _register_smoke(subparsers, common)
    bench = subparsers.add_parser(
        "bench",
        parents=[common],
        help="measure how fast an artifact computes on one device",
        description="Boot an artifact like the smoke test and measure prompts and completions of the tiny "
        "model by the engine's own clock. A run that fell back to the CPU, or took tokens from a cache, is "
        "an error. Writes dist/evidence/ARTIFACT.bench-BACKEND.json.",
    )
    _add_common(bench)
    bench.set_defaults(command=run_bench)


def _register_smoke(subparsers: Any, common: argparse.ArgumentParser) -> None:
    parser = subparsers.add_parser(
        "smoke",
        parents=[common],
        help="boot an artifact with a tiny model, ask it something, prove that nothing is left",
        description="Boot an artifact with a tiny model and a scratch HOME on loopback, check which "
        "build and libraries run, ask for completions and an embedding, stop it, and prove that no process, "
        "port or file is left. Writes dist/evidence/ARTIFACT.smoke-BACKEND.json.",
    )
    _add_common(parser)
    parser.add_argument(
        "--qemu",
        type=Path,
        metavar="PROGRAM",
        help="emulator for an artifact of another architecture (default: qemu-ARCH-static on PATH)",
    )
    parser.add_argument(
        "--allow-no-device",
        action="store_true",
        help="GPU backends: without a device, end well when the library is sound and loads",
    )
    parser.set_defaults(command=run)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "artifact", type=Path, nargs="?", metavar="ARTIFACT", help="default: the newest in dist/llamafile"
    )
    parser.add_argument("--backend", default="cpu", metavar="NAME", help="what to compute on (default: cpu)")
    parser.add_argument("--keep-home", action="store_true", help="leave the scratch folder for a look at it")
    parser.add_argument(
        "--engine",
        choices=("auto", "host", "docker"),
        default="auto",
        help="GPU backends: this machine, or a container with a Vulkan device in software (default: auto: "
        "the container where this machine has no device)",
    )


def run(args: argparse.Namespace, context: Context) -> int:
    """Run the test and print what was found."""
    from ci.artifacts import newest_artifact
    from ci.smoke.command import prove, summary

    artifact = args.artifact or newest_artifact(context.layout)
    if args.backend != "cpu":
        return _run_gpu(args, context, artifact)
    proof = prove(context, artifact, backend=args.backend, keep_home=args.keep_home, qemu=args.qemu)
    context.console.result(summary(proof), proof.evidence.model_dump(mode="json", by_alias=True))
    return 0


def _run_gpu(args: argparse.Namespace, context: Context, artifact: Path) -> int:
    from ci.smoke.command import summary
    from ci.smoke.gpu_command import GpuOptions, prove_gpu

    options = GpuOptions(engine=args.engine, keep_home=args.keep_home, is_load_enough=args.allow_no_device)
    proof = prove_gpu(context, artifact, args.backend, options)
    context.console.result(summary(proof), proof.evidence.model_dump(mode="json", by_alias=True))
    return 0


def run_bench(args: argparse.Namespace, context: Context) -> int:
    """Measure and print what was found."""
    from ci.artifacts import newest_artifact
    from ci.smoke.bench_command import measure
    from ci.smoke.command import summary
    from ci.smoke.gpu_command import GpuOptions

    artifact = args.artifact or newest_artifact(context.layout)
    options = GpuOptions(engine=args.engine, keep_home=args.keep_home)
    proof = measure(context, artifact, args.backend, options)
    context.console.result(summary(proof), proof.evidence.model_dump(mode="json", by_alias=True))
    return 0
