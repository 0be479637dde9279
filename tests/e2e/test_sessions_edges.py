"""Sessions beside what else there is: slots by number, headers that contradict, a log in full, a router."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ci.paths import Layout
from ci.smoke.model import VOCABULARY, cached_model
from tests.e2e.conftest import EngineArtifact
from tests.e2e.running import started
from tests.e2e.session_engine import (
    OWN_CACHES,
    UNIFIED,
    Conversations,
    Sessions,
    digest_of,
    running,
    saved_files,
    wait_for,
)

pytestmark = pytest.mark.engine

PREFIX = 500
SEAM = 20


@contextmanager
def with_slot_files(
    artifact: EngineArtifact, layout: Layout, folder: Path, *words: str
) -> Iterator[Conversations]:
    """Start an engine whose slots can be saved and restored by number; the launcher allows that to nobody."""
    model = cached_model(layout, layout.sources / "llama.cpp" / VOCABULARY)
    context = (
        "-c",
        "8192",
        "--override-kv",
        "qwen2.context_length=int:8192",
        "--slot-save-path",
        str(folder),
    )
    with started(artifact.path, "-m", str(model), *context, *words, home=folder) as server:
        yield Conversations(server.url)


def act(sessions: Conversations, slot: int, action: str, **body: str) -> dict[str, Any]:
    answer = sessions.http.post(f"/slots/{slot}?action={action}", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def listed(sessions: Conversations, name: str) -> dict[str, Any]:
    digest = digest_of(name)
    return next(item for item in sessions.listed() if item["digest"] == digest)


@pytest.mark.parametrize("kind", [OWN_CACHES, UNIFIED], ids=["own-caches", "unified"])
def test_a_slot_that_gets_another_text_leaves_its_session_what_it_had(
    artifact: EngineArtifact, real_layout: Layout, tmp_path: Path, kind: tuple[str, ...]
) -> None:
    with with_slot_files(artifact, real_layout, tmp_path, *kind) as sessions:
        text = sessions.noise(PREFIX)
        act(sessions, sessions.ask(text).document["id_slot"], "save", filename="text")
        slot = sessions.turn("a", sessions.noise(PREFIX)).document["id_slot"]
        assert listed(sessions, "a")["slot"] == slot
        assert act(sessions, slot, "restore", filename="text")["n_restored"] == PREFIX + 3
        found = listed(sessions, "a")
        assert (found["slot"], found["in_memory"]) == (None, True)
        # What was put there is of use, and belongs to nobody.
        assert sessions.ask([*text, 5], id_slot=slot).computed <= SEAM
        for _ in range(2):
            back = sessions.turn("a", sessions.noise(10))
            assert back.session["restored_from"] == "memory"
            assert back.computed <= 10 + SEAM
            assert act(sessions, back.document["id_slot"], "erase")["n_erased"] > PREFIX
            assert listed(sessions, "a")["slot"] is None


def test_what_a_session_has_is_copied_while_a_long_prompt_is_read_and_not_for_a_short_one(
    real_layout: Layout, tmp_path: Path
) -> None:
    """So that whoever takes its slot meanwhile does not wait for that."""
    with running(real_layout, tmp_path, *OWN_CACHES) as sessions:
        sessions.turn("a", sessions.noise(PREFIX))
        sessions.ask(sessions.noise(PREFIX // 4))
        assert not listed(sessions, "a")["in_memory"]
        sessions.ask(sessions.noise(PREFIX))
        assert listed(sessions, "a")["in_memory"]
        # It goes on where it is, and what was copied makes way for what is longer.
        again = sessions.turn("a", sessions.noise(PREFIX))
        assert again.session["restored_from"] == "slot"
        assert again.computed <= PREFIX + 1
        sessions.ask(sessions.noise(2 * PREFIX))
        (found,) = sessions.listed()
        assert (found["in_memory"], found["n_tokens"]) == (True, 2 * PREFIX + 7)
    # 1.7 MiB are more than the cache can have.
    with running(real_layout, tmp_path / "small", *OWN_CACHES, "--cache-ram", "1") as sessions:
        sessions.turn("a", sessions.noise(14 * PREFIX))
        sessions.ask(sessions.noise(14 * PREFIX))
        assert not listed(sessions, "a")["in_memory"]


def test_an_erased_slot_leaves_its_session_the_file(
    artifact: EngineArtifact, real_layout: Layout, tmp_path: Path
) -> None:
    states = tmp_path / "states"
    words = ("--cache-ram", "0", "--session-save-path", str(states))
    with with_slot_files(artifact, real_layout, tmp_path, *OWN_CACHES, *words) as sessions:
        slot = sessions.turn("a", sessions.noise(PREFIX)).document["id_slot"]
        wait_for(lambda: len(saved_files(states)) == 1)
        act(sessions, slot, "erase")
        back = sessions.turn("a", sessions.noise(10))
        assert back.session["restored_from"] == "disk"
        assert back.computed <= 10 + SEAM


def test_a_slot_that_cannot_be_restored_leaves_its_session_what_it_had(
    artifact: EngineArtifact, real_layout: Layout, tmp_path: Path
) -> None:
    (tmp_path / "damaged").write_bytes(b"no state")
    with with_slot_files(artifact, real_layout, tmp_path, *OWN_CACHES) as sessions:
        slot = sessions.turn("a", sessions.noise(PREFIX)).document["id_slot"]
        refused = sessions.http.post(f"/slots/{slot}?action=restore", json={"filename": "damaged"})
        assert refused.status_code == 400
        assert sessions.turn("a", sessions.noise(10)).computed <= 10 + SEAM


@pytest.mark.parametrize(
    ("headers", "body", "message"),
    [
        ([("X-Session-Id", "one"), ("X-Session-Id", "two")], {}, "more than once"),
        ([("X-Session-Id", "one"), ("x-session-id", "two")], {}, "more than once"),
        ([("X-Session-Id", "two"), ("X-Session-Id", "one")], {"session_id": "one"}, "more than once"),
        ([("X-Session-Id", "one, two")], {}, "more than once"),
        ([("X-Session-Id", "one")], {"session_id": "two"}, "differ"),
        ([("X-Session-Id", "")], {}, "1 to 128"),
        ([("X-Session-Id", "one"), ("X-Session-Id", "")], {}, "1 to 128"),
    ],
)
def test_names_that_contradict_each_other_are_refused(
    shared: Sessions, headers: list[tuple[str, str]], body: dict[str, str], message: str
) -> None:
    before = shared.listed()
    answer = shared.http.post("/completion", json={"prompt": "x", "n_predict": 1} | body, headers=headers)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]
    assert shared.listed() == before


def test_names_that_say_the_same_are_one(shared: Sessions) -> None:
    headers = [("X-Session-Id", "same"), ("x-session-id", "same"), ("X-Session-Id", "same")]
    body = {"prompt": "x", "n_predict": 1, "session_id": "same"}
    assert shared.http.post("/completion", json=body, headers=headers).json()["session"]["id"] == "same"


@pytest.fixture(scope="module")
def shared(real_layout: Layout, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sessions]:
    with running(real_layout, tmp_path_factory.mktemp("shared"), *OWN_CACHES) as found:
        yield found


NAME = "Planner-of-secrets:7"
BODIES: dict[str, dict[str, Any]] = {
    "/completion": {"prompt": "hello", "n_predict": 3},
    "/v1/completions": {"prompt": "hello", "max_tokens": 3},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3},
    "/v1/responses": {"input": "hello", "max_output_tokens": 3},
    "/v1/messages": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3},
}
# As another writer of JSON may spell them; the last two are cut off, and damaged.
SPELLINGS = [
    '{"prompt": "say \\"no\\"", "n_predict": 1, "session_id" :\n "%s"}',
    '{"prompt": "x", "n_predict": 1, "session\\u005fid": "%s"}',
    '{"prompt": "x", "n_predict": 1, "session_id": "%s',
    '{"prompt": "x", "n_predict": 1, "session_id": "%s\x01"}',
]


def test_no_log_has_the_name_of_a_session(
    artifact: EngineArtifact, real_layout: Layout, tmp_path: Path
) -> None:
    model = cached_model(real_layout, real_layout.sources / "llama.cpp" / VOCABULARY)
    words = ("-m", str(model), "-c", "2048", "-v", "--session-save-path", str(tmp_path / "states"))
    with started(artifact.path, *words, home=tmp_path) as server:
        http = Conversations(server.url).http
        for path, body in BODIES.items():
            for more in ({}, {"stream": True}):
                named = {} if path == "/v1/messages" else {"session_id": NAME}
                answer = http.post(path, json=body | more | named, headers={"X-Session-Id": NAME})
                assert NAME in answer.text, path
        for spelling in SPELLINGS:
            http.post("/completion", content=spelling % NAME, headers={"Content-Type": "application/json"})
        assert http.delete(f"/sessions/{NAME}").status_code == 200
        assert http.delete(f"/sessions/{NAME}").status_code == 404
        log = server.log
    digest = digest_of(NAME)[:12]
    assert "http: streamed chunk: data: " in log, "the log has everything else"
    assert f'"session_id":"(session {digest})"' in log, "requests that are converted"
    assert log.count(f'"id":"(session {digest})"') == len(BODIES), "the end of each stream"
    assert NAME not in log
    assert NAME[:-1] not in log


def test_a_router_refuses_sessions_of_models_that_it_does_not_know(
    artifact: EngineArtifact, real_layout: Layout, tmp_path: Path
) -> None:
    models = tmp_path / "models"
    models.mkdir()
    shutil.copy(
        cached_model(real_layout, real_layout.sources / "llama.cpp" / VOCABULARY), models / "tiny.gguf"
    )
    with started(artifact.path, "--models-dir", str(models), "-c", "2048", "-v", home=tmp_path) as router:
        for path in ("/sessions/a?model=unknown", "/sessions/a", "/sessions/a?model=tiny&autoload=false"):
            answer = router.ask(path, method="DELETE")
            other = router.ask(path.replace("/a?", "?"), method="GET") if "?" in path else None
            assert answer.status == 400, path
            assert other is None or answer == other
        body = {"model": "tiny", "prompt": "hello", "n_predict": 3, "session_id": NAME}
        assert router.ask("/completion", body).data["session"]["id"] == NAME
        assert router.ask(f"/sessions/{NAME}?model=tiny", method="DELETE").status == 200
        assert router.ask(f"/sessions/{NAME}?model=tiny", method="DELETE").status == 404
        assert router.ask("/sessions?model=tiny").data["sessions"] == []
        assert router.ask("/models/unload", {"model": "tiny"}).status == 200
        assert NAME not in router.log
        assert digest_of(NAME)[:12] in router.log
