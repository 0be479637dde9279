"""The smoke test as a step of the pipeline: finds artifact, manifest and model, writes evidence."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from ci.context import Context
from ci.paths import Layout
from ci.smoke.device import this_device
from ci.smoke.identity import Expected
from ci.smoke.model import VOCABULARY, cached_model
from ci.smoke.run import TEST_VERSION, Plan, describe, failed, smoke
from opencoti.errors import ConfigError, MissingError, UsageError, VerificationError
from opencoti.evidence import Evidence, dump_evidence, load_evidence
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
) -> Proof:
    """Smoke-test an artifact and write the evidence, also of a failure, to `dist/evidence/`.

    Args:
        context: checkout and console.
        artifact: the file; its manifest is taken into account when it lies beside it.
        backend: what it computes on.
        keep_home: leave the scratch folder for a look at it.
        allow_reuse: do not run again what passed with the same bytes on this machine.
        model: the tiny model, where the caller has it already.

    Raises:
        OpencotiError: as `ci.smoke.run.smoke`; the evidence then says `passed: false`.
    """
    require_linux()
    artifact = _require_file(artifact)
    path = evidence_path(context.layout, artifact, backend)
    if allow_reuse and (known := _known_proof(path, artifact)):
        context.console.info(f"nothing to do: {artifact.name} passed here on {known.evidence.started}")
        return known
    plan = _plan(context.layout, artifact, backend=backend, keep_home=keep_home, model=model)
    try:
        evidence = smoke(plan, context.console)
    except VerificationError as error:
        write_atomic(path, dump_evidence(failed(plan, error)))
        raise
    write_atomic(path, dump_evidence(evidence))
    context.console.info(f"evidence: {path}")
    return Proof(evidence=evidence, path=path)


def _known_proof(path: Path, artifact: Path) -> Proof | None:
    """Return the evidence of an earlier pass of the same bytes, by the same test, on this machine."""
    try:
        evidence = load_evidence(path.read_bytes(), str(path))
    except (OSError, ConfigError):
        return None
    is_same = (
        evidence.passed
        and evidence.test_version == TEST_VERSION
        and evidence.device == this_device()
        and evidence.artifact == describe(artifact)
    )
    return Proof(evidence=evidence, path=path) if is_same else None


def evidence_path(layout: Layout, artifact: Path, backend: str) -> Path:
    """Return where the evidence of an artifact goes."""
    return layout.dist / "evidence" / f"{artifact.name}.smoke-{backend}.json"


def require_linux() -> None:
    """Raise `MissingError` (`smoke-needs-linux`) elsewhere: the proofs are read from /proc."""
    if sys.platform != "linux":
        raise MissingError(
            "smoke-needs-linux", "the smoke test runs on Linux only", why="it reads its proofs from /proc"
        )


def _require_file(artifact: Path) -> Path:
    if not artifact.is_file():
        raise UsageError(
            "artifact-not-found", f"there is no artifact {artifact}", hint="package one: `./noxw -s package`"
        )
    return artifact.resolve()


def _plan(layout: Layout, artifact: Path, *, backend: str, keep_home: bool, model: Path | None) -> Plan:
    manifest = _manifest_beside(artifact)
    return Plan(
        artifact=artifact,
        model=model.resolve() if model else cached_model(layout, layout.sources / _SOURCE / VOCABULARY),
        logs=layout.logs,
        fallback=layout.build / "smoke",
        manifest=manifest,
        expected=Expected.from_manifest(manifest) if manifest else Expected(),
        backend=backend,
        keep_home=keep_home,
    )


def _manifest_beside(artifact: Path) -> Manifest | None:
    path = artifact.with_name(artifact.name + MANIFEST_SUFFIX)
    if not path.is_file():
        return None
    with open(path, "rb") as file:
        return load_manifest(file.read(_MAX_MANIFEST_BYTES + 1), str(path))


def summary(proof: Proof) -> str:
    """Say in a few lines what was found."""
    result = proof.evidence.result
    assert result is not None, "a proof has a result"
    speed = f", {result.tokens_per_second:.0f} tokens/s" if result.tokens_per_second else ""
    lines = [
        f"passed: {proof.evidence.artifact.name} in {result.total_s:.1f} s",
        f"  ready after {result.ready_s:.2f} s, {result.completion_tokens} tokens{speed}",
        f"  CPU variant: {result.cpu_variant or 'in the executable'}",
        *(f"  mapped: {file.path} (inode {file.inode}, sha256 {file.sha256[:16]}…)" for file in result.dsos),
        *(f"  not tested: {text}" for text in proof.evidence.not_tested),
        f"  evidence: {proof.path}",
    ]
    return "\n".join(lines)
