"""Long prompts: prefill, prefill and decoding at that depth, the next turn there, a short question beside it.

Per model and context length, the two servers read the same prompts, one right after the other. Every prompt
of a run begins with other words, so nothing of it is in any cache, and a rate counts computed tokens only.
The "next turn" appends a little to the long prompt: what it costs is not the model but the way to it
(template, tokens, comparison with what is in the slot, copies). "At depth" is a text appended to the long
prompt, several of them in turn, each in the place of the one before: they take seconds where the long prompt
takes minutes, so pairs are many and lie close together in time. "Beside it" is a short question that arrives
while another slot reads a long prompt.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ci.context import Context
from perf.paired import BenchModel, PairedOptions, find_model, find_sides, report_key
from perf.results import Better, PairedReport, Row
from perf.sides import (
    Answer,
    Running,
    SideName,
    Sides,
    both,
    differing_texts,
    in_turn,
    require_same_pin,
)
from perf.texts import Message, next_message, text
from perf.validity import Counted, answer_problems, depth_problems, prefill_problems, reuse_problems

CONTEXTS: Final = (8_000, 32_000, 64_000)
_DECODED: Final = 32
_DEEP: Final = 512
"""Tokens that are read at depth: a whole batch of the server's default (`--ubatch-size`)."""
_DEEP_PAIRS: Final = 8
_SHORT: Final = 2
_PART: Final = 16
"""Of a long prompt, one in so many tokens is read before the short question is asked, on both servers."""
_ROOM_TOKENS: Final = 1_024
_SLOTS: Final = 2


@dataclass(kw_only=True)
class Reading:
    """What one server did with the prompts of one scenario."""

    long: list[Answer] = field(default_factory=list)
    again: list[Answer] = field(default_factory=list)
    deep: list[Answer] = field(default_factory=list)
    beside: list[Answer] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)

    def problems(self) -> Iterator[str]:
        """Yield why the figures do not count."""
        yield from self.missed
        for answer in (*self.long, *self.again, *self.deep, *self.beside):
            yield from answer_problems(answer.counted)
        for answer in self.long:
            yield from prefill_problems(answer.counted)
        for answer in self.deep:
            yield from depth_problems(answer.counted, new_n=_DEEP)
        for before, answer in zip(self.long, self.again, strict=True):
            sent = before.counted.total_n + before.counted.predicted_n
            yield from reuse_problems(answer.counted, sent_n=sent)


def run(
    context: Context, options: PairedOptions, *, keep: Callable[[PairedReport], None] | None = None
) -> PairedReport:
    """Measure every model and length; `options.runs` pairs each, after one that does not count.

    `keep` is given the report as far as it goes, after each length.

    Raises:
        OpencotiError: those of `find_sides`, of the servers, and `perf-other-pin`.
    """
    sides = find_sides(context, options)
    is_gpu = sides.device.target.is_gpu
    models = tuple(find_model(context.layout, name, is_gpu=is_gpu) for name in options.models)
    contexts = options.contexts or CONTEXTS
    key = report_key("bigctx", sides, models, {"flags": " ".join(options.flags), "contexts": str(contexts)})
    report = PairedReport(
        title="long contexts", rows=(), facts=sides.device.facts, notes=sides.notes(), key=key
    )
    for model, tokens in itertools.product(models, contexts):
        context.console.info(f"{model.name} model, {tokens} tokens")
        found, names = measure(context, model, tokens, sides, options)
        report = replace(report, rows=(*report.rows, *found), facts={**report.facts, **names})
        if keep is not None:
            keep(report)
    return report


def measure(
    context: Context, model: BenchModel, tokens: int, sides: Sides, options: PairedOptions
) -> tuple[list[Row], dict[str, str]]:
    """Measure one model at one length; return its rows, and what the servers call themselves."""
    words = (*model.arguments(tokens + _ROOM_TOKENS, slots=_SLOTS), *options.flags)
    warm_up: dict[SideName, Reading] = {"stock": Reading(), "ours": Reading()}
    readings: dict[SideName, Reading] = {"stock": Reading(), "ours": Reading()}
    with both(sides, words, layout=context.layout) as pair:
        names = require_same_pin(pair)
        for number in range(options.runs + 1):
            context.console.status(f"{model.name}, {tokens} tokens: run {number} of {options.runs}")
            _measure_once(pair, readings if number else warm_up, number, tokens)
        wrong = [p for r in pair for p in sides.device.problems(r.log, layers=model.shape.layers)]
        wrong += [problem for reading in warm_up.values() for problem in reading.problems()]
    return list(rows_of(f"{model.name}, {tokens // 1000}k", readings, wrong)), names


