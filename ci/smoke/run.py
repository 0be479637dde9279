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
from ci.smoke.comparison import Trace, ask_trace, compare, follow_trace
from ci.smoke.device import this_device
from ci.smoke.devices import mapped_drivers
from ci.smoke.emulation import NOT_TESTED as NOT_EMULATED
from ci.smoke.emulation import Emulator
from ci.smoke.failures import died_error, log_tail
from ci.smoke.identity import Expected
from ci.smoke.loopback import Loopback
from ci.smoke.mapped import Loaded, check_mapped
from ci.smoke.model import Shape
from ci.smoke.place import Place, ThisMachine
from ci.smoke.questions import ChatAnswer, EmbeddingAnswer, ask_chat, ask_embedding, check_model, require_same
from ci.smoke.scratch import Scratch, plant, scratch_folder
from ci.smoke.server import Limits, Server
from ci.smoke.target import CPU, Target, check_offload, require_library
from ci.smoke.watch import OpenWatch
from opencoti.console import Console
from opencoti.errors import OpencotiError, UsageError, VerificationError, storage_error
from opencoti.evidence import (
    BuildIdentity,
    Comparison,
    Device,
    Evidence,
    Failure,
    MappedFile,
    SmokeResult,
    TestedArtifact,
)
from opencoti.hashing import sha256_bytes, sha256_file
from opencoti.manifest import Manifest

T = TypeVar("T")

# Raised when the test changes in what it proves: older evidence is then not reused.
TEST_VERSION: Final = 1


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is tested, and how.

    `manifest` is what the artifact must be, None if there is none. `expected` is the build identity it must
    show; None leaves the identity unchecked, and the evidence says so. `port` 0 lets the engine choose.
    `logs` is where the engine's log goes, `fallback` where the scratch folder goes when the temporary
    folder is mounted noexec. `emulator` runs an artifact that is for another processor.
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
    emulator: Emulator | None = None
    target: Target = CPU
    place: Place | None = None

    @property
    def where(self) -> Place:
        """What starts its programs: the place that was chosen, else this machine."""
        return self.place or ThisMachine(emulator=self.emulator)

    @property
    def untested(self) -> tuple[str, ...]:
        """What a run leaves untested even when it passes."""
        return (*self.target.not_tested, *(NOT_EMULATED if self.emulator else ()))


@dataclass(frozen=True, kw_only=True)
class _Answers:
    chat: ChatAnswer
    embedding: EmbeddingAnswer
    identity: BuildIdentity | None
    comparison: Comparison | None


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
    not_tested: list[str] = field(default_factory=list)
    target: Target = CPU

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
    if (plan.backend == "cpu") == plan.target.is_gpu:
        # What the evidence is called and what was computed on may never fall apart.
        raise UsageError(
            "smoke-backend-unknown",
            f"nothing says how to compute on the backend {plan.backend!r}",
            hint="cpu needs nothing; `python -m ci smoke ARTIFACT --backend NAME` finds a device",
        )
    started, clock = _now(), time.monotonic()
    tested = describe(plan.artifact)
    _require_manifest_of(plan, tested)
    with _log_file(plan) as log, scratch_folder(plan.fallback, keep=plan.keep_home) as scratch:
        run = _Run(plan=plan, console=console, scratch=scratch, log=log, not_tested=[*plan.untested])
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
    return Evidence(
        kind="smoke",
        test_version=TEST_VERSION,
        artifact=describe(plan.artifact),
        device=device_of(plan.emulator, plan.target),
        backend=plan.backend,
        started=_now(),
        passed=False,
        failure=Failure(error=error.error_id, what=error.what, why=error.why),
        not_tested=plan.untested,
    )


def device_of(emulator: Emulator | None, target: Target = CPU) -> Device:
    """Describe what a test runs on: this machine, or the one that an emulator plays, and its accelerator."""
    device = this_device() if emulator is None else emulator.device()
    return device.model_copy(update={"accelerators": target.accelerators}) if target.is_gpu else device


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
    reference = _reference(run) if run.plan.target.is_gpu else None
    plant(run.scratch)
    with OpenWatch(run.scratch.planted) as watch:
        if not watch.is_active:
            run.not_tested.append("whether the planted library was opened and closed again (no inotify)")
        start = run.log.stat().st_size
        server = _boot(run)
        try:
            _wait_ready(run, server, "ready")
            answers = _ask(run, server, reference)
            loaded = check_mapped(server.engine_pid, run.scratch, watch, manifest=run.plan.manifest)
            drivers = _require_device(run, server, loaded)
            code = run.timed("stop", lambda: server.stop(grace_s=run.plan.limits.stop_s))
        finally:
            server.kill()
    result = _result(run, answers, loaded, code)
    if not run.target.is_gpu:
        return result
    offload = check_offload(_text_since(run, start), run.target.device, layers=Shape().layers)
    return result.model_copy(update={"drivers": drivers, "offload": offload})


