"""The parts of the client that do no I/O."""

from __future__ import annotations

import json
from typing import Any, Self

import pytest

from opencoti.client.failures import status_error
from opencoti.client.limits import Budget
from opencoti.client.payloads import ChatChunk, ChatCompletion, parse, parse_event
from opencoti.client.requests import Base, Sampling, chat_body, encode, require_vectors
from opencoti.client.sse import EventParser, StreamReader
from opencoti.errors import NetworkError, OpencotiError, UsageError, VerificationError


@pytest.mark.parametrize(
    ("url", "is_loopback"),
    [
        ("http://127.0.0.1:1", True),
        ("http://127.9.9.9:1/", True),
        ("http://localhost:1/v1", True),
        ("http://[::1]:1/v1/", True),
        ("https://box.example:1", False),
        ("http://127.0.0.1.example:1", False),
    ],
)
def test_address_of_this_machine_is_recognised(url: str, is_loopback: bool) -> None:
    base = Base.parse(url)
    assert base.is_loopback == is_loopback
    assert not base.url.endswith(("/", "/v1"))


@pytest.mark.parametrize("url", ["", "127.0.0.1:1", "ftp://x", "http://", "http://x:99999", "http://x/?q=1"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        Base.parse(url)
    assert caught.value.error_id == "bad-engine-url"


def test_password_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError) as caught:
        Base.parse("http://me:secret@x:1")
    assert "secret" not in str(caught.value)


def test_longer_chat_begins_with_the_bytes_of_the_shorter_one() -> None:
    one = chat_body([encode({"role": "user", "content": "ä"})], {"id_slot": 1})
    two = chat_body([encode({"role": "user", "content": "ä"}), encode({"role": "user"})], {"id_slot": 1})
    assert two.startswith(one[: one.index(b"]")])
    assert json.loads(two)["id_slot"] == 1
    assert json.loads(chat_body([b"{}"], {})) == {"messages": [{}]}


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, "\ud800", b"x"])
def test_what_json_cannot_hold_is_refused_before_it_is_sent(value: object) -> None:
    with pytest.raises(UsageError) as caught:
        encode({"content": value})
    assert caught.value.error_id == "request-not-json"


def test_sampling_holds_what_is_set_and_any_other_field() -> None:
    assert Sampling(max_tokens=3, temperature=0, extra={"ignore_eos": True}).as_dict() == {
        "max_tokens": 3,
        "temperature": 0,
        "ignore_eos": True,
    }


def events(*blocks: bytes) -> list[bytes]:
    parser = EventParser("/p", max_event_bytes=100)
    return [event for block in blocks for event in parser.feed(block)]


def test_events_are_found_however_they_are_cut() -> None:
    text = b": hello\r\ndata: one\r\n\r\nevent: x\ndata: two\ndata: lines\n\n\n\nid: 7\ndata:three\n\n"
    assert events(text) == [b"one", b"two\nlines", b"three"]
    assert events(*(text[at : at + 1] for at in range(len(text)))) == [b"one", b"two\nlines", b"three"]


def test_event_without_end_is_cut_off() -> None:
    parser = EventParser("/p", max_event_bytes=100)
    with pytest.raises(VerificationError):
        parser.feed(b"data: " + b"x" * 101)
    parser = EventParser("/p", max_event_bytes=100)
    with pytest.raises(VerificationError):
        parser.feed(b"data: xxxxxxxx\n" * 20)

    parser = EventParser("/p", max_event_bytes=100)
    with pytest.raises(VerificationError):
        parser.feed(b"data:\n" * 101)


class CountingBuffer(bytearray):
    """Counts the bytes that are put into it and taken out of it."""

    work = 0

    def __iadd__(self, more: Any) -> Self:
        self.work += len(more)
        return super().__iadd__(more)

    def __bytes__(self) -> bytes:
        self.work += len(self)
        return bytes(memoryview(self))


