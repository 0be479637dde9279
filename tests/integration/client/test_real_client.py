"""The client and its sessions with the real engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from ci.paths import Layout
from opencoti.client import AsyncClient, Client, Sampling
from opencoti.errors import UsageError
from opencoti.launch.engine import Engine
from tests.integration.launch.real import launch_real

pytestmark = pytest.mark.engine

# The model is noise: it may want to end at once.
SHORT = Sampling(max_tokens=6, temperature=0, seed=1, extra={"ignore_eos": True})
SYSTEM = "You are a careful assistant. " * 40


@pytest.fixture(scope="module")
def engine(real_layout: Layout, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    cache: Path = tmp_path_factory.mktemp("engines")
    # Four slots of 2048 tokens.
    with launch_real(
        real_layout, cache, is_isolated=True, parallel=4, arguments=("--ctx-size", "8192")
    ) as engine:
        yield engine


@pytest.fixture
def client(engine: Engine) -> Iterator[Client]:
    with Client(engine.url) as client:
        yield client


def test_answer_in_one_piece_is_the_answer_in_many(client: Client) -> None:
    messages = [{"role": "user", "content": "Say something about the sea."}]
    fresh = Sampling(max_tokens=6, temperature=0, extra={"ignore_eos": True, "cache_prompt": False})
    whole = client.chat(messages, fresh)
    with client.stream_chat(messages, fresh) as stream:
        pieces = [chunk.text for chunk in stream]
    assert "".join(pieces) == whole.text == stream.end.text
    assert stream.end.finish_reason == whole.finish_reason == "length"
    assert stream.end.timings is not None
    assert stream.end.timings.predicted_n == 6


def test_text_completion_in_both_forms(client: Client) -> None:
    whole = client.complete("the sea", SHORT)
    with client.stream_complete("the sea", SHORT) as stream:
        assert "".join(chunk.text for chunk in stream) == whole.text


def test_what_the_engine_was_not_started_for_is_told(client: Client) -> None:
    with pytest.raises(UsageError) as caught:
        client.embed(["a"])
    assert caught.value.error_id == "request-unsupported"


def test_request_that_the_engine_refuses_is_told(client: Client) -> None:
    with pytest.raises(UsageError) as caught:
        client.chat([{"role": "user", "content": "x " * 9000}], SHORT)
    assert caught.value.error_id == "request-refused"


@pytest.mark.parametrize("is_isolated", [False, True], ids=["shared", "isolated"])
def test_second_turn_computes_only_what_is_new_case_b57(client: Client, is_isolated: bool) -> None:
    with client.session(system=SYSTEM, is_isolated=is_isolated) as session:
        turns = [session.send(f"question {number}", SHORT) for number in range(3)]
    for turn in turns[1:]:
        assert turn.reuse is not None
        assert turn.reuse.lost_n == 0
        assert turn.reuse.prompt_n <= 30
        assert turn.prefix_break is None


def test_as_many_interleaved_sessions_as_slots_keep_their_prefixes_case_b57(client: Client) -> None:
    sessions = [client.session(system=f"{number} {SYSTEM}") for number in range(4)]
    for turn in range(3):
        for session in sessions:
            reuse = session.send(f"question {turn}", SHORT).reuse
            assert reuse is not None
            assert reuse.lost_n == 0
    for session in sessions:
        session.close()


def test_changed_system_text_is_named_with_its_place_case_b57(client: Client) -> None:
    with client.session(system=SYSTEM) as session:
        session.send("question", SHORT)
        changed = [{"role": "system", "content": f"It is 12:31. {SYSTEM}"}, {"role": "user", "content": "x"}]
        found = session.send_history(changed, SHORT).prefix_break
    assert found is not None
    assert (found.kind, found.message) == ("history-changed", 0)


def test_isolated_session_finds_nothing_of_another_one_case_b56(client: Client) -> None:
    with client.session(system=SYSTEM, is_isolated=True) as one:
        one.send("the word is ZEBRA-7741", SHORT)
    with client.session(system=SYSTEM, is_isolated=True) as two:
        reuse = two.send("the word is ZEBRA-7741", SHORT).reuse
    assert reuse is not None
    assert reuse.cache_n == 0


def test_asynchronous_sessions_at_once(engine: Engine) -> None:
    async def talk(client: AsyncClient, number: int) -> list[int]:
        async with client.session(system=f"{number} {SYSTEM}") as session:
            turns = [await session.send(f"question {turn}", SHORT) for turn in range(3)]
            async with session.stream("and more", SHORT) as stream:
                assert "".join([chunk.text async for chunk in stream]) == stream.turn.text
            return [turn.reuse.lost_n for turn in [*turns, stream.turn] if turn.reuse]

    async def main() -> list[list[int]]:
        async with AsyncClient(engine.url) as client:
            return await asyncio.gather(*(talk(client, number) for number in range(4)))

    assert asyncio.run(main()) == [[0, 0, 0, 0]] * 4


def test_vectors_of_the_real_engine(real_layout: Layout, tmp_path: Path) -> None:
    words = {"purpose": "embedding", "arguments": ("--pooling", "mean")}
    with launch_real(real_layout, tmp_path, **words) as engine, Client(engine.url) as client:
        one, other = client.embed(["the sea", "a mountain of iron"])
    assert (len(one), len(other)) == (64, 64)
    assert one != other
