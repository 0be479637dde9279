"""The smoke test itself: named steps over one artifact, from its first byte to the proof that it is gone."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from ci.smoke.comparison import Trace, ask_trace, compare, follow_trace
from ci.smoke.loopback import Loopback
from ci.smoke.mapped import Loaded, check_mapped
from ci.smoke.model import Shape
from ci.smoke.questions import ChatAnswer, EmbeddingAnswer, ask_chat, ask_embedding, check_model, require_same
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
from opencoti.errors import OpencotiError
from opencoti.evidence import BuildIdentity, Comparison, Evidence, SmokeResult
from opencoti.hashing import sha256_bytes

__all__ = ["TEST_VERSION", "Plan", "describe", "device_of", "failed", "smoke"]

# Raised when the test changes in what it proves: older evidence is then not reused.
TEST_VERSION: Final = 1


@dataclass(frozen=True, kw_only=True)
class _Answers:
    chat: ChatAnswer
    embedding: EmbeddingAnswer
    identity: BuildIdentity | None
    comparison: Comparison | None


def smoke(plan: Plan, console: Console) -> Evidence:
    """Boot an artifact in a scratch HOME, ask it something, stop it, and prove that nothing is left.

    A library planted in its working folder, and named by `GGML_BACKEND_PATH`, must not be opened.

    Raises:
        UsageError: `smoke-backend-unknown`.
        VerificationError: it does not do what it must; every id starts with `smoke-`.
        MissingError: this system cannot run it.
        StorageError: it may not be run, or the scratch folder cannot be made.
    """
    require_target(plan)
    started, clock = now_text(), time.monotonic()
    tested = describe(plan.artifact)
    require_manifest_of(plan, tested)
    with log_file(plan, "smoke") as log, scratch_folder(plan.fallback, keep=plan.keep_home) as scratch:
        run = Run(plan=plan, console=console, scratch=scratch, log=log, not_tested=[*plan.untested])
        if plan.keep_home:
            console.info(f"scratch folder, kept: {scratch.root}")
        partial = _execute(run)
    result = partial.model_copy(update={"total_s": round(time.monotonic() - clock, 3)})
    return Evidence(
        kind="smoke",
        test_version=TEST_VERSION,
        artifact=tested,
        device=device_of(plan.emulator, run.target),
        backend=plan.backend,
        commands=tuple(run.commands),
        started=started,
        passed=True,
        result=result,
        not_tested=tuple(run.not_tested),
    )


def failed(plan: Plan, error: OpencotiError) -> Evidence:
    """Make the evidence of a run that ended with `error`."""
    device = device_of(plan.emulator, plan.target)
    return failed_evidence(plan, error, kind="smoke", version=TEST_VERSION, device=device)


def _execute(run: Run) -> SmokeResult:
    run.timed("version", run.check_version)
    reference = _reference(run) if run.plan.target.is_gpu else None
    plant(run.scratch)
    with OpenWatch(run.scratch.planted) as watch:
        if not watch.is_active:
            run.not_tested.append("whether the planted library was opened and closed again (no inotify)")
        start = run.log_size()
        server = _boot(run)
        try:
            run.wait_ready(server, "ready")
            answers = _ask(run, server, reference)
            loaded = check_mapped(server.engine_pid, run.scratch, watch, manifest=run.plan.manifest)
            drivers = run.require_device(server, loaded)
            code = run.timed("stop", lambda: server.stop(grace_s=run.plan.limits.stop_s))
        finally:
            server.kill()
    result = _result(run, answers, loaded, code)
    if not run.target.is_gpu:
        return result
    offload = check_offload(run.text_since(start), run.target.device, layers=Shape().layers)
    return result.model_copy(update={"drivers": drivers, "offload": offload})


def _reference(run: Run) -> Trace:
    """Find the device, and ask the same artifact on the CPU what it is to be compared with."""
    listing = run.timed("devices", lambda: run.output_of("--list-devices"))
    target = run.plan.target.choose(listing)
    server = _boot(run)
    try:
        run.wait_ready(server, "CPU ready")
        with server.client() as client:
            check_model(client, alias=run.alias, model=run.plan.model, timeout_s=run.plan.limits.request_s)
            trace = run.timed("CPU tokens", lambda: ask_trace(client, timeout_s=run.plan.limits.request_s))
        server.stop(grace_s=run.plan.limits.stop_s)
    finally:
        server.kill()
    run.target = target
    return trace


def _boot(run: Run) -> Server:
    arguments = [*run.model_words(), "--ctx-size", "512", "--parallel", "1"]
    # Two threads for the prompt prove the thread pool; for the few tokens after it they would mostly wait
    # for each other on a busy machine.
    arguments += ["--threads", "1", "--threads-batch", "2"]
    # One boot serves both: this server still completes chats when embeddings are on.
    arguments += ["--embedding", "--pooling", "mean", *run.target.arguments]
    return run.launch(arguments)


def _ask(run: Run, server: Server, reference: Trace | None) -> _Answers:
    limits = run.plan.limits
    with server.client() as client:
        props = check_model(client, alias=run.alias, model=run.plan.model, timeout_s=limits.request_s)
        shown = run.check_props(props)
        comparison = _compare(run, client, reference) if reference else None
        chat = run.timed("chat", lambda: ask_chat(client, alias=run.alias, timeout_s=limits.request_s))
        require_same(chat, ask_chat(client, alias=run.alias, timeout_s=limits.request_s))
        embedding = run.timed(
            "embedding",
            lambda: ask_embedding(client, alias=run.alias, width=Shape().width, timeout_s=limits.request_s),
        )
    server.require_alive("while it answered")
    return _Answers(chat=chat, embedding=embedding, identity=shown, comparison=comparison)


def _compare(run: Run, client: Loopback, reference: Trace) -> Comparison:
    steps = run.timed("tokens", lambda: follow_trace(client, reference, timeout_s=run.plan.limits.request_s))
    return compare(reference, steps)


def _result(run: Run, answers: _Answers, loaded: Loaded, code: int) -> SmokeResult:
    if not loaded.files:
        run.not_tested.append("loading of backend libraries (none is mapped: they are in the executable)")
    chat = answers.chat
    return SmokeResult(
        version_s=run.seconds["version"],
        ready_s=run.seconds["ready"],
        chat_s=run.seconds["chat"],
        embedding_s=run.seconds["embedding"],
        stop_s=run.seconds["stop"],
        total_s=0.0,
        prompt_tokens=chat.prompt_tokens,
        completion_tokens=chat.completion_tokens,
        tokens_per_second=None if run.plan.emulator else chat.tokens_per_second,
        text_sha256=sha256_bytes(chat.text.encode("utf-8")),
        embedding_width=answers.embedding.width,
        exit_code=code,
        identity=answers.identity,
        cpu_variant=loaded.cpu_variant,
        dsos=loaded.files,
        comparison=answers.comparison,
    )