def test_work_for_an_event_grows_with_its_size_and_not_with_its_square() -> None:
    sizes, work = (2_000, 64_000), []
    for size in sizes:
        parser = EventParser("/p", max_event_bytes=1 << 20)
        parser._rest = buffer = CountingBuffer()
        text = b"data: " + b"x" * size + b"\n\n"
        found = [event for at in range(len(text)) for event in parser.feed(text[at : at + 1])]
        assert found == [b"x" * size]
        work.append(buffer.work)
    # Each byte of the line goes into the buffer once and comes out once.
    assert work == [2 * (size + len(b"data: ")) for size in sizes]


def test_page_instead_of_events_is_refused() -> None:
    with pytest.raises(VerificationError) as caught:
        events(b"<html>\n")
    assert caught.value.error_id == "answer-malformed"


def reader() -> StreamReader[ChatChunk]:
    return StreamReader(ChatChunk, "/p", max_event_bytes=1 << 16)


def event(document: object) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def test_stream_amounts_to_text_calls_and_counts() -> None:
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a"'}}
    more = {"index": 0, "function": {"arguments": ": 1}"}}
    stream = reader()
    for delta in (
        {"content": "a"},
        {"reasoning_content": "r"},
        {"tool_calls": [call]},
        {"tool_calls": [more]},
    ):
        stream.feed(event({"choices": [{"delta": delta}]}))
    stream.feed(event({"choices": [{"delta": {"content": "b"}, "finish_reason": "stop"}]}))
    stream.feed(event({"choices": [], "usage": {"prompt_tokens": 4}}) + b"data: [DONE]\n\ndata: {]\n\n")
    end = stream.end()
    assert (end.text, end.reasoning, end.finish_reason) == ("ab", "r", "stop")
    assert end.usage is not None
    assert end.usage.prompt_tokens == 4
    assert end.tool_calls == (
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
    )


@pytest.mark.parametrize("last", [b"", b"data: [DONE]\n\n"])
def test_stream_that_ends_in_the_middle_is_no_answer(last: bytes) -> None:
    stream = reader()
    stream.feed(event({"choices": [{"delta": {"content": "a"}}]}) + last)
    with pytest.raises(NetworkError) as caught:
        stream.end()
    assert caught.value.error_id == "stream-truncated"


def test_error_in_a_stream_is_an_error() -> None:
    with pytest.raises(NetworkError) as caught:
        reader().feed(event({"error": {"message": "out of memory"}}))
    assert (caught.value.error_id, caught.value.why) == ("engine-failed", "out of memory")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"choices": []}',
        b'{"choices": [{"message": {"content": 5}}]}',
        b"\xff",
        b"null",
    ],
)
def test_answers_of_another_shape_are_refused(body: bytes) -> None:
    with pytest.raises(VerificationError) as caught:
        parse(ChatCompletion, body, "/p")
    assert caught.value.error_id == "answer-malformed"


def test_negative_counts_are_refused() -> None:
    with pytest.raises(VerificationError):
        parse_event(ChatChunk, b'{"choices": [], "timings": {"cache_n": -1}}', "/p")


@pytest.mark.parametrize(
    ("status", "error_id"),
    [
        (302, "answer-malformed"),
        (400, "request-refused"),
        (401, "engine-refused"),
        (404, "request-refused"),
        (500, "engine-failed"),
        (501, "request-unsupported"),
        (503, "engine-loading"),
    ],
)
def test_each_status_has_its_error(status: int, error_id: str) -> None:
    error: OpencotiError = status_error(status, b'{"error": {"message": "why"}}', "/p")
    assert error.error_id == error_id


def test_time_of_an_answer_is_limited_as_a_whole() -> None:
    times = iter([0.0, 5.0, 11.0])
    budget = Budget("/p", max_bytes=100, total_s=10, clock=lambda: next(times))
    budget.spend(1)
    with pytest.raises(NetworkError) as caught:
        budget.spend(1)
    assert caught.value.error_id == "answer-too-slow"


@pytest.mark.parametrize(
    ("vectors", "why"),
    [
        ([[1.0]], "1 vectors for 2 texts"),
        ([[1.0], [1.0, 2.0]], "its vectors are of different widths"),
        ([[1.0], [float("nan")]], "a vector holds a number that is not finite"),
        ([[1.0], [2.0]], ""),
    ],
)
def test_vectors_are_checked(vectors: list[list[float]], why: str) -> None:
    assert require_vectors(vectors, 2) == why
