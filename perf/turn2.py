"""Turn 2 and later: how long until the first token, and how much of the prompt is computed again (case B57).

Agents share a beginning (one system prompt, one list of tools) and differ afterwards. So many sessions as
said take turns on four slots, each turn going to the stock server and to ours one right after the other.
`tokens computed again` are those that the session had sent before; what a turn appends is not among them.
Then both servers are started anew: with a folder for sessions, ours may know them again.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from ci.context import Context
from opencoti.console import Console
from perf.paired import BenchModel, PairedOptions, find_model, find_sides, report_key
from perf.results import PairedReport, Row
from perf.sides import Answer, Running, Sides, both, in_turn, require_same_pin
from perf.texts import Message, first_messages, next_message, text
from perf.validity import answer_problems, prefix_break, prefix_problem, reuse_problems

SLOTS: Final = 4
TOKENS: Final = 8_000
SHARES: Final = (50, 75, 97)
SESSIONS: Final = (2, 4, 8, 16)
SMALL_CACHE_MIB: Final = 8
_ANSWER_TOKENS: Final = 8
_ROOM_TOKENS: Final = 2_048
_TEMPLATE_TOKENS: Final = 32  # what the template adds to the shared text, and the seam after it


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """So many sessions of so many tokens, of which a share (in percent) is the same for all.

    `cache_mib` is the host memory for prompts that have no slot; 0 leaves the server's own default.
    """

    sessions: int
    share: int
    tokens: int = TOKENS
    turns: int = 7
    cache_mib: int = 0

    @property
    def name(self) -> str:
        """How the scenario is called in tables."""
        small = f", cache {self.cache_mib} MiB" if self.cache_mib else ""
        return f"{self.sessions} sessions on {SLOTS} slots, {self.share} % shared{small}"

    @property
    def shared_tokens(self) -> int:
        """Tokens that all sessions begin with."""
        return self.tokens * self.share // 100

    def arguments(self, model: BenchModel) -> tuple[str, ...]:
        """Return the words of both servers."""
        cache = ("--cache-ram", str(self.cache_mib)) if self.cache_mib else ()
        return (*model.arguments(self.tokens + _ROOM_TOKENS, slots=SLOTS), *cache)


@dataclass(kw_only=True)
class Talk:
    """One session on one server: its history, its answers, and why they do not count."""

    number: int
    messages: list[Message]
    answers: list[Answer] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    first_known: int = 0

    def say(self, running: Running, *, turn: int) -> None:
        """Take a turn; what the answer's counts say is checked at once."""
        if turn:
            self.messages.append(next_message(turn))
        before = self.answers[-1].counted if self.answers else None
        answer = running.chat(self.messages, tokens=_ANSWER_TOKENS, session_id=f"bench-{self.number}")
        self.messages.append({"role": "assistant", "content": answer.text})
        sent = before.total_n + before.predicted_n + _TEMPLATE_TOKENS if before else self.first_known
        self.problems += [*answer_problems(answer.counted), *reuse_problems(answer.counted, sent_n=sent)]
        self.answers.append(answer)

    def lost(self, turn: int) -> int:
        """Return how many tokens of the turn before were computed again in this one."""
        return max(0, self.answers[turn - 1].counted.total_n - self.answers[turn].counted.cache_n)

    def first_token_s(self, turn: int) -> float:
        """Return how long the first token of a turn took."""
        return self.answers[turn].counted.first_token_s

    def cpu_s(self, turn: int) -> float:
        """Return the processor time that a turn cost the server."""
        return self.answers[turn].counted.cpu_s


def run(
    context: Context, options: PairedOptions, *, keep: Callable[[PairedReport], None] | None = None
) -> PairedReport:
    """Measure every scenario; `options.runs` is the number of turns after the first.

    `keep` is given the report as far as it goes, after each scenario.

    Raises:
        OpencotiError: those of `find_sides`, of the servers, and `perf-other-pin`.
    """
    sides = find_sides(context, options)
    model = find_model(context.layout, options.models[0], is_gpu=sides.device.target.is_gpu)
    rows: list[Row] = []
    report = _report(sides, model, options)
    for scenario in scenarios(options):
        context.console.info(scenario.name)
        found, names = measure(context, scenario, sides, model, options)
        rows += found
        report = replace(report, rows=tuple(rows), facts={**report.facts, **names})
        if keep is not None:
            keep(report)
    return report


def _report(sides: Sides, model: BenchModel, options: PairedOptions) -> PairedReport:
    """Return the report of this run before anything is measured."""
    tokens = str((options.contexts or (TOKENS,))[0])
    flags = {"flags": " ".join(options.flags), "tokens": tokens, "turns": str(options.runs)}
    return PairedReport(
        title="turn 2 and later",
        rows=(),
        facts={**sides.device.facts, "model": model.name, "tokens per session": tokens},
        notes=sides.notes(),
        key=report_key("turn2", sides, (model,), flags),
    )


