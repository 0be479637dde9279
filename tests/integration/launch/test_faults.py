"""Engines that do one thing wrong: every fault is named, and nothing is left."""

from __future__ import annotations

import os
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from opencoti import procfs
from opencoti.client import Client
from opencoti.errors import BusyError, MissingError, OpencotiError, StorageError, VerificationError
from opencoti.launch.engine import Engine
from opencoti.launch.logs import last_lines
from tests.fakes.engine import SPAM_BYTES, Mode
from tests.integration.launch.conftest import Bench, is_open

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the launcher reads /proc")


@pytest.mark.parametrize(
    ("mode", "kind", "error_id"),
    [
        ("wrong-model", VerificationError, "engine-other-model"),
        ("wrong-path", VerificationError, "engine-other-model"),
        ("dies-at-start", MissingError, "engine-died"),
        ("bind-fails", MissingError, "engine-died"),
        ("dies-loading", MissingError, "engine-died"),
        ("dies-answering", MissingError, "engine-died"),
        ("no-tokens", MissingError, "engine-mute"),
        ("half-json", MissingError, "engine-mute"),
        ("endless-props", MissingError, "engine-mute"),
        ("endless-token", MissingError, "engine-mute"),
        ("huge-error", MissingError, "engine-mute"),
        ("open-to-all", VerificationError, "engine-open-to-all"),
        ("wine", MissingError, "engine-hijacked"),
        ("detectors", MissingError, "engine-hijacked"),
    ],
)
def test_fault_is_named_and_nothing_is_left(
    bench: Bench, mode: Mode, kind: type[OpencotiError], error_id: str
) -> None:
    error = bench.fail(mode)
    assert (type(error), error.error_id) == (kind, error_id)
    bench.require_nothing_left()


def test_engine_that_says_200_too_early_is_waited_for(bench: Bench) -> None:
    with bench.launch("early-200") as engine:
        assert engine.state.alias == bench.model.name
    bench.require_nothing_left()


@pytest.mark.parametrize("mode", ["never-ready", "never-listens", "early-200-for-ever"])
def test_engine_that_never_gets_ready_is_given_up(bench: Bench, mode: Mode) -> None:
    error = bench.fail(mode, timeout_s=1.5)
    assert error.error_id == "engine-not-ready"
    bench.require_nothing_left()


def test_last_lines_of_the_log_are_told_and_a_copy_is_kept(bench: Bench) -> None:
    error = bench.fail("dies-loading")
    assert "tensor 'blk.0' is out of bounds" in error.why
    kept = list((bench.cache / "failed-engines").iterdir())
    assert len(kept) == 1
    assert str(kept[0]) in error.hint
    for _ in range(6):
        bench.fail("dies-at-start")
    assert len(list((bench.cache / "failed-engines").iterdir())) == 5


