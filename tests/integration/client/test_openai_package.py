"""The official `openai` package and our client, pointed at the same engine, get the same answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from ci.paths import Layout
from opencoti.client import Client, Sampling
from opencoti.launch.engine import Engine
from tests.fakes.chat_server import ChatServer
from tests.integration.launch.real import launch_real

MESSAGES: list[Any] = [{"role": "user", "content": "Say something about the sea."}]
# The same beginning every time: reused and computed tokens may differ in the last bit.
FRESH = {"ignore_eos": True, "cache_prompt": False}
SAMPLING = Sampling(max_tokens=8, temperature=0, extra=FRESH)


def theirs(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)


def test_stand_in_talks_to_both() -> None:
    with ChatServer().running() as url, theirs(url) as other, Client(url) as ours:
        whole = other.chat.completions.create(model="tiny", messages=MESSAGES)
        assert whole.choices[0].message.content == ours.chat(MESSAGES).text == "so it is"
        stream = other.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
        pieces = "".join((c.choices[0].delta.content or "") if c.choices else "" for c in stream)
        with ours.stream_chat(MESSAGES) as chunks:
            assert pieces == "".join(chunk.text for chunk in chunks)


@pytest.fixture(scope="module")
def engine(real_layout: Layout, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with launch_real(real_layout, tmp_path_factory.mktemp("engines"), parallel=1) as engine:
        yield engine


@pytest.mark.engine
def test_chat_in_one_piece_and_in_many(engine: Engine) -> None:
    words: dict[str, Any] = {"model": engine.state.alias, "messages": MESSAGES, "max_tokens": 8}
    words |= {"temperature": 0, "extra_body": FRESH}
    with theirs(engine.url) as other, Client(engine.url) as ours:
        wanted = ours.chat(MESSAGES, SAMPLING)
        whole = other.chat.completions.create(**words)
        assert whole.choices[0].message.content == wanted.text
        assert whole.choices[0].finish_reason == wanted.finish_reason == "length"
        assert whole.usage is not None
        assert wanted.usage is not None
        assert whole.usage.prompt_tokens == wanted.usage.prompt_tokens
        with other.chat.completions.create(stream=True, **words) as stream:
            pieces = [(c.choices[0].delta.content or "") if c.choices else "" for c in stream]
        assert "".join(pieces) == wanted.text
        assert len([piece for piece in pieces if piece]) > 3


@pytest.mark.engine
def test_completion_models_and_errors(engine: Engine) -> None:
    with theirs(engine.url) as other, Client(engine.url) as ours:
        assert [item.id for item in other.models.list()] == list(ours.models())
        done = other.completions.create(
            model="any", prompt="the sea", max_tokens=8, temperature=0, extra_body=FRESH
        )
        assert done.choices[0].text == ours.complete("the sea", SAMPLING).text
        with pytest.raises(openai.BadRequestError):
            other.chat.completions.create(model="any", messages=[{"role": "user", "content": "x " * 9000}])


@pytest.mark.engine
def test_asynchronous_package_works_too(engine: Engine) -> None:
    async def ask() -> str | None:
        async with openai.AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="none", max_retries=0) as client:
            done = await client.chat.completions.create(
                model="any", messages=MESSAGES, max_tokens=8, temperature=0, extra_body=FRESH
            )
            return done.choices[0].message.content

    with Client(engine.url) as ours:
        assert asyncio.run(ask()) == ours.chat(MESSAGES, SAMPLING).text


@pytest.mark.engine
def test_vectors_are_the_same(real_layout: Layout, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("engines")
    options: dict[str, Any] = {"purpose": "embedding", "arguments": ("--pooling", "last")}
    with (
        launch_real(real_layout, folder, **options) as engine,
        theirs(engine.url) as other,
        Client(engine.url) as ours,
    ):
        # The package asks for packed numbers unless told otherwise; the engine knows both forms.
        found = other.embeddings.create(model="any", input=["the sea", "a mountain"])
        vectors = [item.embedding for item in found.data]
        for one, two in zip(vectors, ours.embed(["the sea", "a mountain"]), strict=True):
            assert one == pytest.approx(two, abs=1e-4)
