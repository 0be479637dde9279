"""Sessions on the patched engine: each keeps what was computed for it, and none sees another."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ci.paths import Layout
from opencoti.client import Client, Sampling
from tests.e2e.session_engine import OWN_CACHES, UNIFIED, Sessions, digest_of, running

pytestmark = pytest.mark.engine

SEAM = 20
"""Tokens that a turn may compute besides those that are new."""


@pytest.fixture(scope="module", params=[OWN_CACHES, UNIFIED], ids=["own-caches", "unified"])
def sessions(
    request: pytest.FixtureRequest, real_layout: Layout, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sessions]:
    with running(real_layout, tmp_path_factory.mktemp("engine"), *request.param) as found:
        yield found


@pytest.fixture(scope="module")
def shared(real_layout: Layout, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sessions]:
    """One engine for tests where the kind of its KV cache does not matter."""
    with running(real_layout, tmp_path_factory.mktemp("shared"), *OWN_CACHES) as found:
        yield found


@pytest.mark.parametrize(("count", "share"), [(2, 0.5), (4, 0.75), (8, 0.75), (8, 0.97)])
def test_sessions_that_begin_alike_compute_only_what_is_new(
    sessions: Sessions, count: int, share: float
) -> None:
    common = int(1200 * share)
    system = sessions.noise(common)
    names = [f"agent-{count}-{share}-{number}" for number in range(count)]
    for name in names:
        first = sessions.turn(name, [*system, *sessions.noise(1200 - common)])
        # A session that is new begins with a copy of what the others have computed.
        assert first.computed == (1200 if name == names[0] else 1200 - common)
    for _ in range(3):
        for name in names:
            answer = sessions.turn(name, sessions.noise(30))
            assert answer.computed <= 30 + SEAM
            assert answer.session["reprocessed"] == answer.computed
            assert answer.session["reused"] == len(sessions.histories[name]) - 4 - answer.computed


def test_clients_without_a_name_find_their_slot_again(sessions: Sessions) -> None:
    system = sessions.noise(900)
    for name in "abcd":
        sessions.turn(name, [*system, *sessions.noise(300)], is_named=False)
    for name in "abcd":
        answer = sessions.turn(name, sessions.noise(30), is_named=False)
        assert answer.computed <= 30 + SEAM
        assert "session" not in answer.document


def test_slot_of_a_session_is_left_alone_while_another_is_free(real_layout: Layout, tmp_path: Path) -> None:
    with running(real_layout, tmp_path, *OWN_CACHES) as sessions:
        system = sessions.noise(600)
        home = sessions.turn("owner", [*system, *sessions.noise(50)]).document["id_slot"]
        for number in range(8):
            # The very same beginning, over and over, with a name and without.
            name = f"guest-{number}" if number % 4 == 3 else None
            answer = sessions.ask([*system, *sessions.noise(50)], name)
            if number < 4:
                assert answer.document["id_slot"] != home
        again = sessions.turn("owner", sessions.noise(10))
        assert (again.document["id_slot"], again.session["restored_from"]) == (home, "slot")
        assert again.computed <= 10 + SEAM


def test_sessions_at_once_on_fewer_slots_never_see_each_other_case_b56(sessions: Sessions) -> None:
    system = sessions.noise(300)
    words = {f"s{number}": f"ZEBRA-{secrets.randbelow(10**9):09}" for number in range(10)}
    tokens = {
        name: sessions.http.post("/tokenize", json={"content": f"My word is {word}. "}).json()["tokens"]
        for name, word in words.items()
    }
    probe = {"n_predict": 2, "n_probs": 8}
    seen = []
    for number in range(3):
        added = {name: [*([] if number else system), *tokens[name], *sessions.noise(40)] for name in words}
        with ThreadPoolExecutor(len(words)) as pool:
            pending = {name: pool.submit(sessions.turn, name, added[name], **probe) for name in words}
            answers = {name: future.result() for name, future in pending.items()}
        for name, answer in answers.items():
            foreign = [word for other, word in words.items() if other != name]
            assert not any(word in answer.document["content"] for word in foreign)
            assert answer.session["id"] == name
            seen.append((sessions.histories[name][:-2], answer))
    for prompt, answer in seen:
        # What was computed from kept state is what is computed from the prompt alone.
        fresh = sessions.ask(prompt, cache_prompt=False, **probe).logprobs
        both = set(fresh) & set(answer.logprobs)
        assert len(both) >= 4 or not fresh
        assert all(abs(fresh[token] - answer.logprobs[token]) < 0.7 for token in both)


def test_state_of_a_session_survives_a_request_that_forgets_nothing_of_it(shared: Sessions) -> None:
    shared.turn("main", shared.noise(500))
    aside = shared.ask(shared.noise(100), "main")  # another prompt under the same name: a title, a summary
    assert aside.session["restored_from"] is None
    back = shared.turn("main", shared.noise(10))
    assert back.computed <= 10 + SEAM
    assert back.session["restored_from"] in {"slot", "memory"}


BODIES = {
    "/completion": {"prompt": "hello", "n_predict": 3},
    "/v1/completions": {"prompt": "hello", "max_tokens": 3},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3},
    "/v1/responses": {"input": "hello", "max_output_tokens": 3},
}


@pytest.mark.parametrize("path", BODIES)
def test_answers_say_what_became_of_the_session(shared: Sessions, path: str) -> None:
    name = f"answers{path.replace('/', '.')}"
    once = shared.http.post(path, json=BODIES[path] | {"session_id": name}).json()["session"]
    assert once["id"] == name
    body = BODIES[path] | {"stream": True}
    stream = shared.http.post(path, json=body, headers={"X-Session-Id": name}).text
    events = [line[6:] for line in stream.splitlines() if line.startswith("data: {")]
    last = json.loads(events[-1])["session"]
    assert last["id"] == name
    assert last["reused"] + last["reprocessed"] == once["reused"] + once["reprocessed"] > 0
    assert not any('"session"' in event for event in events[:-1])
    assert "session" not in shared.http.post(path, json=BODIES[path]).json()


BAD_NAMES = ["", "a/b", "..", "a..b", "\0", "x\0y", ".hidden", "-x", "é", "a b", "x" * 129, "x" * 10240]


@pytest.mark.parametrize("name", [*BAD_NAMES, 7, [], {}], ids=repr)
def test_bad_names_are_refused_and_change_nothing(shared: Sessions, name: object) -> None:
    before = shared.listed()
    answer = shared.http.post("/completion", json={"prompt": "x", "n_predict": 1, "session_id": name})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("session_id ")
    assert shared.listed() == before


def test_two_names_in_one_request_are_refused(shared: Sessions) -> None:
    body = {"prompt": "x", "n_predict": 1, "session_id": "one"}
    answer = shared.http.post("/completion", json=body, headers={"x-session-id": "two"})
    assert answer.status_code == 400


def test_list_shows_digests_and_delete_forgets(shared: Sessions) -> None:
    prompt = shared.noise(200)
    shared.ask(prompt, "secret-name")
    digest = digest_of("secret-name")
    listed = shared.http.get("/sessions").text
    assert digest in listed
    assert "secret-name" not in listed
    assert shared.http.delete("/sessions/secret-name").json() == {"deleted": digest}
    assert digest not in shared.http.get("/sessions").text
    assert shared.http.delete("/sessions/secret-name").status_code == 404
    assert shared.http.delete("/sessions/a%20b").status_code == 400
    assert shared.ask(prompt, "secret-name").session["reused"] == 0


def test_list_and_delete_need_the_key(real_layout: Layout, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("open sesame\n")
    key.chmod(0o600)
    with running(real_layout, tmp_path, api_key_file=key) as stranger:
        friend = Sessions(stranger.engine, api_key="open sesame")
        friend.ask(friend.noise(10), "a")
        assert [item["n_tokens"] for item in friend.listed()] == [13]
        assert stranger.http.get("/sessions").status_code == 401
        assert stranger.http.delete("/sessions/a").status_code == 401
        assert friend.http.delete("/sessions/a").status_code == 200


def test_client_names_its_sessions(shared: Sessions) -> None:
    short = Sampling(max_tokens=4, temperature=0, extra={"ignore_eos": True})
    with Client(shared.engine.url) as client:
        with client.session(system="Be brief. " * 50, session_id="client-1") as session:
            first = session.send("hello", short)
            second = session.send("and again", short)
        assert (first.session.id, second.session.id) == ("client-1", "client-1")  # type: ignore[union-attr]
        assert second.session.restored_from == "slot"  # type: ignore[union-attr]
        assert second.reuse is not None
        assert second.reuse.is_stable
        with client.session(is_isolated=True, session_id="client-2") as alone:
            alone.send("hello", short)
        known = {item["digest"] for item in shared.listed()}
    assert digest_of("client-1") in known
    assert digest_of("client-2") not in known