def _measure_once(
    pair: tuple[Running, Running], readings: dict[SideName, Reading], number: int, tokens: int
) -> None:
    told = {
        running.side.name: _read_long(running, readings[running.side.name], number, tokens)
        for running in in_turn(pair, number)
    }
    for turn in range(number, number + _DEEP_PAIRS):
        asked: Message = {"role": "user", "content": text("Aside", turn, _DEEP)}
        for running in in_turn(pair, turn):
            messages = [*told[running.side.name], asked]
            answer = running.chat(messages, tokens=_DECODED, session_id="bench-long")
            readings[running.side.name].deep.append(answer)
    for running in in_turn(pair, number):
        _ask_beside(running, readings[running.side.name], number, tokens)


def _read_long(running: Running, reading: Reading, number: int, tokens: int) -> list[Message]:
    """Read a long prompt and take the next turn; return the conversation between the two."""
    messages: list[Message] = [{"role": "user", "content": text("Book", number, tokens)}]
    answer = running.chat(messages, tokens=_DECODED, session_id="bench-long")
    messages.append({"role": "assistant", "content": answer.text})
    reading.long.append(answer)
    again = running.chat([*messages, next_message(number)], tokens=_SHORT, session_id="bench-long")
    reading.again.append(again)
    return messages


def _ask_beside(running: Running, reading: Reading, number: int, tokens: int) -> None:
    """Ask something short when a part of a long prompt has been read in another slot, which goes on."""
    long: list[Message] = [{"role": "user", "content": text("Other", number, tokens)}]
    short: list[Message] = [{"role": "user", "content": text("Short", number, 50)}]
    with running.reading(long, tokens=tokens // _PART) as is_read:
        if not is_read:
            reading.missed.append("the long prompt was read before the short question was asked")
        reading.beside.append(running.chat(short, tokens=_SHORT, session_id="bench-short"))
    running.forget_spent()


def rows_of(scenario: str, readings: dict[SideName, Reading], problems: Sequence[str]) -> Iterator[Row]:
    """Make the rows of a scenario: rates, times, and whether both servers said the same."""
    wrong = (*problems, *(f"{name}: {text}" for name, one in readings.items() for text in one.problems()))
    for metric, unit, better, part, figure in _FIGURES:
        yield Row(
            scenario=scenario,
            metric=metric,
            unit=unit,
            better=better,
            is_timing=True,
            stock=_figures(part(readings["stock"]), figure),
            ours=_figures(part(readings["ours"]), figure),
            problems=wrong,
        )
    differing = differing_texts(readings["stock"].long, readings["ours"].long)
    yield Row(
        scenario=scenario,
        metric="answers that differ from stock's",
        unit="answers",
        ours=(float(len(differing)),),
        problems=(*wrong, *differing[:1]),
    )


_FIGURES: Final[
    tuple[tuple[str, str, Better, Callable[[Reading], list[Answer]], Callable[[Counted], float]], ...]
] = (
    ("prefill", "tokens/s", "higher", lambda one: one.long, lambda counted: counted.prefill_rate),
    ("prefill at depth", "tokens/s", "higher", lambda one: one.deep, lambda counted: counted.prefill_rate),
    ("decoding at depth", "tokens/s", "higher", lambda one: one.deep, lambda counted: counted.decode_rate),
    (
        "processor time of prompt and answer",
        "s",
        "lower",
        lambda one: one.long,
        lambda counted: counted.cpu_s,
    ),
    ("first token of the next turn", "s", "lower", lambda one: one.again, lambda c: c.first_token_s),
    ("processor time of the next turn", "s", "lower", lambda one: one.again, lambda counted: counted.cpu_s),
    (
        "first token of a short question beside it",
        "s",
        "lower",
        lambda one: one.beside,
        lambda c: c.first_token_s,
    ),
)


def _figures(answers: Sequence[Answer], figure: Callable[[Counted], float]) -> tuple[float, ...]:
    return tuple(figure(answer.counted) for answer in answers)
