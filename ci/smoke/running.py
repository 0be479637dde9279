"""One run of an artifact, whatever is asked of it: what is tested, its folders, its log, its processes.

The smoke test and the bench are made of this; what they ask and what they conclude is theirs.
"""

from __future__ import annotations

import secrets
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeVar

from ci.smoke import identity
from ci.smoke.device import this_device
from ci.smoke.devices import mapped_drivers
from ci.smoke.emulation import NOT_TESTED as NOT_EMULATED
from ci.smoke.emulation import Emulator
from ci.smoke.failures import died_error, log_tail
from ci.smoke.identity import Expected
from ci.smoke.mapped import Loaded
from ci.smoke.place import Place, ThisMachine
from ci.smoke.scratch import Scratch
from ci.smoke.server import Limits, Server
from ci.smoke.target import CPU, Target, require_library
from opencoti.console import Console
from opencoti.errors import OpencotiError, UsageError, VerificationError, storage_error
from opencoti.evidence import BuildIdentity, Device, Evidence, Failure, MappedFile, TestedArtifact
from opencoti.hashing import sha256_file
from opencoti.manifest import Manifest

T = TypeVar("T")


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


@dataclass(kw_only=True)
class Run:
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
        """Do something, and keep how long it took."""
        started = time.monotonic()
        result = action()
        self.seconds[name] = round(time.monotonic() - started, 3)
        self.console.info(f"  {name:<10} {self.seconds[name]:7.2f} s")
        return result

    def launch(self, arguments: Sequence[str]) -> Server:
        """Start the artifact with these words; whoever calls this ends it."""
        folders = (str(self.plan.model.parent), str(self.scratch.root))
        shown = [Path(word).name if word.startswith(folders) else word for word in arguments]
        self.commands.append((self.plan.artifact.name, *shown))
        with open(self.log, "ab") as log:
            return self.plan.where.launch(
                self.plan.artifact,
                arguments,
                scratch=self.scratch,
                log=log,
                variables=self.plan.target.variables,
            )

    def model_words(self) -> list[str]:
        """Return the words for the model, its name, and where the server listens."""
        words = ["--model", str(self.plan.model), "--alias", self.alias]
        return [*words, *self.plan.where.address(self.scratch, self.plan.port)]

    def wait_ready(self, server: Server, name: str) -> None:
        """Wait until a server is ready. Raises like `Server.wait_ready`."""
        self.timed(name, lambda: server.wait_ready(port=self.plan.port, timeout_s=self.plan.limits.ready_s))

    def output_of(self, option: str) -> str:
        """Run the artifact with one option; return what it printed. It must end well.

        Raises:
            VerificationError: `smoke-version-hangs`, `smoke-died`.
        """
        before = self.log_size()
        server = self.launch([option])
        try:
            code = server.child.wait(timeout=self.plan.limits.version_s)
        except subprocess.TimeoutExpired as exc:
            raise VerificationError(
                "smoke-version-hangs",
                f"{self.plan.artifact.name} {option} did not end within {self.plan.limits.version_s:.0f} s",
                why=f"its last lines:\n{log_tail(self.log)}",
            ) from exc
        finally:
            server.kill()
        if code != 0:
            raise died_error(code, self.log, what=f"at {option}")
        return self.text_since(before)

    def check_version(self) -> None:
        """Run `ARTIFACT --version`: it must end well, and say which build it is."""
        text = self.output_of("--version")
        if self.plan.expected is not None:
            found = identity.from_version_output(text)
            identity.check_identity(found, self.plan.expected, source="--version")

    def check_props(self, props: object) -> BuildIdentity | None:
        """Return the build identity that `/props` shows, if it is the expected one."""
        if self.plan.expected is None:
            self.not_tested.append("build identity")
            return None
        return identity.check_identity(identity.from_props(props), self.plan.expected, source="/props")

    def require_device(self, server: Server, loaded: Loaded) -> tuple[MappedFile, ...]:
        """Return the driver's libraries that are mapped; the backend's own must be. Nothing for the CPU."""
        if not self.target.is_gpu:
            return ()
        require_library(loaded, self.target.library)
        return mapped_drivers(server.engine_pid)

    def log_size(self) -> int:
        """Return how long the log is now, in bytes."""
        return self.log.stat().st_size

    def text_since(self, start: int) -> str:
        """Return what was logged after the first `start` bytes."""
        return self.log.read_bytes()[start:].decode("utf-8", "replace")


def require_target(plan: Plan) -> None:
    """Raise `UsageError` (`smoke-backend-unknown`) where nothing says how to compute on a backend.

    What evidence is called and what was computed on may never fall apart.
    """
    if (plan.backend == "cpu") == plan.target.is_gpu:
        raise UsageError(
            "smoke-backend-unknown",
            f"nothing says how to compute on the backend {plan.backend!r}",
            hint="cpu needs nothing; `python -m ci smoke ARTIFACT --backend NAME` finds a device",
        )


def failed_evidence(
    plan: Plan, error: OpencotiError, *, kind: Literal["smoke", "bench"], version: int, device: Device
) -> Evidence:
    """Make the evidence of a test that ended with `error`; `version` is that of the test."""
    return Evidence(
        kind=kind,
        test_version=version,
        artifact=describe(plan.artifact),
        device=device,
        backend=plan.backend,
        started=now_text(),
        passed=False,
        failure=Failure(error=error.error_id, what=error.what, why=error.why),
        not_tested=plan.untested,
    )


def require_manifest_of(plan: Plan, tested: TestedArtifact) -> None:
    """Raise `VerificationError` (`smoke-artifact-differs`) where the manifest is of another file."""
    if plan.manifest is not None and plan.manifest.sha256 != tested.sha256:
        raise VerificationError(
            "smoke-artifact-differs",
            f"{plan.artifact} is not the file of its manifest",
            why=f"its SHA-256 is {tested.sha256}, the manifest says {plan.manifest.sha256}",
            hint=f"`python -m ci verify {plan.artifact}` says where they differ",
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


@contextmanager
def log_file(plan: Plan, kind: str) -> Iterator[Path]:
    """Yield a new log file; it takes its short name when all went well."""
    final = plan.logs / f"{kind}-{plan.artifact.name}.log"
    path = final.with_suffix(f".{secrets.token_hex(4)}.log")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600, exist_ok=False)
    except OSError as exc:
        raise storage_error(exc, f"cannot write {path}") from exc
    yield path
    path.replace(final)


def now_text() -> str:
    """Return the time as evidence has it, in UTC."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
