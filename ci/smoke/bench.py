"""The bench of a release: how fast one artifact computes on one device, by the engine's own clock.

What the smoke test proves of a run is proved of this one too: the file, the build, the libraries that are
mapped, and for a GPU that every layer is on it. So a run that fell back to the CPU is an error, not a figure.
The model is the tiny one: the figures compare devices and releases, they are not those of a model in use.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from ci.smoke.loopback import Loopback
from ci.smoke.mapped import Loaded, check_mapped
from ci.smoke.model import Shape
from ci.smoke.questions import check_model
from ci.smoke.running import (
    Plan,
    Run,
    describe,
    device_of,
    failed_evidence,
    log_file,
    now_text,
    require_manifest_of,
    require_target,
)
from ci.smoke.scratch import plant, scratch_folder
from ci.smoke.server import Server
from ci.smoke.target import check_offload
from ci.smoke.watch import OpenWatch
from opencoti.console import Console
from opencoti.errors import OpencotiError, UsageError, VerificationError
from opencoti.evidence import BenchResult, BenchSample, BuildIdentity, Evidence, ModelFile

# Raised when something else is measured: figures of two versions are not to be compared.
BENCH_VERSION: Final = 1
PROMPT_TOKENS: Final = 512
COMPLETION_TOKENS: Final = 64
WARM_UPS: Final = 1
SAMPLES: Final = 5
_CONTEXT: Final = 1024
_MOST_THREADS: Final = 8
# Plain words in every vocabulary that the tiny model is made with.
_FIRST_TOKEN: Final = 100
_TOKENS: Final = 1000
_REQUEST: Final[dict[str, Any]] = {
    "temperature": 0,
    "seed": 1,
    # The model is noise and may want to end at once. And what was computed before may not be taken over.
    "ignore_eos": True,
    "cache_prompt": False,
}


@dataclass(frozen=True, kw_only=True)
class Work:
    """How much is measured."""

    prompt_tokens: int = PROMPT_TOKENS
    completion_tokens: int = COMPLETION_TOKENS
    warm_ups: int = WARM_UPS
    samples: int = SAMPLES


def bench(plan: Plan, console: Console, work: Work | None = None) -> Evidence:
    """Measure an artifact; the evidence is of kind `bench`.

    Args:
        plan: as for the smoke test.
        console: gets the seconds of each step.
        work: how much is measured.

    Raises:
        UsageError: `smoke-backend-unknown`; `bench-emulated`.
        VerificationError: as the smoke test; `bench-cached`, `bench-other-work`, `bench-clock`.
        MissingError: this system cannot run it.
        StorageError: it may not be run, or the scratch folder cannot be made.
    """
    require_target(plan)
    _require_real(plan)
    started, tested = now_text(), describe(plan.artifact)
    require_manifest_of(plan, tested)
    with log_file(plan, "bench") as log, scratch_folder(plan.fallback, keep=plan.keep_home) as scratch:
        run = Run(plan=plan, console=console, scratch=scratch, log=log, not_tested=[*plan.untested])
        measured = _execute(run, work or Work())
    return Evidence(
        kind="bench",
        test_version=BENCH_VERSION,
        artifact=tested,
        device=device_of(None, run.target),
        backend=plan.backend,
        commands=tuple(run.commands),
        started=started,
        passed=True,
        measured=measured,
        not_tested=tuple(run.not_tested),
    )


def bench_failed(plan: Plan, error: OpencotiError) -> Evidence:
    """Make the evidence of a bench that ended with `error`."""
    return failed_evidence(
        plan, error, kind="bench", version=BENCH_VERSION, device=device_of(None, plan.target)
    )


def _require_real(plan: Plan) -> None:
    if plan.emulator is not None:
        raise UsageError(
            "bench-emulated",
            f"{plan.artifact.name} is for {plan.emulator.arch}: its speed under an emulator says nothing",
            hint=f"measure it on a machine with {plan.emulator.arch}",
        )


def _execute(run: Run, work: Work) -> BenchResult:
    run.timed("version", run.check_version)
    if run.plan.target.is_gpu:
        listing = run.timed("devices", lambda: run.output_of("--list-devices"))
        run.target = run.plan.target.choose(listing)
    plant(run.scratch)
    with OpenWatch(run.scratch.planted) as watch:
        start, threads = run.log_size(), _threads()
        server = run.launch(_words(run, threads))
        try:
            run.wait_ready(server, "ready")
            shown, samples = _measure(run, server, work)
            loaded = check_mapped(server.engine_pid, run.scratch, watch, manifest=run.plan.manifest)
            drivers = run.require_device(server, loaded)
            run.timed("stop", lambda: server.stop(grace_s=run.plan.limits.stop_s))
        finally:
            server.kill()
    result = _result(run, work, samples, loaded, shown, threads)
    if not run.target.is_gpu:
        return result
    offload = check_offload(run.text_since(start), run.target.device, layers=Shape().layers)
    return BenchResult.model_validate(dict(result) | {"drivers": drivers, "offload": offload})


def _threads() -> int:
    """Return how many threads compute: those that this process may use, as far as a tiny model fills them."""
    return min(len(os.sched_getaffinity(0)), _MOST_THREADS)


def _words(run: Run, threads: int) -> list[str]:
    words = [*run.model_words(), "--ctx-size", str(_CONTEXT), "--parallel", "1"]
    words += ["--threads", str(threads), "--threads-batch", str(threads)]
    return [*words, *run.target.arguments]


def _measure(run: Run, server: Server, work: Work) -> tuple[BuildIdentity | None, tuple[BenchSample, ...]]:
    timeout_s = run.plan.limits.request_s
    with server.client() as client:
        props = check_model(client, alias=run.alias, model=run.plan.model, timeout_s=timeout_s)
        shown = run.check_props(props)
        for number in range(work.warm_ups):
            run.timed("warm up", partial(_ask, client, work, number, timeout_s))
        numbers = range(work.warm_ups, work.warm_ups + work.samples)
        samples = run.timed("measure", lambda: tuple(_ask(client, work, n, timeout_s) for n in numbers))
    server.require_alive("while it was measured")
    return shown, samples


def prompt_of(number: int, count: int) -> list[int]:
    """Return a prompt that shares no beginning with that of another number."""
    return [_FIRST_TOKEN + (number * 7 + place * 31) % _TOKENS for place in range(count)]


def _ask(client: Loopback, work: Work, number: int, timeout_s: float) -> BenchSample:
    prompt = prompt_of(number, work.prompt_tokens)
    started = time.monotonic()
    document = client.post(
        "/completion",
        {**_REQUEST, "prompt": prompt, "n_predict": work.completion_tokens},
        timeout_s=timeout_s,
    )
    return read_sample(document, work, wall_s=time.monotonic() - started)


def read_sample(document: Any, work: Work, *, wall_s: float) -> BenchSample:
    """Take the times out of an answer, if it did the work that was asked for.

    Args:
        document: what `/completion` answered.
        work: what was asked for.
        wall_s: how long that took as seen from outside.

    Raises:
        VerificationError: `bench-cached`, a part of the prompt was computed before; `bench-other-work`, other
            numbers of tokens; `bench-clock`, the engine's times cannot be.
    """
    given = document.get("timings") if isinstance(document, dict) else None
    timings: dict[str, Any] = given if isinstance(given, dict) else {}
    cached, done = timings.get("cache_n"), (timings.get("prompt_n"), timings.get("predicted_n"))
    if cached != 0:
        raise VerificationError(
            "bench-cached",
            "a measured request was not computed as a whole",
            why=f"the engine says that it took {str(cached)[:40]} tokens of the prompt from its cache",
        )
    if done != (work.prompt_tokens, work.completion_tokens):
        raise VerificationError(
            "bench-other-work",
            "a measured request did other work than it was asked for",
            why=f"{work.prompt_tokens} and {work.completion_tokens} tokens were asked for, "
            f"the engine counts {str(done[0])[:40]} and {str(done[1])[:40]}",
        )
    prompt_s, completion_s = (_seconds(timings.get(name)) for name in ("prompt_ms", "predicted_ms"))
    if prompt_s <= 0 or completion_s <= 0 or prompt_s + completion_s > wall_s:
        raise VerificationError(
            "bench-clock",
            "the engine's times of a request cannot be",
            why=f"it says {prompt_s:.6f} s and {completion_s:.6f} s, and all of it took {wall_s:.6f} s",
        )
    return BenchSample(prompt_s=prompt_s, completion_s=completion_s, wall_s=round(wall_s, 6))


def _seconds(value: Any) -> float:
    return round(value / 1000, 6) if isinstance(value, (int, float)) and value < 1e9 else 0.0


def _result(
    run: Run,
    work: Work,
    samples: Sequence[BenchSample],
    loaded: Loaded,
    shown: BuildIdentity | None,
    threads: int,
) -> BenchResult:
    return BenchResult(
        model=_model(run.plan.model),
        threads=threads,
        prompt_tokens=work.prompt_tokens,
        completion_tokens=work.completion_tokens,
        cached_tokens=0,
        warm_ups=work.warm_ups,
        samples=tuple(samples),
        prompt_per_second=_median(work.prompt_tokens / sample.prompt_s for sample in samples),
        # The first token comes with the prompt: that many steps lie between it and the last one.
        completion_per_second=_median((work.completion_tokens - 1) / item.completion_s for item in samples),
        identity=shown,
        cpu_variant=loaded.cpu_variant,
        dsos=loaded.files,
        offload=None,
    )


def _median(values: Iterable[float]) -> float:
    return round(statistics.median(values), 2)


def _model(path: Path) -> ModelFile:
    found = describe(path)
    return ModelFile(name=found.name, sha256=found.sha256, size=found.size)
