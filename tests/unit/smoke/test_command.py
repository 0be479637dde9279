"""What the command does around a run: finding the artifact and its manifest, writing evidence."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from ci.context import Context
from ci.paths import Layout
from ci.smoke import cli
from ci.smoke.command import evidence_path, prove, summary
from opencoti.errors import ConfigError, UsageError, VerificationError
from opencoti.evidence import load_evidence
from opencoti.hashing import sha256_file
from tests.conftest import RecordedConsole
from tests.fakes.engine import write_artifact


@pytest.fixture
def context(layout: Layout, recorded: RecordedConsole) -> Context:
    return Context(layout=layout, console=recorded.console)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"GGUF")
    return path


def test_evidence_of_a_pass_is_written_and_can_be_read(context: Context, tmp_path: Path, model: Path) -> None:
    artifact = write_artifact(tmp_path / "a.llamafile", "good")
    proof = prove(context, artifact, model=model)
    assert proof.path == context.layout.dist / "evidence" / "a.llamafile.smoke-cpu.json"
    evidence = load_evidence(proof.path.read_bytes())
    assert evidence == proof.evidence
    assert evidence.artifact.sha256 == sha256_file(artifact)
    assert "GPU offload" in evidence.not_tested
    assert "libggml-cpu-fake.so" in summary(proof)


def test_evidence_of_a_failure_replaces_that_of_a_pass(context: Context, tmp_path: Path, model: Path) -> None:
    artifact = write_artifact(tmp_path / "a.llamafile", "good")
    prove(context, artifact, model=model)
    write_artifact(artifact, "empty-text")
    with pytest.raises(VerificationError):
        prove(context, artifact, model=model)
    evidence = load_evidence(evidence_path(context.layout, artifact, "cpu").read_bytes())
    assert not evidence.passed
    assert evidence.failure is not None
    assert evidence.failure.error == "smoke-bad-chat"


def test_what_passed_is_not_run_again_when_allowed(context: Context, tmp_path: Path, model: Path) -> None:
    artifact = write_artifact(tmp_path / "a.llamafile", "good")
    first = prove(context, artifact, model=model)
    log = context.layout.logs / "smoke-a.llamafile.log"
    log.unlink()
    assert prove(context, artifact, model=model, allow_reuse=True) == first
    assert not log.exists()
    prove(context, artifact, model=model)
    assert log.exists()
    write_artifact(artifact, "empty-text")
    for _ in range(2):  # a failure is never reused
        with pytest.raises(VerificationError):
            prove(context, artifact, model=model, allow_reuse=True)


def test_a_broken_manifest_stops_before_anything_runs(context: Context, tmp_path: Path, model: Path) -> None:
    artifact = write_artifact(tmp_path / "a.llamafile", "good")
    (tmp_path / "a.llamafile.MANIFEST.json").write_text("{}")
    with pytest.raises(ConfigError) as caught:
        prove(context, artifact, model=model)
    assert caught.value.error_id == "manifest-schema-unknown"
    assert not context.layout.dist.exists()


def test_the_command_names_a_missing_artifact(context: Context) -> None:
    parser = argparse.ArgumentParser()
    cli.register(parser.add_subparsers(), argparse.ArgumentParser(add_help=False))
    args = parser.parse_args(["smoke", "nothing.llamafile"])
    with pytest.raises(UsageError) as caught:
        args.command(args, context)
    assert caught.value.error_id == "artifact-not-found"
