"""Conversations at once on the real engine: none ever sees a word of another one (case B56).

Each session has a word that nobody else has. What the engine holds is read from its own slots (with its debug
switch they show prompts), besides the answers and the counts of reused tokens.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from ci.paths import Layout
from opencoti.client import Client, Sampling, Session, Turn
from opencoti.launch.engine import Engine
from tests.integration.launch.real import launch_real

pytestmark = pytest.mark.engine

SLOTS, ROUNDS, TURNS = 4, 6, 3
SHORT = Sampling(max_tokens=5, temperature=0, extra={"ignore_eos": True})
SYSTEM = "You keep secrets. " * 20


@pytest.fixture(scope="module")
def engine(real_layout: Layout, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with launch_real(
        real_layout,
        tmp_path_factory.mktemp("engines"),
        is_isolated=True,
        parallel=SLOTS,
        arguments=("--ctx-size", str(SLOTS * 2048)),
        env={"LLAMA_SERVER_SLOTS_DEBUG": "1"},
    ) as engine:
        yield engine


@dataclass
class Watch:
    """The words of all sessions, and what was seen where it must not be."""

    url: str
    words: set[str] = field(default_factory=set)
    leaks: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def new_word(self) -> str:
        word = f"ZEBRA-{secrets.randbelow(10**9):09}"
        with self.lock:
            self.words.add(word)
        return word

    def check(self, where: str, text: str, own: str) -> None:
        with self.lock:
            self.leaks += [f"{where}: {word} in {own}" for word in self.words - {own} if word in text]

    def slots(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = httpx.get(f"{self.url}/slots", trust_env=False).json()
        return found

    def slot(self, number: int | None) -> dict[str, Any]:
        return next(slot for slot in self.slots() if slot["id"] == number)


def talk(client: Client, watch: Watch, *, is_isolated: bool) -> list[Turn]:
    """Have one conversation about a word of its own; look at everything after each turn."""
    own = watch.new_word()
    turns = []
    with client.session(system=SYSTEM, is_isolated=is_isolated) as session:
        for number in range(TURNS):
            turns.append(session.send(f"{number}: the word is {own}, what else do you know?", SHORT))
            watch.check("answer", turns[-1].text, own)
            if is_isolated:  # nobody else may use its slot
                look_at_slot(watch, session, own)
    return turns


def look_at_slot(watch: Watch, session: Session, own: str) -> None:
    slot = watch.slot(session.conversation.slot)
    text = slot["prompt"] + slot["generated"]
    assert own in text
    watch.check("slot", text, own)


def test_isolated_conversations_at_once_never_meet_case_b56(engine: Engine) -> None:
    watch = Watch(engine.url)
    with Client(engine.url) as client, ThreadPoolExecutor(SLOTS) as pool:
        jobs = [pool.submit(talk, client, watch, is_isolated=True) for _ in range(SLOTS * ROUNDS)]
        conversations = [job.result() for job in jobs]
    assert watch.leaks == []
    for turns in conversations:
        reuses = [turn.reuse for turn in turns]
        assert all(reuse is not None for reuse in reuses)
        assert reuses[0].cache_n == 0, "its slot held something of another conversation"  # type: ignore[union-attr]
        for reuse in reuses[1:]:
            assert reuse is not None
            # All of its own last prompt and at most its own answer besides.
            assert reuse.expected_n <= reuse.cache_n <= reuse.expected_n + (SHORT.max_tokens or 0)
    assert [slot["n_prompt_tokens"] for slot in watch.slots()] == [0] * SLOTS


def test_more_sessions_than_slots_share_not_even_their_beginning_case_b56(engine: Engine) -> None:
    watch = Watch(engine.url)
    with Client(engine.url) as client, ThreadPoolExecutor(SLOTS * 2) as pool:
        jobs = [pool.submit(talk, client, watch, is_isolated=False) for _ in range(SLOTS * 4)]
        conversations = [job.result() for job in jobs]
        alone = talk(client, watch, is_isolated=False)
    assert watch.leaks == []
    assert [turns[0].reuse.cache_n for turns in conversations] == [0] * len(jobs)  # type: ignore[union-attr]
    # Each has a name. What it finds again is its own, as long as its slot is not needed for others.
    found = {turn.session.restored_from for turns in conversations for turn in turns if turn.session}
    assert found <= {"slot", None}
    assert [turn.session.restored_from for turn in alone if turn.session] == [None, "slot", "slot"]


def fail_in_the_middle(client: Client, watch: Watch) -> int | None:
    """Leave a conversation with an exception; return its slot, which held something until then."""
    slot = None
    with suppress(ZeroDivisionError), client.session(is_isolated=True) as session:
        session.send(f"the word is {watch.new_word()}", SHORT)
        slot = session.conversation.slot
        assert watch.slot(slot)["n_prompt_tokens"] > 0
        raise ZeroDivisionError
    return slot


def test_slot_is_empty_after_a_conversation_that_failed_case_b56(engine: Engine) -> None:
    watch = Watch(engine.url)
    with Client(engine.url) as client:
        assert watch.slot(fail_in_the_middle(client, watch))["n_prompt_tokens"] == 0
