"""Memory of slots: after the start, with every slot at work, and idle again; and what growing costs.

Three servers one after another per repetition: stock, ours as it starts by default, and ours with slots that
begin small (`--slot-initial-ctx`) and give back (`--slot-shrink-idle-ms`), where it offers that. Memory is
what is no file's. Stock says how large its cache is and holds all of it from the start, so what else a server
holds at each moment (buffers, texts) is known from stock, and the rest of ours is its cache. Decoding at full
context is compared in pairs, stock and small slots right after each other.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from ci.context import Context
from perf.paired import BenchModel, PairedOptions, find_model, find_sides, report_key
from perf.results import PairedReport, Row
from perf.sides import (
    Answer,
    Running,
    Side,
    Sides,
    both,
    differing_texts,
    in_turn,
    require_same_pin,
    started,
)
from perf.texts import Message, text
from perf.validity import answer_problems

SLOTS: Final = 4
CONTEXT: Final = 64_000
INITIAL_CTX: Final = 4_096
SHRINK_IDLE_MS: Final = 5_000
SHRINK_S: Final = 12.0
"""How long an idle server may take to give back."""
FILL: Final = 12_000
"""Tokens in a slot that is at work: more than a small one begins with, and soon read."""
LIMIT_START: Final = 1 / 12
LIMIT_IDLE: Final = 1.10
MEMORY_RUNS: Final = 3
"""Memory is the same every time but for a page or two, so it needs no warm-up and few repetitions."""
_DECODED: Final = 32
_ROOM_TOKENS: Final = 1_024
_POLL_S: Final = 0.1
_START: Final = "after the start"
_IDLE: Final = "idle again"
_CACHE_NAME: Final = "cache"
_SAYS_CACHE: Final = "4"
# `llama_kv_cache:        CPU KV buffer size =    15.75 MiB`
_CACHE: Final = re.compile(r"llama_kv_cache: +\S+ KV buffer size = +([0-9.]+) MiB")
# Without giving back: what a pause between two questions costs is not the speed of decoding.
_GROWING: Final = ("--slot-initial-ctx", str(INITIAL_CTX))
LAZY_WORDS: Final = (*("--slot-initial-ctx", str(INITIAL_CTX), "--slot-shrink-idle-ms", str(SHRINK_IDLE_MS)),)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A way to start a server."""

    name: str
    side: Side
    words: tuple[str, ...] = ()


@dataclass(kw_only=True)
class Memory:
    """What one variant held, in bytes, once per repetition. `cache` is what its log says."""

    start: list[float] = field(default_factory=list)
    loaded: list[float] = field(default_factory=list)
    idle: list[float] = field(default_factory=list)
    cache: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def run(
    context: Context, options: PairedOptions, *, keep: Callable[[PairedReport], None] | None = None
) -> PairedReport:
    """Measure; at most `MEMORY_RUNS` repetitions of the memory, and `options.runs` pairs of the speed.

    `keep` is given the report once it is whole: half of it says nothing.

    Raises:
        OpencotiError: those of `find_sides`, of the servers, and `perf-other-pin`.
    """
    sides = find_sides(context, options)
    model = find_model(context.layout, options.models[0], is_gpu=sides.device.target.is_gpu)
    tokens = (options.contexts or (CONTEXT,))[0]
    rows, names = _measure(context, sides, model, tokens, options)
    flags = {"flags": " ".join(options.flags), "context": str(tokens), "lazy": " ".join(LAZY_WORDS)}
    key = report_key("slots", sides, (model,), flags)
    facts = {
        **sides.device.facts,
        "model": model.name,
        "slots": f"{SLOTS} of {tokens} tokens",
        "small slots": " ".join(LAZY_WORDS) if sides.ours.has_lazy_slots else "not offered",
        **limits(rows),
        **names,
    }
    report = PairedReport(
        title="memory of slots", rows=tuple(rows), facts=facts, notes=sides.notes(), key=key
    )
    if keep is not None:
        keep(report)
    return report


def limits(rows: Sequence[Row]) -> dict[str, str]:
    """Say how far small slots keep to their limits; nothing where they were not offered.

    Idle memory by medians: what a server holds besides its cache differs by about 1 MB from start to start,
    also without small slots.
    """
    by_metric = {row.metric: row for row in rows if row.scenario == "small slots" and row.unit == "MB"}
    if not by_metric:
        return {}
    start, idle = (by_metric[f"{_CACHE_NAME}, {moment}"] for moment in (_START, _IDLE))
    shares = {
        "cache after the start, of stock's": (max(start.ours) / min(start.stock), LIMIT_START),
        "cache idle again, of the start's": (median(idle.ours) / max(1.0, min(start.ours)), LIMIT_IDLE),
    }
    return {
        name: f"{share:.3f}, {'within' if share <= limit else 'OVER'} the limit of {limit:.3f}"
        for name, (share, limit) in shares.items()
    }


def variants(sides: Sides) -> tuple[Variant, ...]:
    """Return the ways to start that are compared with stock; small slots where they are offered."""
    ours = Variant(name="as it starts", side=sides.ours)
    lazy = Variant(name="small slots", side=sides.ours, words=LAZY_WORDS)
    return (ours, lazy) if sides.ours.has_lazy_slots else (ours,)


def _measure(
    context: Context, sides: Sides, model: BenchModel, tokens: int, options: PairedOptions
) -> tuple[list[Row], dict[str, str]]:
    stock = Variant(name="stock", side=sides.stock)
    found = {variant.name: Memory() for variant in (stock, *variants(sides))}
    words = (*model.arguments(max(tokens, FILL + _ROOM_TOKENS), slots=SLOTS), *options.flags)
    for number in range(min(options.runs, MEMORY_RUNS)):
        for variant in (stock, *variants(sides)):
            context.console.status(f"memory, {variant.name}: run {number + 1}")
            _hold(context, sides, variant, words, model, found[variant.name])
    rows = [
        row for name in found if name != "stock" for row in memory_rows(name, found["stock"], found[name])
    ]
    last = variants(sides)[-1]
    speed, names = _decode(context, sides, last, model, tokens, options)
    return [*rows, *speed], names


