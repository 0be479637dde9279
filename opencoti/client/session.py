"""The state of one conversation, sans I/O: a prefix that never changes, a slot, and what was reused.

Messages are encoded once and only ever appended, so the next request begins with the very bytes of the one
before (case B57). How well that worked is read off the engine's own counts after each turn.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from opencoti.client.payloads import AnswerMessage, Props, SessionReport, Timings, Usage
from opencoti.client.requests import Message, Sampling, chat_body, encode, streaming
from opencoti.errors import BusyError, UsageError

SESSION_FEATURE: Final = "session-id"
_SLACK_TOKENS: Final = 4  # the seam between turns may be cut into tokens in another way
_SLACK_SHARE: Final = 0.01
_EXCERPT: Final = 60

BreakKind = Literal["history-changed", "template-rewrote", "cache-lost", "unknown"]


@dataclass(frozen=True, kw_only=True)
class PrefixBreak:
    """Why and where the beginning of a prompt was not the one before.

    `history-changed`: the caller's messages differ from those that were sent; `position` counts bytes in
    message number `message`. `template-rewrote`: the chat template renders the same history in another way;
    `position` counts characters of the rendered prompt. `cache-lost`: the text is the same, but the engine
    had dropped it.
    """

    kind: BreakKind
    position: int
    before: str = ""
    after: str = ""
    message: int | None = None

    def __str__(self) -> str:
        where = f"message {self.message}, byte {self.position}" if self.message is not None else ""
        texts = {
            "history-changed": f"the history was changed at {where}: {self.before!r} became {self.after!r}",
            "template-rewrote": f"the chat template rewrote the history at character {self.position}: "
            f"{self.before!r} became {self.after!r}",
            "cache-lost": "the text is the same, but the engine had dropped it: more sessions than slots?",
            "unknown": "the engine does not say where",
        }
        return texts[self.kind]


@dataclass(frozen=True, kw_only=True)
class Reuse:
    """How much of a prompt was there already, in tokens. `expected_n`: the prompt of the turn before."""

    cache_n: int
    prompt_n: int
    expected_n: int

    @property
    def is_stable(self) -> bool:
        """Whether the whole prompt of the turn before was reused, but for a little at the seam."""
        return self.lost_n <= max(_SLACK_TOKENS, self.expected_n * _SLACK_SHARE)

    @property
    def lost_n(self) -> int:
        """Tokens of the turn before that had to be computed again."""
        return max(0, self.expected_n - self.cache_n)


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One answer in a session.

    `reuse` is None where the engine gives no counts, `session` where it knows no sessions.
    """

    text: str
    reasoning: str
    finish_reason: str | None
    usage: Usage | None
    timings: Timings | None
    reuse: Reuse | None
    prefix_break: PrefixBreak | None = None
    session: SessionReport | None = None


class SlotTable:
    """Which sessions of this client use which slots. Safe between threads."""

    def __init__(self) -> None:
        self._users: dict[int, int] = {}
        self._exclusive: set[int] = set()
        self._lock = threading.Lock()

    def take(self, total: int, *, is_exclusive: bool) -> int:
        """Return the slot with the fewest sessions.

        Raises:
            BusyError: `no-free-slot`, an exclusive one is wanted and every slot has a session, or all are
                exclusive.
        """
        with self._lock:
            free = [slot for slot in range(total) if slot not in self._exclusive]
            if is_exclusive:
                free = [slot for slot in free if not self._users.get(slot)]
            if not free:
                raise BusyError(
                    "no-free-slot",
                    f"all {total} slots of the engine are taken by sessions",
                    hint="close a session, or launch the engine with more --parallel",
                )
            slot = min(free, key=lambda item: (self._users.get(item, 0), item))
            self._users[slot] = self._users.get(slot, 0) + 1
            if is_exclusive:
                self._exclusive.add(slot)
            return slot

    def give_back(self, slot: int) -> None:
        """Let a slot go."""
        with self._lock:
            self._users[slot] = max(0, self._users.get(slot, 0) - 1)
            self._exclusive.discard(slot)


