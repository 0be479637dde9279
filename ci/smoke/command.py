"""The smoke test as a step of the pipeline: finds artifact, manifest and model, writes evidence."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ci.context import Context
from ci.paths import Layout
from ci.smoke.emulation import find_emulator
from ci.smoke.identity import Expected
from ci.smoke.model import VOCABULARY, cached_model
from ci.smoke.run import TEST_VERSION, Plan, describe, device_of, failed, smoke
from opencoti.errors import ConfigError, MissingError, OpencotiError, UsageError, VerificationError
from opencoti.evidence import BenchResult, Device, Evidence, SmokeResult, dump_evidence, load_evidence
from opencoti.files import write_atomic
from opencoti.manifest import MANIFEST_SUFFIX, Manifest, load_manifest

_SOURCE = "llama.cpp"
_MAX_MANIFEST_BYTES = 8 << 20


@dataclass(frozen=True, kw_only=True)
class Proof:
    """A passed smoke test and the file that says so."""

    evidence: Evidence
    path: Path


def prove(
    context: Context,
    artifact: Path,
    *,
    backend: str = "cpu",
    keep_home: bool = False,
    allow_reuse: bool = False,
    model: Path | None = None,
    qemu: Path | None = None,
) -> Proof:
    """Smoke-test an artifact and write the evidence, also of a failure, to `dist/evidence/`.

    Args:
        context: checkout and console.
        artifact: the file; its manifest is taken into account when it lies beside it.
        backend: what it computes on.
        keep_home: leave the scratch folder for a look at it.
        allow_reuse: do not run again what passed with the same bytes on this machine.
        model: the tiny model, where the caller has it already.
        qemu: emulator for an artifact of another architecture; None for the one on PATH.

    Raises:
        OpencotiError: as `ci.smoke.run.smoke`; the evidence then says `passed: false`.
    """
    require_linux()
    artifact = require_file(artifact)
    path = evidence_path(context.layout, artifact, backend)
    emulator = find_emulator(artifact, os.environ, qemu=qemu)
    if allow_reuse and (known := _known_proof(path, artifact, device_of(emulator))):
        context.console.info(f"nothing to do: {artifact.name} passed here on {known.evidence.started}")
        return known
    plan = make_plan(context.layout, artifact, backend=backend, keep_home=keep_home, model=model)
    if emulator is not None:
        plan = replace(plan, emulator=emulator)
        context.console.info(f"{artifact.name} is for {emulator.arch}: it runs under {emulator.program}")
    return keep(context, path, partial(smoke, plan, context.console), partial(failed, plan))


def keep(
    context: Context,
    path: Path,
    test: Callable[[], Evidence],
    failed_with: Callable[[OpencotiError], Evidence],
) -> Proof:
    """Run a test and write its evidence to `path`, also that of a failure, which is raised again."""
    try:
        evidence = test()
    except VerificationError as error:
        write_atomic(path, dump_evidence(failed_with(error)))
        raise
    write_atomic(path, dump_evidence(evidence))
    context.console.info(f"evidence: {path}")
    return Proof(evidence=evidence, path=path)


def _known_proof(path: Path, artifact: Path, device: Device) -> Proof | None:
    """Return the evidence of an earlier pass of the same bytes, by the same test, on this device."""
    try:
        evidence = load_evidence(path.read_bytes(), str(path))
    except (OSError, ConfigError):
        return None
    is_same = (
        evidence.passed
        and evidence.test_version == TEST_VERSION
        and evidence.device == device
        and evidence.artifact == describe(artifact)
    )
    return Proof(evidence=evidence, path=path) if is_same else None


def evidence_path(layout: Layout, artifact: Path, backend: str, *, kind: str = "smoke") -> Path:
    """Return where the evidence of an artifact goes."""
    return layout.dist / "evidence" / f"{artifact.name}.{kind}-{backend}.json"


def require_linux() -> None:
    """Raise `MissingError` (`smoke-needs-linux`) elsewhere: the proofs are read from /proc."""
    if sys.platform != "linux":
        raise MissingError(
            "smoke-needs-linux", "the smoke test runs on Linux only", why="it reads its proofs from /proc"
        )


def require_file(artifact: Path) -> Path:
    """Return the absolute path of an artifact. Raises `UsageError` (`artifact-not-found`)."""
    if not artifact.is_file():
        raise UsageError(
            "artifact-not-found", f"there is no artifact {artifact}", hint="package one: `./noxw -s package`"
        )
    return artifact.resolve()


def make_plan(
    layout: Layout,
    artifact: Path,
    *,
    backend: str,
    keep_home: bool = False,
    model: Path | None = None,
    vocabulary: Path = VOCABULARY,
) -> Plan:
    """Return the plan of a test on the CPU of this machine, with what lies beside the artifact."""
    manifest = manifest_beside(artifact)
    return Plan(
        artifact=artifact,
        model=model.resolve() if model else cached_model(layout, layout.sources / _SOURCE / vocabulary),
        logs=layout.logs,
        fallback=layout.build / "smoke",
        manifest=manifest,
        expected=Expected.from_manifest(manifest) if manifest else Expected(),
        backend=backend,
        keep_home=keep_home,
    )


def manifest_beside(artifact: Path) -> Manifest | None:
    """Read the manifest that lies beside an artifact, None when there is none. Raises `ConfigError`."""
    path = artifact.with_name(artifact.name + MANIFEST_SUFFIX)
    if not path.is_file():
        return None
    with open(path, "rb") as file:
        return load_manifest(file.read(_MAX_MANIFEST_BYTES + 1), str(path))


def summary(proof: Proof) -> str:
    """Say in a few lines what was found."""
    evidence = proof.evidence
    if evidence.result is not None:
        found = _result_lines(evidence.result)
    else:
        found = _load_lines(evidence) if evidence.measured is None else _bench_lines(evidence.measured)
    lines = [
        *found,
        *([f"  emulated: {emulator}"] if (emulator := evidence.device.emulator) else []),
        *(
            f"  device: {item.name}, {item.driver or 'driver unknown'}"
            for item in evidence.device.accelerators
        ),
        *(f"  not tested: {text}" for text in evidence.not_tested),
        f"  evidence: {proof.path}",
    ]
    return "\n".join([f"passed: {evidence.artifact.name}", *lines])


def _result_lines(result: SmokeResult) -> list[str]:
    speed = f", {result.tokens_per_second:.0f} tokens/s" if result.tokens_per_second else ""
    lines = [
        f"  took {result.total_s:.1f} s, ready after {result.ready_s:.2f} s, "
        f"{result.completion_tokens} tokens{speed}",
        f"  CPU variant: {result.cpu_variant or 'in the executable'}",
        *(f"  mapped: {file.path} (inode {file.inode}, sha256 {file.sha256[:16]}…)" for file in result.dsos),
        *(
            f"  driver: {file.path} (inode {file.inode}, sha256 {file.sha256[:16]}…)"
            for file in result.drivers
        ),
    ]
    if (offload := result.offload) is not None:
        lines.append(f"  on {offload.device}: {offload.layers} of {offload.layers} layers")
    if (compared := result.comparison) is not None:
        lines.append(
            f"  tokens equal to the CPU's: {compared.equal} of {compared.tokens}, "
            f"log-probabilities at most {compared.max_difference:.4f} apart"
        )
    return lines


def _bench_lines(result: BenchResult) -> list[str]:
    lines = [
        f"  prompt: {result.prompt_per_second:.1f} tokens/s, {result.prompt_tokens} per request",
        f"  completion: {result.completion_per_second:.1f} tokens/s, {result.completion_tokens} per request",
        f"  median of {len(result.samples)} requests, {result.threads} threads, model {result.model.name}",
    ]
    if (offload := result.offload) is not None:
        lines.append(f"  on {offload.device}: {offload.layers} of {offload.layers} layers")
    return lines


def _load_lines(evidence: Evidence) -> list[str]:
    loaded = evidence.loaded
    assert loaded is not None, "a proof has a result"
    return [
        f"  loaded only: {loaded.dso.path} (inode {loaded.dso.inode}), it has {loaded.entry}",
        f"  for: {', '.join(loaded.archs) or 'any device of its kind'}",
        f"  stubs in place of: {', '.join(loaded.stubs) or 'nothing'}",
    ]