class Impostor(BaseHTTPRequestHandler):
    """Answers everything with 200."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "15")
        self.end_headers()
        self.wfile.write(b'{"status":"ok"}')

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.mark.parametrize("mode", ["good", "bind-fails", "waits-for-port"])
def test_healthy_server_of_somebody_else_is_not_ours_case_b45(bench: Bench, mode: Mode) -> None:
    with HTTPServer(("127.0.0.1", 0), Impostor) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        error = bench.fail(mode, port=other.server_port)
        other.shutdown()
    assert isinstance(error, BusyError)
    assert error.error_id == "port-in-use"
    assert f"process {os.getpid()}" in error.why
    bench.require_nothing_left()


def test_file_without_elf_header_is_run_by_a_shell_case_b51(bench: Bench) -> None:
    binary = bench.artifact("good", first_line="MZqFpD=''")
    with bench.launch("good", binary=binary) as engine:
        assert is_open(engine.port)
    bench.require_nothing_left()


def test_missing_executable_bit_is_told_case_b51(bench: Bench) -> None:
    binary = bench.artifact("good").rename(bench.root / "from-a-zip")
    binary.chmod(0o644)
    error = bench.fail("good", binary=binary)
    assert isinstance(error, StorageError)
    assert (error.error_id, error.hint) == ("engine-not-executable", f"chmod +x {binary}")


def test_damaged_elf_file_is_not_given_to_a_shell(bench: Bench) -> None:
    binary = bench.root / "broken"
    binary.write_bytes(b"\x7fELF" + bytes(60))
    binary.chmod(0o755)
    assert bench.fail("good", binary=binary).error_id == "engine-cannot-start"
    bench.require_nothing_left()


def test_missing_interpreter_is_told(bench: Bench) -> None:
    binary = bench.root / "odd"
    binary.write_text("#!/nowhere/sh\n")
    binary.chmod(0o755)
    assert bench.fail("good", binary=binary).error_id == "engine-interpreter-missing"


def test_demanded_gpu_that_is_not_there_is_an_error_and_no_cpu_run(bench: Bench) -> None:
    error = bench.fail("good", gpu="nvidia")
    assert error.error_id == "gpu-not-usable"
    bench.require_nothing_left()


def test_many_lines_before_and_after_ready_do_not_stop_the_engine_case_b49(bench: Bench) -> None:
    with bench.launch("spam", max_log_bytes=1 << 20) as engine:
        assert engine.is_alive()
        log = engine.log_path
        older = log.with_name(log.name + ".1")
        # The keeper looks twice a second; its next look after the flood brings the log below its cap.
        for _ in range(200):
            if log.stat().st_size <= 1 << 19 and older.exists():
                break
            engine.wait(0.05)
        assert log.stat().st_size <= 1 << 19
        assert older.stat().st_size <= 1 << 19
    bench.require_nothing_left()


def test_log_has_all_of_it_below_its_cap_and_the_engine_answers_on_case_b49(bench: Bench) -> None:
    with bench.launch("spam") as engine, Client(engine.url) as client:
        assert client.is_healthy()  # one more flood, of 1 MiB, before this answer
        assert engine.log_path.stat().st_size >= 3 * SPAM_BYTES
        assert client.chat([{"role": "user", "content": "still there?"}]).text == "waves and salt"
        assert "spam" in "".join(last_lines(engine.log_path, 50))  # although it is not UTF-8
    bench.require_nothing_left()


def test_two_launches_at_once_on_one_port_one_wins_and_the_other_says_so_case_b45(bench: Bench) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    bench.artifact("good")
    outcomes: list[Engine | OpencotiError] = []

    def start() -> None:
        try:
            outcomes.append(bench.launch("good", port=port))
        except OpencotiError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [item for item in outcomes if isinstance(item, Engine)]
    losers = [item for item in outcomes if isinstance(item, OpencotiError)]
    assert (len(winners), len(losers)) == (1, 1), outcomes
    with winners[0] as engine:
        assert (engine.port, is_open(port)) == (port, True)
        assert losers[0].error_id == "port-in-use"
        assert "process" in losers[0].why
    bench.require_nothing_left()


def test_variables_of_the_caller_do_not_reach_the_engine(bench: Bench) -> None:
    bench.environ |= {
        "LLAMA_ARG_HOST": "0.0.0.0",
        "GGML_BACKEND_PATH": "/evil",
        "http_proxy": "http://192.0.2.1:9",
    }
    with bench.launch("prints-environment") as engine:
        text = engine.log_path.read_text(errors="replace")
    assert "environment:" in text
    assert "LLAMA_ARG_HOST" not in text
    assert "GGML_BACKEND_PATH" not in text


def test_engine_does_not_run_in_the_folder_of_the_caller(bench: Bench) -> None:
    with bench.launch("good") as engine:
        assert os.readlink(f"/proc/{engine.pid}/cwd") == str(bench.engines / engine.state.name / "work")
        assert procfs.is_same_process(engine.state.engine)
