"""`smoke --backend NAME` for a GPU backend: on a device, or as much as can be said without one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Literal

from ci.context import Context
from ci.smoke.command import (
    Proof,
    evidence_path,
    keep,
    make_plan,
    manifest_beside,
    require_file,
    require_linux,
)
from ci.smoke.contained import lavapipe, open_container_place
from ci.smoke.devices import VISIBLE, find_target
from ci.smoke.emulation import find_emulator
from ci.smoke.load import LoadPlan, load_failed, load_test
from ci.smoke.model import SMALL_VOCABULARY
from ci.smoke.run import Plan, failed, smoke
from ci.smoke.server import Limits
from ci.smoke.target import Target
from ci.toolchains.table import Backend, load_table
from opencoti.errors import ConfigError, MissingError, UsageError, VerificationError
from opencoti.evidence import Accelerator, dump_evidence
from opencoti.files import write_atomic
from opencoti.manifest import Dso, Manifest

EngineName = Literal["auto", "host", "docker"]
# A device in software compiles every kernel for the processor first.
_PATIENT: Final = Limits(version_s=300, ready_s=900, request_s=600, stop_s=60)
_MESA: Final = "mesa-vulkan-drivers"


@dataclass(frozen=True, kw_only=True)
class GpuOptions:
    """The words of `python -m ci smoke` for a GPU backend.

    Attributes:
        engine: `host`: on this machine; `docker`: in the container with the software device; `auto`: on this
            machine if it has a device, else in the container.
        is_load_enough: end well where there is no device.
        model: the tiny model, where the caller has it already.
    """

    engine: EngineName = "auto"
    keep_home: bool = False
    is_load_enough: bool = False
    model: Path | None = None


@dataclass(frozen=True, kw_only=True)
class GpuRequest:
    """An artifact, and the one of its backends that is meant."""

    artifact: Path
    row: Backend
    manifest: Manifest
    dso: Dso


def prove_gpu(context: Context, artifact: Path, backend: str, options: GpuOptions) -> Proof:
    """Test one GPU backend of an artifact and write the evidence, also of a failure.

    With a device this is the smoke test, evidence `smoke-BACKEND`. Without one the library is inspected and
    loaded, evidence `load-BACKEND`, which says that nothing was tested on a device.

    Raises:
        UsageError: `backend-not-in-table`, `smoke-backend-absent`, `smoke-gpu-emulated`.
        ConfigError: `smoke-no-manifest`.
        MissingError: `smoke-no-device`, unless that is allowed; the evidence is written before.
        VerificationError: it does not do what it must.
    """
    request = gpu_request(context, artifact, backend)
    with planned(context, request, options) as plan:
        if plan is not None:
            path = evidence_path(context.layout, plan.artifact, plan.backend)
            return keep(context, path, partial(smoke, plan, context.console), partial(failed, plan))
    load = LoadPlan(
        artifact=request.artifact,
        manifest=request.manifest,
        dso=request.dso,
        backend=request.row,
        layout=context.layout,
    )
    return _load(context, load, is_enough=options.is_load_enough)


def gpu_request(context: Context, artifact: Path, backend: str) -> GpuRequest:
    """Return what is to be tested.

    Raises:
        UsageError: `artifact-not-found`, `backend-not-in-table`, `smoke-backend-absent`,
            `smoke-gpu-emulated`.
        ConfigError: `smoke-no-manifest`.
        MissingError: `smoke-needs-linux`.
    """
    require_linux()
    artifact = require_file(artifact)
    row = load_table(context.layout.table).backend(backend)
    manifest = _manifest_of(artifact)
    dso = _dso_of(manifest, row)
    if find_emulator(artifact, os.environ) is not None:
        raise UsageError(
            "smoke-gpu-emulated",
            f"{artifact.name} is for {manifest.arch}: no GPU backend can be tested under an emulator",
            hint=f"test it on a machine with {manifest.arch}",
        )
    return GpuRequest(artifact=artifact, row=row, manifest=manifest, dso=dso)


@contextmanager
def planned(context: Context, request: GpuRequest, options: GpuOptions) -> Iterator[Plan | None]:
    """Yield a plan with a device, None where there is none."""
    row = request.row
    plan = make_plan(
        context.layout,
        request.artifact,
        backend=row.name,
        keep_home=options.keep_home,
        model=options.model,
        vocabulary=SMALL_VOCABULARY,
    )
    target = find_target(row, os.environ) if options.engine != "docker" else None
    with ExitStack() as stack:
        if target is not None:
            is_software = any(item.is_software for item in target.accelerators)
            yield replace(plan, target=target, limits=_PATIENT if is_software else plan.limits)
        elif row.kind == "vulkan" and options.engine != "host":
            place = stack.enter_context(
                open_container_place(context.layout, context.console, files=(plan.model,))
            )
            yield replace(plan, target=software_target(context, row), place=place, limits=_PATIENT)
        elif options.engine == "docker":
            raise UsageError(
                "smoke-no-container-device",
                f"no container has a device for {row.name}",
                hint="the one there is has Vulkan; leave --engine out",
            )
        else:
            yield None


def software_target(context: Context, row: Backend) -> Target:
    """Return the software device of the pinned image, which computes on the processor."""
    locked = {deb.name: deb for deb in lavapipe(context.layout).debs}
    driver = f"{_MESA} {locked[_MESA].version} (Debian {locked[_MESA].suite})"
    return Target(
        kind=row.kind,
        library=row.library,
        variables={VISIBLE: "0"},
        accelerators=(Accelerator(name="llvmpipe", is_software=True, driver=driver),),
    )


def _load(context: Context, plan: LoadPlan, *, is_enough: bool) -> Proof:
    path = evidence_path(context.layout, plan.artifact, plan.backend.name, kind="load")
    context.console.warn(
        f"no device for {plan.backend.title} here: its library is loaded, not tested on a device"
    )
    try:
        evidence = load_test(plan, context.console)
    except VerificationError as error:
        write_atomic(path, dump_evidence(load_failed(plan, error)))
        raise
    write_atomic(path, dump_evidence(evidence))
    if not is_enough:
        raise MissingError(
            "smoke-no-device",
            f"{plan.backend.name} was not tested on a device",
            why=f"this machine has none; that the library loads is in {path}",
            hint="run it on a machine with a device, or let loading do with --allow-no-device",
        )
    return Proof(evidence=evidence, path=path)


def _manifest_of(artifact: Path) -> Manifest:
    manifest = manifest_beside(artifact)
    if manifest is None:
        raise ConfigError(
            "smoke-no-manifest",
            f"there is no manifest beside {artifact}",
            why="it says which backends the artifact holds, and their hashes",
            hint=f"put {artifact.name}.MANIFEST.json beside it",
        )
    return manifest


def _dso_of(manifest: Manifest, row: Backend) -> Dso:
    found = next((dso for dso in manifest.dsos if dso.backend == row.name), None)
    if found is None:
        held = sorted({dso.backend for dso in manifest.dsos})
        raise UsageError(
            "smoke-backend-absent",
            f"{manifest.name} has no backend {row.name}",
            why=f"it has {', '.join(held) or 'none that can be loaded'}",
            hint=f"build it and package again: `python -m ci build {row.name}`",
        )
    return found
