"""Sessions together with the other patches: slots that give memory back, and models inside other files."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from ci.paths import Layout
from ci.smoke.model import VOCABULARY, make_tiny_model
from tests.e2e.conftest import EngineArtifact
from tests.e2e.models import long_model
from tests.e2e.running import started
from tests.e2e.session_engine import OWN_CACHES, Sessions, running, saved_files

pytestmark = pytest.mark.engine

PREFIX = 1500
NAMES = tuple(f"s{number}" for number in range(6))  # more than slots
LAZY = (*OWN_CACHES, "--slot-initial-ctx", "256", "--slot-shrink-idle-ms", "1")


def conversation(sessions: Sessions, shared: list[int]) -> tuple[list[list[int]], list[int]]:
    """Return what every turn answered, and what turns after the first computed beyond the new tokens."""
    answers, beyond = [], []
    for turn in range(3):
        for name in NAMES:
            new = [*shared, *sessions.noise(500)] if turn == 0 else sessions.noise(10)
            answer = sessions.turn(name, new)
            answers.append(answer.tokens)
            if turn:
                beyond.append(answer.computed - len(new))
    return answers, beyond


@pytest.mark.parametrize("is_saved", [False, True], ids=["memory", "disk"])
def test_shrunken_slots_lose_nothing_of_a_session(
    real_layout: Layout, tmp_path: Path, is_saved: bool
) -> None:
    # Without a prompt cache in memory only the disk is left to keep what a slot gives back.
    places = ("--cache-ram", "0", "--session-save-path", str(tmp_path / "states")) if is_saved else ()
    with running(real_layout, tmp_path, *OWN_CACHES) as plain:
        shared = plain.noise(PREFIX)
        expected, _ = conversation(plain, shared)
    with running(real_layout, tmp_path, *LAZY, *places) as lazy:
        assert lazy.noise(PREFIX) == shared, "the same dice"
        found, beyond = conversation(lazy, shared)
        log = lazy.engine.log_path.read_text()
    assert "context memory 256 -> " in log, "slots grew"
    assert " -> 256 tokens" in log, "slots shrank"
    assert max(beyond) <= 20
    assert found == expected


def test_a_state_is_not_used_after_the_model_inside_a_file_was_replaced(
    artifact: EngineArtifact, real_layout: Layout, tmp_path: Path
) -> None:
    states, container = tmp_path / "states", tmp_path / "container"
    words = ("-m", f"{container}#offset=65536", *OWN_CACHES, "--session-save-path", str(states))
    prompt = list(range(1000, 1600))
    for seed in (1, 7):
        model = make_tiny_model(real_layout.sources / "llama.cpp" / VOCABULARY, tmp_path / "model", seed=seed)
        container.write_bytes(b"x" * 65536 + model.read_bytes())
        with started(artifact.path, *words, home=tmp_path) as server:
            answer = server.complete(prompt, 4, session_id="A").data
            assert answer["session"]["reused"] == 0
            assert answer["session"]["restored_from"] is None
            _wait_for_states(states, 1 if seed == 1 else 2)


def _wait_for_states(folder: Path, count: int) -> None:
    """Wait for files that a thread of the server writes."""
    end = time.monotonic() + 60
    while len(saved_files(folder)) < count:
        assert time.monotonic() < end, "nothing was saved"
        time.sleep(0.02)


@pytest.mark.parametrize("wanted", [40_000, 2**31 - 1])
def test_a_request_for_more_than_fits_a_number_is_refused_as_any_other(
    artifact: EngineArtifact, real_layout: Layout, tmp_path: Path, wanted: int
) -> None:
    model = long_model(real_layout, tmp_path / "long.gguf")
    words = ("-m", str(model), "-np", "2", "-c", "131072", "--no-kv-unified", "--slot-initial-ctx", "256")
    with started(artifact.path, *words, "--slot-memory-limit", "4", home=tmp_path) as server:
        assert server.complete(range(1000, 1100), wanted).status == 503
        assert server.complete(range(1000, 1100), 4).status == 200


def test_nothing_is_taken_from_a_session_that_is_being_forgotten(real_layout: Layout, tmp_path: Path) -> None:
    with running(real_layout, tmp_path, *OWN_CACHES) as sessions:
        prompt = sessions.noise(800)
        long = threading.Thread(target=sessions.ask, args=(prompt, "A"), kwargs={"n_predict": 400})
        long.start()
        try:
            while long.is_alive() and not any(
                slot["is_processing"] for slot in sessions.http.get("/slots").json()
            ):
                time.sleep(0.005)
            assert sessions.http.delete("/sessions/A").status_code == 200
            assert sessions.ask(prompt, "A").session["reused"] == 0
        finally:
            long.join()