def scenarios(options: PairedOptions) -> tuple[Scenario, ...]:
    """Return what is measured: each share with each number of sessions, and one with too small a cache."""
    tokens = (options.contexts or (TOKENS,))[0]
    counts = options.sessions or SESSIONS
    found = [
        Scenario(sessions=count, share=share, tokens=tokens, turns=options.runs)
        for share in options.shares or SHARES
        for count in counts
    ]
    small = Scenario(
        sessions=max(counts), share=75, tokens=tokens, turns=options.runs, cache_mib=SMALL_CACHE_MIB
    )
    return (*found, small) if max(counts) > SLOTS else tuple(found)


def measure(
    context: Context, scenario: Scenario, sides: Sides, model: BenchModel, options: PairedOptions
) -> tuple[list[Row], dict[str, str]]:
    """Measure one scenario; return its rows, and what the servers call themselves."""
    words = (*scenario.arguments(model), *options.flags)
    context.layout.build.mkdir(parents=True, exist_ok=True)
    saved = Path(tempfile.mkdtemp(prefix="perf-sessions-", dir=context.layout.build))
    keep = ("--session-save-path", saved) if sides.ours.has_sessions else ()
    try:
        with both(sides, words, layout=context.layout, ours=keep) as pair:
            names = require_same_pin(pair)
            talks = _talks(scenario, pair)
            for turn in range(scenario.turns + 1):
                _round(pair, talks, turn, context.console, scenario)
            unstable = _unstable(pair[1], talks["ours"][0])
            wrong = [p for running in pair for p in _device_problems(running, sides, model)]
        with both(sides, words, layout=context.layout, ours=keep) as pair:
            _warm_up(pair)
            _round(pair, talks, scenario.turns + 1, context.console, scenario)
    finally:
        shutil.rmtree(saved, ignore_errors=True)
    return list(rows_of(scenario, talks, [*unstable, *wrong])), names


def _talks(scenario: Scenario, pair: tuple[Running, Running]) -> dict[str, list[Talk]]:
    _warm_up(pair)
    shared, own = scenario.shared_tokens, scenario.tokens - scenario.shared_tokens
    return {
        running.side.name: [
            Talk(
                number=number,
                messages=first_messages(number, shared=shared, own=own),
                first_known=shared + _TEMPLATE_TOKENS if number else 0,
            )
            for number in range(scenario.sessions)
        ]
        for running in pair
    }


def _warm_up(pair: tuple[Running, Running]) -> None:
    """Have each server answer something that no session begins with; it never counts."""
    for running in pair:
        running.chat([{"role": "user", "content": text("Warm", 9, 64)}], tokens=_ANSWER_TOKENS)


def _round(
    pair: tuple[Running, Running],
    talks: dict[str, list[Talk]],
    turn: int,
    console: Console,
    scenario: Scenario,
) -> None:
    for number in range(scenario.sessions):
        console.status(f"{scenario.name}: turn {turn + 1}, session {number + 1}")
        for running in in_turn(pair, turn + number):
            talks[running.side.name][number].say(running, turn=turn)


def _unstable(running: Running, talk: Talk) -> list[str]:
    """Tell whether the second prompt of a session continues the first one, as the server renders them."""
    first, second = (running.render(talk.messages[:count]) for count in (2, 4))
    problem = prefix_problem(prefix_break(first, second))
    return [problem] if problem else []


def _device_problems(running: Running, sides: Sides, model: BenchModel) -> tuple[str, ...]:
    return sides.device.problems(running.log, layers=model.shape.layers)


def rows_of(scenario: Scenario, talks: dict[str, list[Talk]], problems: Sequence[str]) -> Iterator[Row]:
    """Make the rows of a scenario from its talks: later turns, after the restart, first turns."""
    wrong = (
        *problems,
        *(f"{name}: {text}" for name, side in talks.items() for talk in side for text in talk.problems),
    )
    later = range(1, scenario.turns + 1)
    after = (scenario.turns + 1,)
    for label, turns in (("turn 2 and later", later), ("after a restart", after)):
        for metric, unit, figure in _FIGURES:
            yield Row(
                scenario=scenario.name,
                metric=f"{metric}, {label}",
                unit=unit,
                is_timing=unit == "s",
                stock=_each(talks["stock"], turns, figure),
                ours=_each(talks["ours"], turns, figure),
                problems=wrong,
            )
    yield Row(
        scenario=scenario.name,
        metric="tokens computed, first turn of later sessions",
        unit="tokens",
        stock=_first_computed(talks["stock"]),
        ours=_first_computed(talks["ours"]),
        problems=wrong,
    )


_FIGURES: Final[tuple[tuple[str, str, Callable[[Talk, int], float]], ...]] = (
    ("first token", "s", Talk.first_token_s),
    ("processor time", "s", Talk.cpu_s),
    ("tokens computed again", "tokens", Talk.lost),
)


def _each(
    talks: Sequence[Talk], turns: Sequence[int], figure: Callable[[Talk, int], float]
) -> tuple[float, ...]:
    return tuple(float(figure(talk, turn)) for turn in turns for talk in talks)


def _first_computed(talks: Sequence[Talk]) -> tuple[float, ...]:
    return tuple(float(talk.answers[0].counted.prompt_n) for talk in talks[1:])
