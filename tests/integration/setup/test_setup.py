"""The first run, with the real engine where it has to be, and a stand-in where something must go wrong."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ci.paths import Layout
from opencoti.models.table import load_table
from tests.conftest import ROOT
from tests.fakes.engine import write_artifact
from tests.fakes.http_faults import Fault, serving
from tests.fakes.ollama_store import FakeStore, tiny_gguf
from tests.integration.launch.real import real_options

MODEL = tiny_gguf(tensors=2000)
SHA = hashlib.sha256(MODEL).hexdigest()


class Host:
    """A user with an empty home."""

    def __init__(self, root: Path) -> None:
        self.home = root / "home"
        self.home.mkdir()
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("OPENCOTI_", "XDG_", "OLLAMA_"))
        }
        self.environ = {
            **kept,
            "PYTHONPATH": str(ROOT),
            "HOME": str(self.home),
            "OPENCOTI_TIMEOUT_S": "5",
            "OPENCOTI_CACHE_DIR": str(root / "cache"),
        }
        self.config = self.home / ".config" / "opencoti" / "config.json"
        self.progress = self.config.with_name("setup.json")

    def argv(self, *words: str | Path) -> list[str]:
        return [sys.executable, "-m", "opencoti.setup", *map(str, words)]

    def run(self, *words: str | Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv(*words),
            env=self.environ,
            cwd=self.home,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def data(self, *words: str | Path) -> dict[str, Any]:
        done = self.run(*words, "--yes", "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        result: dict[str, Any] = json.loads(done.stdout)
        return result


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    return write_artifact(tmp_path / "good.llamafile", "good")


def table_with(folder: Path, url: str) -> Path:
    """A table whose files are on a server of ours."""
    document = load_table().model_dump(mode="json", by_alias=True)
    for quant in document["quants"]:
        quant |= {"url": url, "sha256": SHA}
    path = folder / "quants.json"
    path.write_text(json.dumps(document))
    return path


@pytest.mark.engine
def test_from_nothing_to_an_answer_of_the_real_engine(host: Host, real_layout: Layout) -> None:
    options = real_options(real_layout)
    assert options.model is not None
    assert options.binary is not None
    content = options.model.read_bytes()
    with serving(content) as server:
        words: tuple[str | Path, ...] = (
            "--binary",
            options.binary,
            "--quant",
            "IQ3_M",
            "--url",
            server.url(),
        )
        words = (*words, "--sha256", hashlib.sha256(content).hexdigest())
        done = host.data(*words)
    assert done["steps"] == ["detect", "recommend", "engine", "choose", "obtain", "launch", "test", "write"]
    config = json.loads(host.config.read_text())
    assert done["config"] == config
    assert config["model"]["origin"] == "download"
    assert Path(config["model"]["path"]).read_bytes() == content
    assert config["arguments"] == ["--ctx-size", "2048", "--parallel", "1"]  # what the model was trained for
    assert 0 < config["test"]["tokens"] <= 32
    assert any("ggml" in path for path in config["test"]["libraries"])
    assert not host.progress.exists()
    assert host.data()["steps"] == ["already-done"]


@pytest.mark.engine
def test_model_of_ollama_is_used_where_it_lies(host: Host, real_layout: Layout) -> None:
    options = real_options(real_layout)
    assert options.model is not None
    assert options.binary is not None
    fake = FakeStore(host.home / ".ollama" / "models")
    digest = fake.add_linked("registry.ollama.ai/library/tiny/latest", options.model)
    done = host.data("--binary", options.binary, "--ollama", "tiny")
    assert done["config"]["model"]["path"] == str(fake.path_of(digest))
    assert done["config"]["model"]["sha256"] == digest
    assert not list((Path(host.environ["OPENCOTI_CACHE_DIR"])).glob("models/*"))


def test_dry_run_says_what_would_be_done_and_does_nothing(host: Host, engine: Path) -> None:
    done = host.run("--dry-run", "--json", "--binary", engine, "--vram", "16")
    data = json.loads(done.stdout)
    assert data["is_done"] is False
    assert data["plan"]["model"] == "quant:Q4_K_S"
    assert not host.config.parent.exists()


def test_interrupted_download_is_taken_up_again_without_new_questions(
    host: Host, engine: Path, tmp_path: Path
) -> None:
    with serving(MODEL, Fault(kind="stall", at=30_000)) as server:
        words = ("--table", table_with(tmp_path, server.url()), "--binary", engine, "--vram", "16", "--yes")
        process = subprocess.Popen(
            host.argv(*words), env=host.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert server.stalling.wait(30)
        part = Path(host.environ["OPENCOTI_CACHE_DIR"]) / "models" / SHA[:12] / "engine.bin.part"
        while not part.exists() or part.stat().st_size < 30_000:
            os.sched_yield()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 130, errors
        assert json.loads(host.progress.read_text())["source"] == "quant:Q4_K_S"
        assert not host.config.exists()
        # Another card would bring another recommendation: what was chosen stays.
        again = host.data("--table", tmp_path / "quants.json", "--binary", engine, "--vram", "80")
        assert server.ranges == ["", "bytes=30000-"]
    assert again["config"]["model"]["sha256"] == SHA
    assert again["config"]["test"]["answer"] == "waves and salt"


def test_failed_launch_keeps_the_model_and_the_next_run_does_not_fetch_again(
    host: Host, engine: Path, tmp_path: Path
) -> None:
    broken = write_artifact(tmp_path / "broken.llamafile", "dies-at-start")
    with serving(MODEL) as server:
        words = ("--table", table_with(tmp_path, server.url()), "--vram", "16", "--yes", "--json")
        failed = host.run(*words, "--binary", broken)
        assert failed.returncode == 4
        assert json.loads(failed.stdout)["error"] == "engine-died"
        assert not host.config.exists()
        assert host.run(*words, "--binary", engine).returncode == 0
        assert len(server.ranges) == 1


def test_missing_engine_is_told_before_anything_is_fetched(host: Host, tmp_path: Path) -> None:
    with serving(MODEL) as server:
        words = ("--table", table_with(tmp_path, server.url()), "--vram", "16", "--yes", "--json")
        done = host.run(*words, "--binary", tmp_path / "absent")
        assert (done.returncode, server.seen) == (2, [])


def test_silent_engine_and_impossible_files_are_errors(host: Host, engine: Path, tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(MODEL)
    mute = write_artifact(tmp_path / "mute.llamafile", "error-500")
    assert host.run("--model", model, "--binary", mute, "--json").returncode == 7
    assert host.run("--model", tmp_path / "absent", "--binary", engine).returncode == 2
    (tmp_path / "page.gguf").write_text("<html>")
    assert host.run("--model", tmp_path / "page.gguf", "--binary", engine).returncode == 3
    assert not host.config.exists()


def test_without_a_terminal_and_without_yes_nothing_is_guessed(host: Host, engine: Path) -> None:
    done = host.run("--binary", engine, stdin="1\n")
    assert (done.returncode, "setup-needs-answers" in done.stderr) == (2, True)


def test_what_is_done_needs_no_terminal_and_the_command_that_it_prints_starts_it(
    host: Host, engine: Path, tmp_path: Path
) -> None:
    model = tmp_path / "with space.gguf"
    model.write_bytes(MODEL)
    assert host.run("--model", model, "--binary", engine).returncode == 0
    done = host.run(stdin="")
    assert (done.returncode, "nothing to do" in done.stderr) == (0, True)
    words = shlex.split(done.stdout.splitlines()[1])
    assert words[:4] == ["python", "-m", "opencoti.launch", "start"]
    started = subprocess.run(
        [sys.executable, *words[1:]], env=host.environ, capture_output=True, text=True, timeout=60
    )
    subprocess.run([sys.executable, "-m", "opencoti.launch", "stop"], env=host.environ, check=True)
    assert started.returncode == 0, started.stderr


def test_name_that_led_to_nothing_is_not_taken_up_again(host: Host, engine: Path, tmp_path: Path) -> None:
    assert host.run("--model", tmp_path / "absent", "--binary", engine).returncode == 2
    assert not host.progress.exists()


def test_unknown_gpu_is_told_before_anything_is_fetched(host: Host, engine: Path, tmp_path: Path) -> None:
    with serving(MODEL) as server:
        words = ("--table", table_with(tmp_path, server.url()), "--vram", "16", "--yes", "--json")
        done = host.run(*words, "--binary", engine, "--gpu", "nvida")
        assert (done.returncode, server.seen) == (2, [])
    assert json.loads(done.stdout)["error"] == "gpu-unknown"


def in_terminal(host: Host, typed: bytes, *words: str | Path) -> tuple[int, str, str]:
    """Run it with a terminal as standard input; return code, output and errors."""
    ours, theirs = os.openpty()
    try:
        with subprocess.Popen(
            host.argv(*words),
            env=host.environ,
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            os.close(theirs)
            os.write(ours, typed)
            output, errors = process.communicate(timeout=60)
    finally:
        os.close(ours)
    return process.returncode, output, errors


def test_in_a_terminal_it_asks_and_only_the_result_is_on_standard_output(
    host: Host, engine: Path, tmp_path: Path
) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(MODEL)
    last = len(load_table().quants) + 1
    typed = f"{last}\n{model}\n".encode()
    code, output, errors = in_terminal(host, typed, "--binary", engine, "--vram", "16")
    assert code == 0, errors
    assert output.splitlines()[0] == str(host.config)
    assert "Which model?" in errors
    assert json.loads(host.config.read_text())["model"]["path"] == str(model)


def test_in_a_terminal_nobody_believes_a_host_by_pressing_enter(host: Host, engine: Path) -> None:
    code, _, errors = in_terminal(host, b"\n\n", "--binary", engine, "--vram", "16")
    assert (code, "Believe the one" in errors, "model-hash-unknown" in errors) == (2, True, True)


def test_a_terminal_that_ends_is_no_answer(host: Host, engine: Path) -> None:
    code, _, errors = in_terminal(host, b"\x04", "--binary", engine, "--vram", "16")
    assert (code, "setup-needs-answers" in errors) == (2, True), errors


def test_engine_may_go_on_running(host: Host, engine: Path, tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(MODEL)
    done = host.data("--model", model, "--binary", engine, "--keep-running")
    try:
        assert done["url"].startswith("http://127.0.0.1:")
    finally:
        stopped = subprocess.run(
            [sys.executable, "-m", "opencoti.launch", "stop", "engine"],
            env=host.environ,
            capture_output=True,
            text=True,
        )
    assert stopped.returncode == 0, stopped.stderr