class Conversation:
    """Messages, slot and counts of one session, which has one turn at a time. Not safe between threads.

    Args:
        system: text of the system message; keep clocks, random names and paths out of it.
        is_isolated: a slot of its own, erased before and after.
        session_id: name of the session, for engines that know sessions.
        has_reasoning: send earlier reasoning back to the engine; most templates drop it.
    """

    def __init__(
        self, *, system: str = "", is_isolated: bool = False, session_id: str, has_reasoning: bool = False
    ) -> None:
        self.is_isolated = is_isolated
        self.session_id = session_id
        self.slot: int | None = None
        self.knows_sessions = False
        self.must_start_clean = False
        self._has_reasoning = has_reasoning
        self._sent: list[bytes] = [encode({"role": "system", "content": system})] if system else []
        self._pending: list[bytes] = []
        self._last_prompt: list[bytes] = []
        self._previous_prompt: list[bytes] = []
        self._prompt_tokens = 0
        self._break: PrefixBreak | None = None

    def settle(self, props: Props, slots: SlotTable) -> None:
        """Choose how the engine is told about this session. Raises `BusyError` (`no-free-slot`)."""
        self.knows_sessions = SESSION_FEATURE in props.opencoti.features
        if not self.knows_sessions or self.is_isolated:
            self.slot = slots.take(props.total_slots, is_exclusive=self.is_isolated)

    def next_body(self, content: str | Message, sampling: Sampling, *, is_stream: bool) -> bytes:
        """Return the request that adds one message of the user. It counts only once `accept` was called."""
        message = {"role": "user", "content": content} if isinstance(content, str) else dict(content)
        self._pending = [encode(message)]
        return self._body(sampling, is_stream=is_stream)

    def history_body(self, messages: Sequence[Message], sampling: Sampling, *, is_stream: bool) -> bytes:
        """Return the request for a whole history that the caller keeps; tells where it differs from ours."""
        given = [encode(dict(message)) for message in messages]
        self._break = compare_history(self._sent, given)
        if self._break is not None:
            self._sent = []
        self._pending = given[len(self._sent) :]
        if not self._pending:
            raise UsageError("no-messages", "the history holds no message that is new")
        return self._body(sampling, is_stream=is_stream)

    def _body(self, sampling: Sampling, *, is_stream: bool) -> bytes:
        options: dict[str, Any] = {"cache_prompt": not self.must_start_clean}
        if self.knows_sessions:
            options["session_id"] = self.session_id
        if self.slot is not None:
            options["id_slot"] = self.slot
        options |= sampling.as_dict()
        return chat_body([*self._sent, *self._pending], streaming(options) if is_stream else options)

    def accept(self, answer: AnswerMessage, usage: Usage | None, timings: Timings | None) -> Reuse | None:
        """Take an answer into the history; return what was reused for it."""
        self._previous_prompt = self._last_prompt
        self._last_prompt = [*self._sent, *self._pending]
        self._sent = [*self._last_prompt, encode(self._as_message(answer))]
        self._pending = []
        self.must_start_clean = False
        reuse = reuse_of(usage, timings, self._prompt_tokens)
        if reuse is not None:
            self._prompt_tokens = reuse.cache_n + reuse.prompt_n
        return reuse

    def _as_message(self, answer: AnswerMessage) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": answer.content or ""}
        if answer.tool_calls:
            message["tool_calls"] = list(answer.tool_calls)
        if answer.reasoning_content and self._has_reasoning:
            message["reasoning_content"] = answer.reasoning_content
        return message

    def take_break(self) -> PrefixBreak | None:
        """Return where the caller's history differed in this turn, once."""
        found, self._break = self._break, None
        return found

    def template_bodies(self) -> tuple[bytes, bytes] | None:
        """Return two requests to `/apply-template`: the prompt of the turn before, and of this one."""
        if not self._previous_prompt:
            return None
        return chat_body(self._previous_prompt, {}), chat_body(self._last_prompt, {})


def reuse_of(usage: Usage | None, timings: Timings | None, expected_n: int) -> Reuse | None:
    """Read the counts of an answer, None where it has none."""
    if timings is not None:
        return Reuse(cache_n=timings.cache_n, prompt_n=timings.prompt_n, expected_n=expected_n)
    if usage is None or usage.prompt_tokens_details is None:
        return None
    cached = min(usage.prompt_tokens_details.cached_tokens, usage.prompt_tokens)
    return Reuse(cache_n=cached, prompt_n=usage.prompt_tokens - cached, expected_n=expected_n)


def compare_history(sent: Sequence[bytes], given: Sequence[bytes]) -> PrefixBreak | None:
    """Say where a history differs from the messages that were sent, None where it goes on from them."""
    for number, old in enumerate(sent):
        new = given[number] if number < len(given) else b""
        if old != new:
            at = _first_difference(old, new)
            return PrefixBreak(
                kind="history-changed",
                position=at,
                before=old[at : at + _EXCERPT].decode("utf-8", "replace"),
                after=new[at : at + _EXCERPT].decode("utf-8", "replace"),
                message=number,
            )
    return None


def compare_prompts(before: str, after: str) -> PrefixBreak:
    """Say why a prompt was not reused, from the rendered texts of two turns."""
    if after.startswith(before):
        return PrefixBreak(kind="cache-lost", position=len(before))
    at = _first_difference(before, after)
    return PrefixBreak(
        kind="template-rewrote",
        position=at,
        before=before[at : at + _EXCERPT],
        after=after[at : at + _EXCERPT],
    )


def _first_difference(one: Sequence[Any], other: Sequence[Any]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
