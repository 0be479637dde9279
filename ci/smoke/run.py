"""The smoke test itself: named steps over one artifact, from its first byte to the proof that it is gone."""

from __future__ import annotations

import secrets
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

from ci.smoke import identity
from ci.smoke.device import this_device
from ci.smoke.failures import died_error, log_tail
from ci.smoke.identity import Expected
from ci.smoke.loopback import Loopback
from ci.smoke.mapped import Loaded, check_mapped
from ci.smoke.model import Shape
from ci.smoke.questions import ChatAnswer, EmbeddingAnswer, ask_chat, ask_embedding, check_model, require_same
from ci.smoke.scratch import Scratch, plant, scratch_folder
from ci.smoke.server import Limits, Server, launch
from ci.smoke.watch import OpenWatch
from opencoti.console import Console
from opencoti.errors import OpencotiError, UsageError, VerificationError, storage_error
from opencoti.evidence import BuildIdentity, Evidence, Failure, SmokeResult, TestedArtifact
from opencoti.hashing import sha256_bytes, sha256_file
from opencoti.manifest import Manifest

T = TypeVar("T")

# Raised when the test changes in what it proves: older evidence is then not reused.
TEST_VERSION: Final = 1

# What each backend adds to the command line, and what a smoke test on it leaves untested.
_BACKENDS: Final[dict[str, tuple[str, ...]]] = {"cpu": ("--device", "none")}
_NOT_TESTED: Final = ("GPU offload", "models of real size", "answers of real quality")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is tested, and how.

    `manifest` is what the artifact must be, None if there is none. `expected` is the build identity it must
    show; None leaves the identity unchecked, and the evidence says so. `port` 0 lets the engine choose.
    `logs` is where the engine's log goes, `fallback` where the scratch folder goes when the temporary
    folder is mounted noexec.
    """

    artifact: Path
    model: Path
    logs: Path
    fallback: Path
    manifest: Manifest | None = None
    expected: Expected | None = None
    backend: str = "cpu"
    port: int = 0
    keep_home: bool = False
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, kw_only=True)
class _Answers:
    chat: ChatAnswer
    embedding: EmbeddingAnswer
    identity: BuildIdentity | None


@dataclass(kw_only=True)
class _Run:
    """The state of one run, filled step by step."""

    plan: Plan
    console: Console
    scratch: Scratch
    log: Path
    alias: str = field(default_factory=lambda: f"smoke-{secrets.token_hex(8)}")
    commands: list[tuple[str, ...]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    not_tested: list[str] = field(default_factory=lambda: list(_NOT_TESTED))

    def timed(self, name: str, action: Callable[[], T]) -> T:
        started = time.monotonic()
        result = action()
        self.seconds[name] = round(time.monotonic() - started, 3)
        self.console.info(f"  {name:<10} {self.seconds[name]:7.2f} s")
        return result


def smoke(plan: Plan, console: Console) -> Evidence:
    """Boot an artifact in a scratch HOME, ask it something, stop it, and prove that nothing is left.

    A library planted in its working folder, and named by `GGML_BACKEND_PATH`, must not be opened.

    Raises:
        UsageError: `smoke-backend-unknown`.
        VerificationError: it does not do what it must; every id starts with `smoke-`.
        MissingError: this system cannot run it.
        StorageError: it may not be run, or the scratch folder cannot be made.
    """
    if plan.backend not in _BACKENDS:
        raise UsageError(
            "smoke-backend-unknown",
            f"there is no smoke test for the backend {plan.backend!r}",
            hint=f"known are: {', '.join(_BACKENDS)}",
        )
    started, clock = _now(), time.monotonic()
    tested = describe(plan.artifact)
    _require_manifest_of(plan, tested)
    with _log_file(plan) as log, scratch_folder(plan.fallback, keep=plan.keep_home) as scratch:
        run = _Run(plan=plan, console=console, scratch=scratch, log=log)
        if plan.keep_home:
            console.info(f"scratch folder, kept: {scratch.root}")
        partial = _execute(run)
    result = partial.model_copy(update={"total_s": round(time.monotonic() - clock, 3)})
    return Evidence(
        kind="smoke",
        test_version=TEST_VERSION,
        artifact=tested,
        device=this_device(),
        backend=plan.backend,
        commands=tuple(run.commands),
        started=started,
        passed=True,
        result=result,
        not_tested=tuple(run.not_tested),
    )


def failed(plan: Plan, error: OpencotiError) -> Evidence:
    """Make the evidence of a run that ended with `error`."""
    return Evidence(
        kind="smoke",
        test_version=TEST_VERSION,
        artifact=describe(plan.artifact),
        device=this_device(),
        backend=plan.backend,
        started=_now(),
        passed=False,
        failure=Failure(error=error.error_id, what=error.what, why=error.why),
        not_tested=_NOT_TESTED,
    )


def describe(artifact: Path) -> TestedArtifact:
    """Identify an artifact by name, size and SHA-256. Raises `StorageError`."""
    try:
        return TestedArtifact(name=artifact.name, sha256=sha256_file(artifact), size=artifact.stat().st_size)
    except OSError as exc:
        raise storage_error(exc, f"cannot read {artifact}") from exc


def _require_manifest_of(plan: Plan, tested: TestedArtifact) -> None:
    if plan.manifest is not None and plan.manifest.sha256 != tested.sha256:
        raise VerificationError(
            "smoke-artifact-differs",
            f"{plan.artifact} is not the file of its manifest",
            why=f"its SHA-256 is {tested.sha256}, the manifest says {plan.manifest.sha256}",
            hint=f"`python -m ci verify {plan.artifact}` says where they differ",
        )


@contextmanager
def _log_file(plan: Plan) -> Iterator[Path]:
    """Yield a new log file; it takes its short name when all went well."""
    final = plan.logs / f"smoke-{plan.artifact.name}.log"
    path = final.with_suffix(f".{secrets.token_hex(4)}.log")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600, exist_ok=False)
    except OSError as exc:
        raise storage_error(exc, f"cannot write {path}") from exc
    yield path
    path.replace(final)


def _execute(run: _Run) -> SmokeResult:
    run.timed("version", lambda: _check_version(run))
    plant(run.scratch)
    with OpenWatch(run.scratch.planted) as watch:
        if not watch.is_active:
            run.not_tested.append("whether the planted library was opened and closed again (no inotify)")
        server = _boot(run)
        try:
            run.timed(
                "ready", lambda: server.wait_ready(port=run.plan.port, timeout_s=run.plan.limits.ready_s)
            )
            answers = _ask(run, server)
            loaded = check_mapped(server.engine_pid, run.scratch, watch, manifest=run.plan.manifest)
            code = run.timed("stop", lambda: server.stop(grace_s=run.plan.limits.stop_s))
        finally:
            server.kill()
    return _result(run, answers, loaded, code)


def _check_version(run: _Run) -> None:
    """Run `ARTIFACT --version`: it must end well, and say which build it is."""
    before = run.log.stat().st_size
    server = _launch(run, ["--version"])
    try:
        code = server.child.wait(timeout=run.plan.limits.version_s)
    except subprocess.TimeoutExpired as exc:
        raise VerificationError(
            "smoke-version-hangs",
            f"{run.plan.artifact.name} --version did not end within {run.plan.limits.version_s:.0f} s",
            why=f"its last lines:\n{log_tail(run.log)}",
        ) from exc
    finally:
        server.kill()
    if code != 0:
        raise died_error(code, run.log, what="at --version")
    if run.plan.expected is not None:
        text = run.log.read_bytes()[before:].decode("utf-8", "replace")
        found = identity.from_version_output(text)
        identity.check_identity(found, run.plan.expected, source="--version")


def _boot(run: _Run) -> Server:
    arguments = ["--model", str(run.plan.model), "--alias", run.alias, "--host", "127.0.0.1"]
    arguments += ["--port", str(run.plan.port), "--ctx-size", "512", "--parallel", "1"]
    # Two threads for the prompt prove the thread pool; for the few tokens after it they would mostly wait
    # for each other on a busy machine.
    arguments += ["--threads", "1", "--threads-batch", "2"]
    # One boot serves both: this server still completes chats when embeddings are on.
    arguments += ["--embedding", "--pooling", "mean", *_BACKENDS[run.plan.backend]]
    return _launch(run, arguments)


def _launch(run: _Run, arguments: list[str]) -> Server:
    shown = [run.plan.model.name if word == str(run.plan.model) else word for word in arguments]
    run.commands.append((run.plan.artifact.name, *shown))
    with open(run.log, "ab") as log:
        return launch(run.plan.artifact, arguments, scratch=run.scratch, log=log)


def _ask(run: _Run, server: Server) -> _Answers:
    limits = run.plan.limits
    with Loopback(server.port) as client:
        props = check_model(client, alias=run.alias, model=run.plan.model, timeout_s=limits.request_s)
        shown = _check_identity(run, props)
        chat = run.timed("chat", lambda: ask_chat(client, alias=run.alias, timeout_s=limits.request_s))
        require_same(chat, ask_chat(client, alias=run.alias, timeout_s=limits.request_s))
        embedding = run.timed(
            "embedding",
            lambda: ask_embedding(client, alias=run.alias, width=Shape().width, timeout_s=limits.request_s),
        )
    server.require_alive("while it answered")
    return _Answers(chat=chat, embedding=embedding, identity=shown)


def _check_identity(run: _Run, props: object) -> BuildIdentity | None:
    if run.plan.expected is None:
        run.not_tested.append("build identity")
        return None
    return identity.check_identity(identity.from_props(props), run.plan.expected, source="/props")


def _result(run: _Run, answers: _Answers, loaded: Loaded, code: int) -> SmokeResult:
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
        tokens_per_second=chat.tokens_per_second,
        text_sha256=sha256_bytes(chat.text.encode("utf-8")),
        embedding_width=answers.embedding.width,
        exit_code=code,
        identity=answers.identity,
        cpu_variant=loaded.cpu_variant,
        dsos=loaded.files,
    )


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