def _reference(run: _Run) -> Trace:
    """Find the device, and ask the same artifact on the CPU what it is to be compared with."""
    listing = run.timed("devices", lambda: _output_of(run, "--list-devices"))
    target = run.plan.target.choose(listing)
    server = _boot(run)
    try:
        _wait_ready(run, server, "CPU ready")
        with server.client() as client:
            check_model(client, alias=run.alias, model=run.plan.model, timeout_s=run.plan.limits.request_s)
            trace = run.timed("CPU tokens", lambda: ask_trace(client, timeout_s=run.plan.limits.request_s))
        server.stop(grace_s=run.plan.limits.stop_s)
    finally:
        server.kill()
    run.target = target
    return trace


def _require_device(run: _Run, server: Server, loaded: Loaded) -> tuple[MappedFile, ...]:
    if not run.target.is_gpu:
        return ()
    require_library(loaded, run.target.library)
    return mapped_drivers(server.engine_pid)


def _wait_ready(run: _Run, server: Server, name: str) -> None:
    run.timed(name, lambda: server.wait_ready(port=run.plan.port, timeout_s=run.plan.limits.ready_s))


def _check_version(run: _Run) -> None:
    """Run `ARTIFACT --version`: it must end well, and say which build it is."""
    text = _output_of(run, "--version")
    if run.plan.expected is not None:
        found = identity.from_version_output(text)
        identity.check_identity(found, run.plan.expected, source="--version")


def _output_of(run: _Run, option: str) -> str:
    """Run the artifact with one option; return what it printed. It must end well."""
    before = run.log.stat().st_size
    server = _launch(run, [option])
    try:
        code = server.child.wait(timeout=run.plan.limits.version_s)
    except subprocess.TimeoutExpired as exc:
        raise VerificationError(
            "smoke-version-hangs",
            f"{run.plan.artifact.name} {option} did not end within {run.plan.limits.version_s:.0f} s",
            why=f"its last lines:\n{log_tail(run.log)}",
        ) from exc
    finally:
        server.kill()
    if code != 0:
        raise died_error(code, run.log, what=f"at {option}")
    return _text_since(run, before)


def _text_since(run: _Run, start: int) -> str:
    return run.log.read_bytes()[start:].decode("utf-8", "replace")


def _boot(run: _Run) -> Server:
    arguments = ["--model", str(run.plan.model), "--alias", run.alias]
    arguments += [*run.plan.where.address(run.scratch, run.plan.port), "--ctx-size", "512", "--parallel", "1"]
    # Two threads for the prompt prove the thread pool; for the few tokens after it they would mostly wait
    # for each other on a busy machine.
    arguments += ["--threads", "1", "--threads-batch", "2"]
    # One boot serves both: this server still completes chats when embeddings are on.
    arguments += ["--embedding", "--pooling", "mean", *run.target.arguments]
    return _launch(run, arguments)


def _launch(run: _Run, arguments: list[str]) -> Server:
    folders = (str(run.plan.model.parent), str(run.scratch.root))
    shown = [Path(word).name if word.startswith(folders) else word for word in arguments]
    run.commands.append((run.plan.artifact.name, *shown))
    with open(run.log, "ab") as log:
        return run.plan.where.launch(
            run.plan.artifact,
            arguments,
            scratch=run.scratch,
            log=log,
            variables=run.plan.target.variables,
        )


def _ask(run: _Run, server: Server, reference: Trace | None) -> _Answers:
    limits = run.plan.limits
    with server.client() as client:
        props = check_model(client, alias=run.alias, model=run.plan.model, timeout_s=limits.request_s)
        shown = _check_identity(run, props)
        comparison = _compare(run, client, reference) if reference else None
        chat = run.timed("chat", lambda: ask_chat(client, alias=run.alias, timeout_s=limits.request_s))
        require_same(chat, ask_chat(client, alias=run.alias, timeout_s=limits.request_s))
        embedding = run.timed(
            "embedding",
            lambda: ask_embedding(client, alias=run.alias, width=Shape().width, timeout_s=limits.request_s),
        )
    server.require_alive("while it answered")
    return _Answers(chat=chat, embedding=embedding, identity=shown, comparison=comparison)


def _compare(run: _Run, client: Loopback, reference: Trace) -> Comparison:
    steps = run.timed("tokens", lambda: follow_trace(client, reference, timeout_s=run.plan.limits.request_s))
    return compare(reference, steps)


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
        tokens_per_second=None if run.plan.emulator else chat.tokens_per_second,
        text_sha256=sha256_bytes(chat.text.encode("utf-8")),
        embedding_width=answers.embedding.width,
        exit_code=code,
        identity=answers.identity,
        cpu_variant=loaded.cpu_variant,
        dsos=loaded.files,
        comparison=answers.comparison,
    )


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
