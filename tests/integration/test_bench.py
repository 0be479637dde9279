"""The bench against engines that do one thing wrong: what would be a wrong figure is an error."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci.context import Context
from ci.smoke.bench import Work, bench, bench_failed, prompt_of
from ci.smoke.bench_command import measure
from ci.smoke.command import summary
from ci.smoke.gpu_command import GpuOptions
from ci.smoke.identity import Expected
from ci.smoke.running import Plan
from ci.smoke.server import Limits
from ci.smoke.target import Target
from opencoti.errors import OpencotiError
from opencoti.evidence import Accelerator, dump_evidence, load_evidence
from opencoti.hashing import sha256_bytes
from tests.conftest import RecordedConsole
from tests.fakes import engine
from tests.fakes.engine import Mode, write_artifact

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the bench reads /proc")

WORK = Work(prompt_tokens=40, completion_tokens=5, samples=3)
EXPECTED = Expected(
    version_string=engine.VERSION_STRING,
    patch_set=engine.PATCH_SET,
    upstream_commits=frozenset({engine.COMMIT}),
)
CARD = Target(
    kind="vulkan",
    library=engine.GPU_LIBRARY,
    accelerators=(Accelerator(name=engine.GPU_NAME, is_software=False, driver="580.65"),),
)


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    model = tmp_path / "tiny.gguf"
    model.write_bytes(b"GGUF")
    return Plan(
        artifact=write_artifact(tmp_path / "good.llamafile", "good"),
        model=model,
        logs=tmp_path / "logs",
        fallback=tmp_path / "fallback",
        expected=EXPECTED,
        limits=Limits(version_s=30, ready_s=30, request_s=30, stop_s=10),
    )


def of(plan: Plan, mode: Mode, **changes: Any) -> Plan:
    artifact = write_artifact(plan.artifact.with_name(f"{mode}.llamafile"), mode)
    return replace(plan, artifact=artifact, **changes)


def refusal(plan: Plan, recorded: RecordedConsole) -> OpencotiError:
    with pytest.raises(OpencotiError) as caught:
        bench(plan, recorded.console, WORK)
    return caught.value


def test_a_good_engine_is_measured(plan: Plan, recorded: RecordedConsole) -> None:
    evidence = bench(plan, recorded.console, WORK)
    assert (evidence.kind, evidence.backend, evidence.passed) == ("bench", "cpu", True)
    result = evidence.measured
    assert result is not None
    assert (result.prompt_tokens, result.completion_tokens, result.cached_tokens) == (40, 5, 0)
    assert (result.warm_ups, len(result.samples)) == (1, 3)
    rates = sorted(40 / sample.prompt_s for sample in result.samples)
    assert result.prompt_per_second == pytest.approx(rates[1], rel=1e-3)
    rates = sorted(4 / sample.completion_s for sample in result.samples)
    assert result.completion_per_second == pytest.approx(rates[1], rel=1e-3)
    assert (result.model.name, result.model.sha256) == ("tiny.gguf", sha256_bytes(b"GGUF"))
    assert result.identity is not None
    assert [item.path for item in result.dsos] == ["~/.llamafile/v/fake/libggml-cpu-fake.so"]
    assert evidence.commands[-1][-2:] == ("--device", "none")
    assert load_evidence(dump_evidence(evidence)) == evidence


@pytest.mark.parametrize(
    ("mode", "error_id", "why"),
    [
        ("takes-from-cache", "bench-cached", "8 tokens"),
        ("does-less", "bench-other-work", "40 and 5 tokens were asked for, the engine counts 40 and 4"),
        ("stops-the-clock", "bench-clock", "it says 1000.000000 s"),
        ("no-timings", "bench-cached", "None"),
        ("maps-planted", "smoke-planted-library", ""),
        ("other-build", "smoke-other-build", ""),
        ("dies-answering", "smoke-request-failed", ""),
        ("aborts-at-end", "smoke-died", ""),
    ],
)
def test_what_would_be_a_wrong_figure_is_an_error(
    plan: Plan, recorded: RecordedConsole, mode: Mode, error_id: str, why: str
) -> None:
    error = refusal(of(plan, mode), recorded)
    assert (error.error_id, error.exit_code, why in error.why) == (error_id, 6, True)
    evidence = bench_failed(of(plan, mode), error)
    assert evidence.failure is not None
    assert (evidence.kind, evidence.passed, evidence.failure.error) == ("bench", False, error_id)


def test_device_that_computed_is_named(plan: Plan, recorded: RecordedConsole) -> None:
    evidence = bench(of(plan, "gpu", backend="vulkan", target=CARD), recorded.console, WORK)
    assert evidence.measured is not None
    offload = evidence.measured.offload
    assert offload is not None
    assert (offload.device, offload.layers) == ("Vulkan0", 3)
    assert evidence.device.accelerators == CARD.accelerators
    assert evidence.is_of_a_device


@pytest.mark.parametrize(
    ("mode", "error_id"),
    [
        ("gpu-falls-back", "smoke-not-offloaded"),
        ("gpu-without-library", "smoke-backend-not-loaded"),
    ],
)
def test_silent_run_on_the_cpu_is_no_bench_of_a_device(
    plan: Plan, recorded: RecordedConsole, mode: Mode, error_id: str
) -> None:
    error = refusal(of(plan, mode, backend="vulkan", target=CARD), recorded)
    assert (error.error_id, error.exit_code) == (error_id, 6)


def test_backend_without_a_device_is_not_measured_on_the_cpu(plan: Plan, recorded: RecordedConsole) -> None:
    assert refusal(replace(plan, backend="cuda13"), recorded).error_id == "smoke-backend-unknown"


def test_prompts_share_no_beginning() -> None:
    first = [prompt_of(number, 1)[0] for number in range(6)]
    assert len(set(first)) == 6
    assert all(100 <= token < 1100 for token in prompt_of(5, 512))


def test_the_command_keeps_evidence_of_a_pass_and_of_a_failure(
    plan: Plan, layout: Any, recorded: RecordedConsole
) -> None:
    context = Context(layout=layout, console=recorded.console)
    options = GpuOptions(model=plan.model)
    proof = measure(context, plan.artifact, "cpu", options)
    assert proof.path == layout.dist / "evidence" / "good.llamafile.bench-cpu.json"
    assert "tokens/s, 512 per request" in summary(proof)
    with pytest.raises(OpencotiError):
        measure(context, of(plan, "does-less").artifact, "cpu", options)
    kept = load_evidence((layout.dist / "evidence" / "does-less.llamafile.bench-cpu.json").read_bytes())
    assert kept.failure is not None
    assert kept.failure.error == "bench-other-work"
