"""How much of a prompt is computed again in later turns: sessions beside requests without any (case B57).

Tokens count here and no time: the model is tiny, so long prefixes are affordable. Of each turn after the
first, `lost` is what the engine computed again although the session had sent it before; newly added text is
not part of it. As many sessions as slots take turns. Beside them, the same conversations as plain requests,
which choose no slot. A session whose prefix is not stable is reported with the place of the break. The whole
takes about ten minutes on two quiet cores, and several times that on busy ones: what is measured is handed on
after each step, so that a run which is cut off leaves a report of what it had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ci.context import Context
from opencoti.client import Client, Limits, Sampling, Session, Turn
from opencoti.client.payloads import ChatCompletion
from opencoti.launch import launch
from perf.launch import Case, prepared
from perf.measure import Report

PREFIX_TOKENS: Final = (2_000, 16_000, 64_000)
PLAIN_UP_TO_TOKENS: Final = 16_000  # the comparison would double the time of the longest prefix
LIMIT_SHARE: Final = 0.01
SLOTS: Final = 4
_SPARE_TOKENS: Final = 2048
_SHORT: Final = Sampling(max_tokens=16, temperature=0, extra={"ignore_eos": True})
_PATIENT: Final = Limits(idle_s=1800, total_s=3600)


@dataclass(frozen=True, kw_only=True)
class Lost:
    """What later turns computed again, the worst of all."""

    prefix_tokens: int
    tokens: int
    turns: int
    breaks: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """Part of the prefix."""
        return self.tokens / self.prefix_tokens

    def __str__(self) -> str:
        text = f"{self.tokens} of {self.prefix_tokens} tokens ({self.share:.2%}) in {self.turns} turns"
        return text + (f"; prefix not stable: {self.breaks[0]}" if self.breaks else "")


def run(context: Context, *, runs: int, keep: Callable[[Report], None] | None = None) -> Report:
    """Measure every prefix alone and interleaved.

    Args:
        context: checkout and console.
        runs: how many turns follow the first, at most 7.
        keep: is given the report as far as it goes, after each step.
    """
    turns = min(runs, 7)
    facts: dict[str, object] = {"limit": f"{LIMIT_SHARE:.0%} of the prefix beyond what was newly added"}
    with prepared(context.layout) as case:
        for tokens in PREFIX_TOKENS:
            for count in (1, SLOTS):
                context.console.status(f"{tokens} tokens, {count} sessions")
                found = measure(case, tokens, sessions=count, turns=turns)
                for way, lost in found.items():
                    name = f"{tokens // 1000}k, {count} at once, {way}"
                    facts[name] = str(lost)
                    context.console.info(f"{name}: {lost}")
                if keep is not None:
                    keep(_report(facts))
    return _report(facts)


def _report(facts: dict[str, object]) -> Report:
    return Report(title="tokens computed again", samples=[], facts=dict(facts))


def measure(case: Case, tokens: int, *, sessions: int, turns: int) -> dict[str, Lost]:
    """Return what sessions and plain requests lose; each has an engine of its own."""
    options = replace(case.options, parallel=sessions, arguments=_room(tokens, sessions))
    found = {}
    ways = {"sessions": _talk_in_sessions, "plain requests": _talk_plainly}
    if tokens > PLAIN_UP_TO_TOKENS:
        del ways["plain requests"]
    for way, talk in ways.items():
        with launch(options, environ=case.environ) as engine, Client(engine.url, limits=_PATIENT) as client:
            systems = [_system(number, tokens) for number in range(sessions)]
            found[way] = talk(client, systems, turns)
    return found


def _room(tokens: int, sessions: int) -> tuple[str, ...]:
    """Return arguments for contexts of this length, whatever the tiny model was made for."""
    context = tokens + _SPARE_TOKENS
    return (
        *("--ctx-size", str(context * sessions), "--batch-size", "2048", "--ubatch-size", "2048"),
        *("--override-kv", f"qwen2.context_length=int:{context}", "--no-kv-unified"),
    )


def _system(number: int, tokens: int) -> str:
    """Return a text of about so many tokens that differs from the others from its first word on."""
    # One token each with the vocabulary of the tiny model.
    words = (" red", " blue", " green", " black", " white", " gold", " grey")
    return f"Session {number}." + "".join(
        words[(at * (number + 2) + at // 7) % len(words)] for at in range(tokens - 20)
    )


def _talk_in_sessions(client: Client, systems: Sequence[str], turns: int) -> Lost:
    sessions = [client.session(system=system) for system in systems]
    try:
        later = list(_later_turns(sessions, turns))
    finally:
        for session in sessions:
            session.close()
    reuses = [turn.reuse for turn in later if turn.reuse is not None]
    return Lost(
        prefix_tokens=reuses[0].expected_n,
        tokens=max(reuse.lost_n for reuse in reuses),
        turns=len(reuses),
        breaks=tuple(str(turn.prefix_break) for turn in later if turn.prefix_break is not None),
    )


def _later_turns(sessions: Sequence[Session], turns: int) -> Iterator[Turn]:
    for number in range(turns + 1):
        for session in sessions:
            turn = session.send(f"Question {number}?", _SHORT)
            if number:
                yield turn


def _talk_plainly(client: Client, systems: Sequence[str], turns: int) -> Lost:
    histories: list[list[dict[str, Any]]] = [[{"role": "system", "content": text}] for text in systems]
    prompts = [0] * len(histories)
    lost = []
    for number in range(turns + 1):
        for at, history in enumerate(histories):
            history.append({"role": "user", "content": f"Question {number}?"})
            answer = client.chat(history, _SHORT)
            history.append({"role": "assistant", "content": answer.text})
            cached, total = _counts(answer)
            if number:
                lost.append(max(0, prompts[at] - cached))
            prompts[at] = total
    return Lost(prefix_tokens=prompts[0], tokens=max(lost), turns=len(lost))


def _counts(answer: ChatCompletion) -> tuple[int, int]:
    assert answer.timings is not None
    return answer.timings.cache_n, answer.timings.cache_n + answer.timings.prompt_n
