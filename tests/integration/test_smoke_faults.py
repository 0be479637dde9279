"""The smoke test against engines that do one thing wrong: every fault is named, and nothing is left."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ci.smoke.identity import Expected
from ci.smoke.run import Plan, smoke
from ci.smoke.scratch import MARK_VARIABLE
from ci.smoke.server import Limits
from opencoti import procfs
from opencoti.errors import MissingError, OpencotiError, StorageError, UsageError, VerificationError
from opencoti.evidence import Evidence
from opencoti.hashing import sha256_bytes
from tests.conftest import ROOT, RecordedConsole
from tests.fakes import engine
from tests.fakes.engine import Mode, write_artifact

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the smoke test reads /proc")

EXPECTED = Expected(
    version_string=engine.VERSION_STRING,
    patch_set=engine.PATCH_SET,
    upstream_commits=frozenset({engine.COMMIT}),
)
PATIENT = Limits(version_s=30, ready_s=30, request_s=30, stop_s=10)
# One short limit for what is bound to reach it: a busy machine takes seconds to start the stand-in.
NO_VERSION = replace(PATIENT, version_s=1.5)
NOT_READY = replace(PATIENT, ready_s=1.5)
NO_ANSWER = replace(PATIENT, request_s=2.0)
NO_END = replace(PATIENT, stop_s=0.5)
LEFT = replace(PATIENT, stop_s=5.0)


class Bench:
    """An artifact per test, run in a temporary folder of its own."""

    def __init__(self, root: Path, console: RecordedConsole) -> None:
        self.root = root
        self.console = console
        self.model = root / "tiny.gguf"
        self.model.write_bytes(b"GGUF")

    def plan(self, mode: Mode, *, limits: Limits = PATIENT, port: int = 0, **words: object) -> Plan:
        artifact = write_artifact(self.root / f"{mode}.llamafile", mode, **words)  # type: ignore[arg-type]
        return Plan(
            artifact=artifact,
            model=self.model,
            logs=self.root / "logs",
            fallback=self.root / "fallback",
            expected=EXPECTED,
            limits=limits,
            port=port,
        )

    def run(self, plan: Plan) -> Evidence:
        return smoke(plan, self.console.console)

    def log(self) -> bytes:
        [path] = (self.root / "logs").iterdir()
        return path.read_bytes()


@pytest.fixture
def bench(tmp_path: Path, recorded: RecordedConsole, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """A bench; whatever happened on it, no process and no scratch folder may be left."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    bench = Bench(tmp_path, recorded)
    yield bench
    assert list(temporary.iterdir()) == []
    assert procfs.members(-1, str(temporary)) == ()


def test_a_good_engine_passes(bench: Bench) -> None:
    evidence = bench.run(bench.plan("good"))
    assert evidence.passed
    result = evidence.result
    assert result is not None
    assert result.text_sha256 == sha256_bytes(b"waves and salt")
    assert (result.prompt_tokens, result.completion_tokens, result.tokens_per_second) == (9, 3, 120.5)
    assert (result.embedding_width, result.exit_code) == (64, 0)
    assert result.identity is not None
    assert result.identity.upstream_commit == engine.COMMIT
    assert result.cpu_variant == "fake"
    [library] = result.dsos
    assert library.path == "~/.llamafile/v/fake/libggml-cpu-fake.so"
    assert library.sha256 == sha256_bytes(engine.LIBRARY)
    assert evidence.commands[0] == ("good.llamafile", "--version")
    assert "tiny.gguf" in evidence.commands[1]
    assert not any(str(bench.root) in word for command in evidence.commands for word in command)


