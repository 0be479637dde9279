"""A session without any server: its prefix, its slot, and what it makes of the engine's counts."""

from __future__ import annotations

import json

import pytest

from opencoti.client.payloads import AnswerMessage, Identity, Props, Timings, Usage
from opencoti.client.requests import Sampling
from opencoti.client.session import (
    Conversation,
    Reuse,
    SlotTable,
    compare_history,
    compare_prompts,
    reuse_of,
)
from opencoti.errors import BusyError, UsageError

PLAIN = Sampling()


def talk(**words: object) -> Conversation:
    given: dict[str, object] = {"session_id": "s1", "system": "be brief"} | words
    return Conversation(**given)  # type: ignore[arg-type]


def answer(text: str, **words: object) -> AnswerMessage:
    return AnswerMessage(content=text, **words)  # type: ignore[arg-type]


def counts(cache_n: int, prompt_n: int) -> Timings:
    return Timings(cache_n=cache_n, prompt_n=prompt_n)


def test_each_request_begins_with_the_bytes_of_the_one_before_case_b57() -> None:
    conversation = talk()
    before = b""
    for turn in range(3):
        body = conversation.next_body(f"frage ä {turn}", PLAIN, is_stream=False)
        assert body.startswith(before)
        before = body[: body.index(b"],")]
        conversation.accept(answer(f"antwort {turn}"), None, None)
    assert [item["role"] for item in json.loads(body)["messages"]] == [
        *("system", "user", "assistant", "user", "assistant", "user")
    ]


def test_turn_that_failed_leaves_no_trace() -> None:
    conversation = talk()
    first = conversation.next_body("one", PLAIN, is_stream=False)
    assert conversation.next_body("one", PLAIN, is_stream=False) == first


def test_slot_is_pinned_where_the_engine_knows_no_sessions() -> None:
    conversation = talk()
    conversation.settle(Props(total_slots=2), SlotTable())
    body = json.loads(conversation.next_body("x", PLAIN, is_stream=True))
    assert (body["id_slot"], body["cache_prompt"], body["stream"]) == (0, True, True)
    assert "session_id" not in body


def test_session_is_named_where_the_engine_knows_sessions() -> None:
    conversation = talk()
    conversation.settle(Props(opencoti=Identity(features=("session-id",))), SlotTable())
    body = json.loads(conversation.next_body("x", PLAIN, is_stream=False))
    assert body["session_id"] == "s1"
    assert "id_slot" not in body


def test_sessions_spread_over_slots_and_isolated_ones_are_alone_case_b56() -> None:
    slots = SlotTable()
    assert [slots.take(3, is_exclusive=False) for _ in range(4)] == [0, 1, 2, 0]
    slots.give_back(1)
    assert slots.take(3, is_exclusive=True) == 1
    assert [slots.take(3, is_exclusive=False) for _ in range(2)] == [2, 0]
    with pytest.raises(BusyError) as caught:
        slots.take(3, is_exclusive=True)
    assert caught.value.error_id == "no-free-slot"
    slots.give_back(1)
    assert slots.take(3, is_exclusive=False) == 1


def test_reuse_is_measured_against_the_turn_before() -> None:
    conversation = talk()
    results = []
    for cache_n, prompt_n in ((0, 1000), (1005, 20), (300, 745)):
        conversation.next_body("x", PLAIN, is_stream=False)
        results.append(conversation.accept(answer("y"), None, counts(cache_n, prompt_n)))
    assert [(item.expected_n, item.lost_n, item.is_stable) for item in results if item] == [
        (0, 0, True),
        (1000, 0, True),
        (1025, 725, False),
    ]


@pytest.mark.parametrize(("cache_n", "is_stable"), [(1000, True), (990, True), (989, False), (0, False)])
def test_a_little_may_be_lost_at_the_seam(cache_n: int, is_stable: bool) -> None:
    assert Reuse(cache_n=cache_n, prompt_n=1, expected_n=1000).is_stable == is_stable


def test_counts_of_other_servers_are_used_where_they_have_any() -> None:
    usage = Usage.model_validate({"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 12}})
    assert reuse_of(usage, None, 5) == Reuse(cache_n=10, prompt_n=0, expected_n=5)
    assert reuse_of(Usage(prompt_tokens=10), None, 5) is None


def test_history_of_the_caller_goes_on_from_ours_case_b57() -> None:
    conversation = talk()
    conversation.next_body("one", PLAIN, is_stream=False)
    conversation.accept(answer("two"), None, None)
    history = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
    ]
    conversation.history_body(history, PLAIN, is_stream=False)
    assert conversation.take_break() is None
    history[0] = {"role": "system", "content": "be brief, it is 12:31"}
    body = conversation.history_body(history, PLAIN, is_stream=False)
    found = conversation.take_break()
    assert found is not None
    assert (found.kind, found.message) == ("history-changed", 0)
    assert found.after.startswith(", it is 12:31")
    assert json.loads(body)["messages"] == history
    assert conversation.take_break() is None


def test_history_without_anything_new_is_refused() -> None:
    with pytest.raises(UsageError):
        talk().history_body([{"role": "system", "content": "be brief"}], PLAIN, is_stream=False)


def test_message_that_was_dropped_is_found() -> None:
    found = compare_history([b"a", b"b"], [b"a"])
    assert found is not None
    assert (found.message, found.position, found.after) == (1, 0, "")


def test_template_that_rewrites_is_told_from_a_lost_cache() -> None:
    assert compare_prompts("<u>hi<a>", "<u>hi<a>yes<u>").kind == "cache-lost"
    found = compare_prompts("<u>hi<a><think>", "<u>hi<a>yes<u>")
    assert (found.kind, found.position, found.before, found.after) == (
        *("template-rewrote", 8, "<think>", "yes<u>"),
    )


def test_reasoning_goes_back_only_if_asked_and_calls_always() -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": "{}"}}
    for has_reasoning in (False, True):
        conversation = talk(has_reasoning=has_reasoning)
        conversation.next_body("x", PLAIN, is_stream=False)
        conversation.accept(answer("y", reasoning_content="hm", tool_calls=(call,)), None, None)
        body = conversation.next_body({"role": "tool", "content": "1"}, PLAIN, is_stream=False)
        said = json.loads(body)["messages"][2]
        assert said["tool_calls"] == [call]
        assert ("reasoning_content" in said) == has_reasoning
