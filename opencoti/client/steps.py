"""The steps of a session, sans I/O: generators that yield what is to be asked and are sent the answers.

A client of either kind drives them: it sends an answer in, or throws the error that came instead. So the
order of questions, and what happens when one fails, is written down once.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from typing import Any, TypeVar

from opencoti.client.answers import answer_of, full_turn, turn_of
from opencoti.client.exchanges import (
    Exchange,
    ask_chat,
    ask_erasure,
    ask_forgetting,
    ask_prompt,
    ask_props,
)
from opencoti.client.session import Conversation, PrefixBreak, Reuse, SlotTable, Turn, compare_prompts
from opencoti.client.sse import StreamEnd
from opencoti.errors import OpencotiError

T = TypeVar("T")
Steps = Generator[Exchange[Any], Any, T]


def open_session(talk: Conversation, slots: SlotTable) -> Steps[None]:
    """Find out how the engine is told about a session; empty the slot of an isolated one."""
    props = yield ask_props()
    talk.settle(props, slots)
    if not talk.is_isolated:
        return
    try:
        # Where slots cannot be erased, not reusing what is in it has the same effect.
        talk.must_start_clean = not (yield from _erase(talk))
    except BaseException:
        _give_back(talk, slots)
        raise


def _erase(talk: Conversation) -> Steps[bool]:
    try:
        yield ask_erasure(talk.slot)
    except OpencotiError:
        return False
    return True


def _forget(talk: Conversation) -> Steps[None]:
    """Have the copies deleted that the engine keeps outside of slots; that it has none is no failure."""
    if talk.knows_sessions:
        with suppress(OpencotiError):
            yield ask_forgetting(talk.session_id)


def take_turn(talk: Conversation, body: bytes) -> Steps[Turn]:
    """Ask for the next answer and take it into the history."""
    answer = yield ask_chat(body)
    reuse = talk.accept(answer.choices[0].message, answer.usage, answer.timings)
    return full_turn(answer, reuse, (yield from find_break(talk, reuse)))


def end_streamed_turn(talk: Conversation, end: StreamEnd) -> Steps[Turn]:
    """Take an answer that came in pieces into the history."""
    reuse = talk.accept(answer_of(end), end.usage, end.timings)
    return turn_of(end, reuse, (yield from find_break(talk, reuse)))


def find_break(talk: Conversation, reuse: Reuse | None) -> Steps[PrefixBreak | None]:
    """Say where the prefix broke in the turn that was just accepted, None if it did not."""
    known = talk.take_break()
    if known is not None or reuse is None or reuse.is_stable:
        return known
    bodies = talk.template_bodies()
    with suppress(OpencotiError):
        if bodies is not None:
            before = yield ask_prompt(bodies[0])
            after = yield ask_prompt(bodies[1])
            return compare_prompts(before, after)
    return PrefixBreak(kind="unknown", position=reuse.cache_n)


def close_session(talk: Conversation, slots: SlotTable) -> Steps[None]:
    """Let the slot go; an isolated session also erases what the engine remembers of it."""
    try:
        if talk.is_isolated:
            yield from _erase(talk)
            yield from _forget(talk)
    finally:
        _give_back(talk, slots)


def _give_back(talk: Conversation, slots: SlotTable) -> None:
    if talk.slot is not None:
        slots.give_back(talk.slot)
        talk.slot = None