WRONG: list[tuple[Mode, Limits, str]] = [
    ("wrong-model", PATIENT, "smoke-not-ours"),
    ("wrong-path", PATIENT, "smoke-not-ours"),
    ("dies-at-start", PATIENT, "smoke-died"),
    ("dies-loading", PATIENT, "smoke-died"),
    ("dies-answering", PATIENT, "smoke-request-failed"),
    ("never-ready", NOT_READY, "smoke-not-ready"),
    ("never-listens", NOT_READY, "smoke-not-ready"),
    ("endless-body", NO_ANSWER, "smoke-request-failed"),
    ("slow-body", NO_ANSWER, "smoke-request-failed"),
    ("huge-body", PATIENT, "smoke-request-failed"),
    ("no-json", PATIENT, "smoke-request-failed"),
    ("error-500", PATIENT, "smoke-request-failed"),
    ("empty-text", PATIENT, "smoke-bad-chat"),
    ("no-finish", PATIENT, "smoke-bad-chat"),
    ("no-tokens", PATIENT, "smoke-bad-chat"),
    ("random-text", PATIENT, "smoke-not-deterministic"),
    ("nan-vector", PATIENT, "smoke-bad-embedding"),
    ("short-vector", PATIENT, "smoke-bad-embedding"),
    ("same-vectors", PATIENT, "smoke-bad-embedding"),
    ("ignores-sigterm", NO_END, "smoke-ignores-sigterm"),
    ("aborts-at-end", PATIENT, "smoke-died"),
    ("leaves-child", LEFT, "smoke-left-processes"),
    ("leaves-detached-child", LEFT, "smoke-left-processes"),
    ("open-to-all", PATIENT, "smoke-open-to-all"),
    ("no-identity", PATIENT, "smoke-no-build-identity"),
    ("unidentified", PATIENT, "smoke-no-build-identity"),
    ("props-without-identity", PATIENT, "smoke-no-build-identity"),
    ("other-build", PATIENT, "smoke-other-build"),
    ("opens-planted", PATIENT, "smoke-planted-library"),
    ("maps-planted", PATIENT, "smoke-planted-library"),
    ("maps-outside", PATIENT, "smoke-foreign-library"),
    ("replaces-mapped", PATIENT, "smoke-foreign-library"),
    ("version-fails", PATIENT, "smoke-died"),
    ("version-hangs", NO_VERSION, "smoke-version-hangs"),
]


@pytest.mark.parametrize(("mode", "limits", "error_id"), WRONG, ids=[mode for mode, _, _ in WRONG])
def test_each_fault_is_named(bench: Bench, mode: Mode, limits: Limits, error_id: str) -> None:
    with pytest.raises(VerificationError) as caught:
        bench.run(bench.plan(mode, limits=limits))
    assert caught.value.error_id == error_id


def test_the_reason_holds_the_last_lines_and_the_path_of_the_log(bench: Bench) -> None:
    with pytest.raises(VerificationError) as caught:
        bench.run(bench.plan("dies-loading"))
    assert "tensor 'blk.0' is out of bounds" in caught.value.why
    assert "exit code 3" in caught.value.what
    assert b"out of bounds" in Path(caught.value.hint.rsplit(" ", 1)[1]).read_bytes()


def test_a_signal_is_named(bench: Bench) -> None:
    with pytest.raises(VerificationError, match="SIGABRT") as caught:
        bench.run(bench.plan("aborts-at-end"))
    assert "free(): invalid pointer" in caught.value.why