def _hold(
    context: Context, sides: Sides, variant: Variant, words: Sequence[str], model: BenchModel, memory: Memory
) -> None:
    """Start a variant, put every slot to work, let it idle, and note what it holds each time."""
    # No host-memory cache of prompts: it would hold copies of what the slots hold.
    # A GPU's own words ask for more of the log already.
    verbosity = () if sides.device.target.is_gpu else ("--log-verbosity", _SAYS_CACHE)
    given = (*words, "--cache-ram", "0", *verbosity, *variant.words)
    with started(variant.side, sides.device, given, layout=context.layout) as running:
        running.chat([{"role": "user", "content": text("Warm", 9, 32)}], tokens=2)
        memory.start.append(running.memory_bytes)
        memory.loaded.append(_work(running, memory.problems))
        memory.idle.append(_settled(running, SHRINK_S if variant.words else 0.0))
        memory.cache.append(sum(float(size) for size in _CACHE.findall(running.log)) * (1 << 20))
        memory.problems += sides.device.problems(running.log, layers=model.shape.layers)


def _work(running: Running, problems: list[str]) -> float:
    """Put every slot to work at the same time; return the most that the server held meanwhile."""
    with ThreadPoolExecutor(max_workers=SLOTS) as pool:
        jobs = [pool.submit(_fill, running, slot) for slot in range(SLOTS)]
        held = running.memory_bytes
        while not all(job.done() for job in jobs):
            wait(jobs, timeout=_POLL_S)
            held = max(held, running.memory_bytes)
    for job in jobs:
        problems += answer_problems(job.result().counted)
    return held


def _fill(running: Running, slot: int) -> Answer:
    messages: list[Message] = [{"role": "user", "content": text("Fill", slot, FILL)}]
    with running.second() as own:
        return own.chat(messages, tokens=2, session_id=f"bench-{slot}")


def _settled(running: Running, wait_s: float) -> float:
    """Return the least that an idle server holds within the time that it may take to give back."""
    end = time.monotonic() + wait_s
    held = running.memory_bytes
    while time.monotonic() < end:
        time.sleep(_POLL_S)
        held = min(held, running.memory_bytes)
    return held


def memory_rows(name: str, stock: Memory, ours: Memory) -> Iterator[Row]:
    """Make the rows of one way to start: per moment its cache and all that it holds, in MB."""
    silent = [] if all(stock.cache) else ["the stock server does not say how large its cache is"]
    problems = (*stock.problems, *ours.problems, *silent)
    for moment, before, now in (
        (_START, stock.start, ours.start),
        ("every slot at work", stock.loaded, ours.loaded),
        (_IDLE, stock.idle, ours.idle),
    ):
        rests = [held - cache for held, cache in zip(before, stock.cache, strict=True)]
        caches = [max(0.0, held - rest) for held, rest in zip(now, rests, strict=True)]
        for metric, of_stock, of_ours in ((_CACHE_NAME, stock.cache, caches), ("memory", before, now)):
            yield Row(
                scenario=name,
                metric=f"{metric}, {moment}",
                unit="MB",
                stock=tuple(value / 1e6 for value in of_stock),
                ours=tuple(value / 1e6 for value in of_ours),
                problems=problems,
            )


def _decode(
    context: Context, sides: Sides, variant: Variant, model: BenchModel, tokens: int, options: PairedOptions
) -> tuple[list[Row], dict[str, str]]:
    """Compare decoding at full context, after the slot has grown to it."""
    words = (*model.arguments(tokens, slots=SLOTS), *options.flags)
    answers: dict[str, list[Answer]] = {"stock": [], "ours": []}
    growing = _GROWING if variant.words else ()
    with both(sides, words, layout=context.layout, ours=growing) as pair:
        names = require_same_pin(pair)
        for number in range(options.runs + 1):
            context.console.status(f"decoding at {tokens} tokens: run {number} of {options.runs}")
            for running in in_turn(pair, number):
                answers[running.side.name].append(_decode_once(running, tokens))
    return list(speed_rows(variant.name, answers["stock"], answers["ours"])), names


def _decode_once(running: Running, tokens: int) -> Answer:
    """Have tokens made at the end of a full slot: the same prompt again, computed only once."""
    messages: list[Message] = [{"role": "user", "content": text("Fill", 0, tokens - _ROOM_TOKENS)}]
    return running.chat(messages, tokens=_DECODED, session_id="bench-0")


def speed_rows(name: str, stock: Sequence[Answer], ours: Sequence[Answer]) -> Iterator[Row]:
    """Make the rows of the speed at full context, the first answer of each left out."""
    pairs = list(zip(stock, ours, strict=True))
    problems = [p for pair in pairs for answer in pair for p in answer_problems(answer.counted)]
    yield Row(
        scenario=name,
        metric="decoding at full context",
        unit="tokens/s",
        better="higher",
        is_timing=True,
        stock=tuple(answer.counted.decode_rate for answer in stock[1:]),
        ours=tuple(answer.counted.decode_rate for answer in ours[1:]),
        problems=tuple(problems),
    )
    differing = differing_texts(stock, ours)
    yield Row(
        scenario=name,
        metric="answers that differ from stock's",
        unit="answers",
        ours=(float(len(differing)),),
        problems=(*problems, *differing[:1]),
    )
