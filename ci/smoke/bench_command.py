"""The bench as a step of the pipeline: finds artifact, model and device, writes evidence."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

from ci.context import Context
from ci.smoke.bench import bench, bench_failed
from ci.smoke.command import Proof, evidence_path, keep, make_plan, require_file, require_linux
from ci.smoke.emulation import find_emulator
from ci.smoke.gpu_command import GpuOptions, gpu_request, planned
from ci.smoke.running import Plan
from opencoti.errors import MissingError


def measure(context: Context, artifact: Path, backend: str, options: GpuOptions) -> Proof:
    """Measure one backend of an artifact and write the evidence `bench-BACKEND`, also of a failure.

    Args:
        context: checkout and console.
        artifact: the file; its manifest is taken into account when it lies beside it.
        backend: what it computes on.
        options: as for the smoke test; without a device nothing is measured, whatever they allow.

    Raises:
        UsageError: `artifact-not-found`, `bench-emulated`; as `gpu_request`.
        MissingError: `bench-no-device`.
        OpencotiError: as `bench`.
    """
    if backend == "cpu":
        return _measure(context, _cpu_plan(context, artifact, options))
    request = gpu_request(context, artifact, backend)
    with planned(context, request, options) as plan:
        if plan is None:
            raise MissingError(
                "bench-no-device",
                f"{backend} was not measured",
                why="this machine has no device for it",
                hint="run it on a machine with a device",
            )
        return _measure(context, plan)


def _cpu_plan(context: Context, artifact: Path, options: GpuOptions) -> Plan:
    require_linux()
    artifact = require_file(artifact)
    plan = make_plan(
        context.layout, artifact, backend="cpu", keep_home=options.keep_home, model=options.model
    )
    return replace(plan, emulator=find_emulator(artifact, os.environ))


def _measure(context: Context, plan: Plan) -> Proof:
    path = evidence_path(context.layout, plan.artifact, plan.backend, kind="bench")
    return keep(context, path, partial(bench, plan, context.console), partial(bench_failed, plan))