@pytest.mark.parametrize("mode", ["waits-for-port", "bind-fails"])
def test_another_program_on_the_port_is_named_case_b45(bench: Bench, mode: Mode) -> None:
    """Somebody listens there already; the engine waits for the port, or gives up."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(VerificationError) as caught:
            bench.run(bench.plan(mode, port=port))
    assert caught.value.error_id == "smoke-port-taken"
    assert str(port) in caught.value.what
    assert f"process {os.getpid()} " in caught.value.why


def test_a_given_port_is_used(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    evidence = bench.run(bench.plan("good", port=port))
    assert str(port) in evidence.commands[1]


def test_a_flood_of_log_does_not_stop_the_engine_case_b49(bench: Bench) -> None:
    assert bench.run(bench.plan("spam")).passed
    assert bench.log().count(b"\xff\xfe spam\n") >= 2 * (engine.SPAM_BYTES // 8)


def test_a_file_without_magic_number_is_run_by_sh_case_b51(bench: Bench) -> None:
    plan = bench.plan("good", first_line="MZqFpD='\n'")
    assert bench.run(plan).passed


@pytest.mark.parametrize("mode", ["wine", "detectors"])
def test_another_program_that_takes_the_file_is_named_case_b51(bench: Bench, mode: Mode) -> None:
    plan = bench.plan(mode)
    with pytest.raises(MissingError) as caught:
        bench.run(plan)
    assert caught.value.error_id == "smoke-hijacked"
    assert "binfmt_misc" in caught.value.hint


def test_a_missing_executable_bit_is_named_case_b51(bench: Bench) -> None:
    plan = bench.plan("good")
    plan.artifact.chmod(0o644)
    with pytest.raises(StorageError) as caught:
        bench.run(plan)
    assert caught.value.error_id == "smoke-not-executable"
    assert caught.value.hint == f"chmod +x {plan.artifact}"


def test_an_unknown_interpreter_is_named(bench: Bench) -> None:
    plan = bench.plan("good", first_line="#!/nonexistent/interpreter")
    with pytest.raises(MissingError) as caught:
        bench.run(plan)
    assert caught.value.error_id == "smoke-interpreter-missing"


def test_a_file_for_another_machine_is_not_given_to_sh(bench: Bench) -> None:
    plan = bench.plan("good")
    # An ELF header of a machine that does not exist.
    plan.artifact.write_bytes(b"\x7fELF\x02\x01\x01" + b"\0" * 9 + b"\x02\0\xee\xee" + b"\0" * 44)
    with pytest.raises(MissingError) as caught:
        bench.run(plan)
    assert caught.value.error_id == "smoke-cannot-start"


def test_an_unknown_backend_is_refused(bench: Bench) -> None:
    with pytest.raises(UsageError) as caught:
        bench.run(replace(bench.plan("good"), backend="vulcan"))
    assert "cpu" in caught.value.hint


def test_the_environment_is_clean(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LLAMA_ARG_PORT", "GGML_VK_VISIBLE_DEVICES", "LLAMAFILE_X", "HTTP_PROXY", "LD_LIBRARY_PATH"):
        monkeypatch.setenv(name, "/nonsense")
    monkeypatch.setenv("OPENCOTI_EXTRACT_DIR", "/nonsense")
    bench.run(bench.plan("prints-environment"))
    line = next(line for line in bench.log().splitlines() if line.startswith(b"environment:"))
    seen = json.loads(line.removeprefix(b"environment:"))
    assert "/nonsense" not in seen.values()
    assert Path(seen["HOME"]).name == "home"
    assert Path(seen["GGML_BACKEND_PATH"]).parts[-2:] == ("work", "libggml-cpu-evil.so")
    assert len(seen[MARK_VARIABLE]) == 32


_KILLED = """
import sys
from pathlib import Path
from ci.smoke.run import Plan, smoke
from opencoti.console import Console
root = Path(sys.argv[1])
smoke(Plan(artifact=root / "never-ready.llamafile", model=root / "tiny.gguf", logs=root / "logs",
           fallback=root / "fallback"), Console(quiet=True))
"""


def test_a_killed_smoke_test_takes_the_engine_along_case_b47(bench: Bench) -> None:
    """SIGKILL leaves no chance to clean up: the kernel ends the child, the next run sweeps the folder."""
    notes = bench.root / "pid"
    os.mkfifo(notes)
    bench.plan("never-ready", notes=notes)
    environment = {**os.environ, "TMPDIR": str(bench.root / "tmp"), "PYTHONPATH": str(ROOT)}
    child = subprocess.Popen([sys.executable, "-c", _KILLED, str(bench.root)], env=environment)
    try:
        notes.read_text()  # --version
        pid = int(notes.read_text())
        handle = os.pidfd_open(pid)
    finally:
        child.kill()
        child.wait()
    assert _ends_within(handle, seconds=30)
    assert list((bench.root / "tmp").iterdir()) != []
    bench.run(bench.plan("good"))


def _ends_within(handle: int, *, seconds: float) -> bool:
    import select

    try:
        return bool(select.select([handle], [], [], seconds)[0])
    finally:
        os.close(handle)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupt_leaves_nothing(bench: Bench, error: type[BaseException]) -> None:
    def interrupt(text: str) -> None:
        if "ready" in text:
            raise error

    console = RecordedConsole().console
    console.info = interrupt  # type: ignore[method-assign]
    with pytest.raises(error):
        smoke(bench.plan("good"), console)


def test_errors_are_ours(bench: Bench) -> None:
    """An artifact that cannot be read is one clear error as well."""
    with pytest.raises(OpencotiError) as caught:
        bench.run(replace(bench.plan("good"), artifact=bench.root / "nothing"))
    assert caught.value.error_id == "storage-failed"
