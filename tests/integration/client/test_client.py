"""Both clients over real sockets: against a stand-in that behaves, and against servers that lie."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from opencoti.client import AsyncClient, Client, Limits, Sampling
from opencoti.errors import BusyError, OpencotiError
from tests.fakes.chat_server import ChatServer, raw_server

LIMITS = Limits(connect_s=30, idle_s=30, total_s=60, body_bytes=1 << 20, stream_bytes=1 << 20)
USER = [{"role": "user", "content": "hello"}]
Action = Callable[[Any], Any]


class Both:
    """Runs one action with a client of either kind; the action may return what has to be awaited."""

    def __init__(self, is_async: bool) -> None:
        self.is_async = is_async

    def run(self, url: str, action: Action, *, limits: Limits | None = None) -> Any:
        if not self.is_async:
            with Client(url, limits=limits) as client:
                return action(client)

        async def main() -> Any:
            async with AsyncClient(url, limits=limits) as client:
                result = action(client)
                return await result if inspect.isawaitable(result) else result

        return asyncio.run(main())

    def read_stream(self, client: Any) -> Any:
        """Read a stream to its end; return its pieces and the whole."""
        if not self.is_async:
            with client.stream_chat(USER) as stream:
                return [chunk.text for chunk in stream], stream.end

        async def read() -> Any:
            async with await client.stream_chat(USER) as stream:
                return [chunk.text async for chunk in stream], stream.end

        return read()

    def fail(self, url: str, action: Action, *, limits: Limits | None = LIMITS) -> OpencotiError:
        with pytest.raises(OpencotiError) as caught:
            self.run(url, action, limits=limits)
        return caught.value


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def both(request: pytest.FixtureRequest) -> Both:
    return Both(request.param)


@pytest.fixture(autouse=True)
def proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that leads nowhere: on this machine it must never be asked."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)


def test_plain_questions_are_answered_without_any_proxy(both: Both) -> None:
    with ChatServer().running() as url:
        assert both.run(url, lambda client: client.models()) == ("tiny",)
        assert both.run(url + "/v1", lambda client: client.chat(USER)).text == "so it is"
        assert both.run(url, lambda client: client.is_healthy()) is True


def test_stream_comes_in_pieces_and_as_a_whole(both: Both) -> None:
    with ChatServer().running() as url:
        pieces, end = both.run(url, both.read_stream)
    assert [piece for piece in pieces if piece] == ["so ", "it ", "is "]
    assert (end.text, end.finish_reason, end.timings.predicted_n) == ("so it is ", "stop", 3)


def http(
    body: bytes, *, status: str = "200 OK", length: int | None = None, kind: str = "application/json"
) -> bytes:
    size = len(body) if length is None else length
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


def without_end(first: bytes, block: bytes) -> Callable[[], Iterator[bytes]]:
    def blocks() -> Iterator[bytes]:
        yield first
        while True:
            yield block

    return blocks


OPEN = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
OPEN_STREAM = OPEN.replace(b"application/json", b"text/event-stream")
TOKEN = b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n'
LIES: dict[str, tuple[Callable[[], Iterable[bytes]], str]] = {
    "half a document": (lambda: [http(b'{"choices": [')], "answer-malformed"),
    "half of what was promised": (lambda: [http(b'{"a', length=1000)], "answer-broken-off"),
    "200 before it is ready": (
        lambda: [http(b'{"error": {"message": "Loading model"}}')],
        "answer-malformed",
    ),
    "200 and nothing": (lambda: [http(b"")], "answer-malformed"),
    "a page": (lambda: [http(b"<html>", kind="text/html")], "answer-malformed"),
    "no HTTP": (lambda: [b"SSH-2.0-x\r\n"], "answer-broken-off"),
    "nothing at all": (list, "answer-broken-off"),
    "an endless answer": (without_end(OPEN, b" " * 65536), "answer-too-long"),
    "an endless error": (without_end(OPEN.replace(b"200", b"500"), b"x" * 65536), "engine-failed"),
    "another place": (
        lambda: [b"HTTP/1.1 302 F\r\nLocation: http://192.0.2.1/\r\nContent-Length: 0\r\n\r\n"],
        "answer-malformed",
    ),
    "a bomb": (
        lambda: [OPEN.replace(b"Connection", b"Content-Encoding: gzip\r\nConnection") + b"\x1f\x8b"],
        "answer-malformed",
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_lies_are_found_out(both: Both, lie: str) -> None:
    answer, error_id = LIES[lie]
    with raw_server(answer) as url:
        assert both.fail(url, lambda client: client.chat(USER)).error_id == error_id


STREAM_LIES: dict[str, tuple[Callable[[], Iterable[bytes]], str]] = {
    "no stream": (lambda: [http(b"{}")], "answer-malformed"),
    "ends in the middle": (lambda: [OPEN_STREAM + TOKEN], "stream-truncated"),
    "ends within an event": (lambda: [OPEN_STREAM + TOKEN[:20]], "stream-truncated"),
    "no JSON": (lambda: [OPEN_STREAM + b"data: {\n\n"], "answer-malformed"),
    "fails in the middle": (
        lambda: [OPEN_STREAM + TOKEN + b'data: {"error": {"message": "no"}}\n\n'],
        "engine-failed",
    ),
    "never ends": (without_end(OPEN_STREAM, TOKEN * 1000), "answer-too-long"),
    "one endless event": (without_end(OPEN_STREAM + b"data: ", b"x" * 65536), "answer-too-long"),
    "error instead": (lambda: [http(b'{"error": {"message": "busy"}}', status="503 x")], "engine-loading"),
}


@pytest.mark.parametrize("lie", STREAM_LIES)
def test_lies_in_streams_are_found_out(both: Both, lie: str) -> None:
    answer, error_id = STREAM_LIES[lie]
    with raw_server(answer) as url:
        assert both.fail(url, both.read_stream).error_id == error_id


def test_silence_ends(both: Both) -> None:
    def silent() -> Iterator[bytes]:
        yield OPEN
        import threading

        threading.Event().wait(3)

    with raw_server(silent) as url:
        limits = Limits(idle_s=0.2)
        assert both.fail(url, lambda client: client.chat(USER), limits=limits).error_id == "answer-too-slow"


def test_nobody_there_is_told(both: Both) -> None:
    assert both.fail("http://127.0.0.1:1", lambda client: client.models()).error_id == "engine-unreachable"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ([], "0 vectors"),
        ([{"index": 0, "embedding": [1.0]}, {"index": 0, "embedding": [1.0]}], "not numbered"),
        ([{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": [1.0, 2.0]}], "different widths"),
    ],
)
def test_vectors_that_do_not_fit_the_texts_are_refused(both: Both, data: list[Any], why: str) -> None:
    with raw_server(lambda: [http(json.dumps({"data": data}).encode())]) as url:
        assert why in both.fail(url, lambda client: client.embed(["a", "b"])).why


def test_vectors_come_in_the_order_of_the_texts(both: Both) -> None:
    data = [{"index": 1, "embedding": [2.0]}, {"index": 0, "embedding": [1.0]}]
    with raw_server(lambda: [http(json.dumps({"data": data}).encode())]) as url:
        assert both.run(url, lambda client: client.embed(["a", "b"])) == [[1.0], [2.0]]


class Talk:
    """One session with either client, step by step."""

    def __init__(self, both: Both) -> None:
        self.both = both

    def turns(self, url: str, texts: list[str], **words: Any) -> list[Any]:
        def ask(client: Any) -> Any:
            if not self.both.is_async:
                with client.session(**words) as session:
                    return [session.send(text) for text in texts]

            async def main() -> list[Any]:
                async with client.session(**words) as session:
                    return [await session.send(text) for text in texts]

            return main()

        result: list[Any] = self.both.run(url, ask)
        return result


def test_session_reuses_its_prefix_and_says_so_case_b57(both: Both) -> None:
    server = ChatServer()
    with server.running() as url:
        turns = Talk(both).turns(url, ["a b c", "d", "e"], system="be brief")
    first, *others = server.bodies
    assert all(body.startswith(first[: first.index(b"],")]) for body in others)
    assert [turn.reuse.is_stable for turn in turns] == [True, True, True]
    assert [turn.prefix_break for turn in turns] == [None, None, None]
    assert turns[1].reuse.cache_n == turns[0].reuse.prompt_n
    assert server.erased == []


def test_template_that_rewrites_history_is_named_with_its_place_case_b57(both: Both) -> None:
    server = ChatServer(
        render=lambda messages: f"{len(messages)} " + " ".join(m["content"] for m in messages)
    )
    with server.running() as url:
        turns = Talk(both).turns(url, ["a b c d e f", "g"])
    found = turns[1].prefix_break
    assert (found.kind, found.position) == ("template-rewrote", 0)
    assert "rewrote the history at character 0" in str(found)


def test_isolated_session_erases_before_and_after_case_b56(both: Both) -> None:
    server = ChatServer()
    with server.running() as url:
        Talk(both).turns(url, ["a"], is_isolated=True)
        assert server.erased == [0, 0]
        server.status = 500
        with pytest.raises(OpencotiError):
            Talk(both).turns(url, ["a"], is_isolated=True)
    assert server.erased == [0, 0, 0, 0]


def test_session_is_reported_by_an_engine_that_knows_sessions(both: Both) -> None:
    server = ChatServer(features=("session-id",))
    with server.running() as url:
        turns = Talk(both).turns(url, ["a b c", "d"], session_id="s 1/2")
    assert [json.loads(body)["session_id"] for body in server.bodies] == ["s 1/2"] * 2
    assert [turn.session.id for turn in turns] == ["s 1/2"] * 2
    assert turns[1].session.reused == turns[1].reuse.cache_n > 0
    assert server.forgotten == []


def test_isolated_session_is_forgotten_by_an_engine_that_knows_sessions_case_b56(both: Both) -> None:
    server = ChatServer(features=("session-id",))
    with server.running() as url:
        Talk(both).turns(url, ["a"], is_isolated=True, session_id="s 1/2")
        assert (server.erased, server.forgotten) == ([0, 0], ["s%201%2F2"])
        Talk(both).turns(url, ["a"])
    assert len(server.forgotten) == 1


def test_streamed_session_is_reported_too(both: Both) -> None:
    server = ChatServer(features=("session-id",))
    with server.running() as url, Client(url) as client, client.session(session_id="s1") as session:
        with session.stream("a b c") as stream:
            assert "".join(chunk.text for chunk in stream).strip() == "so it is"
        assert stream.turn.session is not None
        assert (stream.turn.session.id, stream.turn.session.restored_from) == ("s1", "slot")


def test_isolated_session_starts_clean_where_slots_cannot_be_erased_case_b56(both: Both) -> None:
    server = ChatServer(can_erase=False)
    server.slots[0] = ["<user>", "a", "b", "c"]
    with server.running() as url:
        turns = Talk(both).turns(url, ["a b c", "d"], is_isolated=True)
    assert [json.loads(body)["cache_prompt"] for body in server.bodies] == [False, True]
    assert turns[0].reuse.cache_n == 0
    assert turns[1].reuse.cache_n > 0


def test_isolated_sessions_do_not_share_slots() -> None:
    with ChatServer().running() as url, Client(url) as client:
        with client.session(is_isolated=True) as one, client.session(is_isolated=True) as two:
            one.send("a")
            two.send("a")
            assert {one.conversation.slot, two.conversation.slot} == {0, 1}
            with pytest.raises(BusyError), client.session() as third:
                third.send("a")
        with client.session() as fourth:
            fourth.send("a")


def test_streamed_turn_counts_when_it_is_complete_and_not_before() -> None:
    server = ChatServer()
    with server.running() as url, Client(url) as client, client.session() as session:
        with session.stream("a b c") as stream:
            next(iter(stream))
        assert session.send("x").reuse is not None
        assert len(json.loads(server.bodies[-1])["messages"]) == 1
        with session.stream("y") as stream:
            assert "".join(chunk.text for chunk in stream) == "so it is "
            assert stream.turn.reuse is not None
            assert stream.turn.reuse.is_stable
        session.send("z", Sampling(max_tokens=1))
    assert len(json.loads(server.bodies[-1])["messages"]) == 5
