"""Slots that take memory as they fill and give it back (patch 0006): the same engine without and with it."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from ci.paths import Layout
from tests.e2e.conftest import EngineArtifact
from tests.e2e.models import LONG_CONTEXT, long_model, sliding_model
from tests.e2e.running import Running, spawned, started
from tests.fakes.scarce_memory import scarce_memory

pytestmark = pytest.mark.engine

_SLOTS: Final = 4
_STEP: Final = 256
_SPLIT: Final = ("-np", str(_SLOTS), "-c", str(_SLOTS * LONG_CONTEXT), "--no-kv-unified")
# A prompt is kept in its slot only. One thread: several wait for each other on a busy machine.
_COMMON: Final = ("--cache-ram", "0", "-t", "1")
SLOWLY: Final = {"ignore_eos": True, "grammar": "root ::= " + " | ".join(["[a-z ]*"] * 16)}
"""A request that takes seconds for 200 tokens: every token of the vocabulary is tried in 16 ways."""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The engine and two models."""

    engine: Path
    long: Path
    sliding: Path
    home: Path

    def start(
        self, *words: str, model: Path | None = None, variables: Mapping[str, str] | None = None
    ) -> AbstractContextManager[Running]:
        """Start a server."""
        files = ("-m", str(model or self.long))
        return started(self.engine, *files, *_COMMON, *words, home=self.home, variables=variables)


@pytest.fixture(scope="module")
def bench(artifact: EngineArtifact, real_layout: Layout, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    root = tmp_path_factory.mktemp("lazy")
    return Bench(
        engine=artifact.path,
        long=long_model(real_layout, root / "long.gguf"),
        sliding=sliding_model(real_layout, root / "sliding.gguf"),
        home=root,
    )


def prompt(seed: int, length: int) -> list[int]:
    """Return random tokens, always the same."""
    numbers = random.Random(seed)
    return [numbers.randrange(100, 30000) for _ in range(length)]


def tokens_in_turn(server: Running, lengths: Sequence[int], count: int) -> list[list[int]]:
    """Ask slots 0 and 1 one after the other, with prompts of these lengths; return what they say."""
    prompts = [(slot, prompt(length, length)) for length in lengths for slot in (0, 1)]
    answers = [server.complete(text, count, id_slot=slot) for slot, text in prompts]
    return [answer.data["tokens"] for answer in answers]


def mib_at_start(server: Running) -> tuple[float, float]:
    """Return what the slots have at first, and what they would have in full."""
    match = server.wait_for(r"slots start with memory for \d+ of \d+ tokens: ([\d.]+) of ([\d.]+) MiB")[0]
    return float(match[1]), float(match[2])


def growths(server: Running, *, count: int = 0) -> list[tuple[int, int, int]]:
    """Return slot, tokens before and tokens after of every change.

    An answer can be faster than the log: `count` changes are waited for.
    """
    pattern = r"opencoti: slot (\d+): context memory (\d+) -> (\d+) tokens"
    if count:
        server.wait_for(pattern, count=count)
    changes = re.findall(pattern, server.log)
    return [(int(slot), int(before), int(after)) for slot, before, after in changes]


def test_four_slots_of_64k_begin_with_a_sixteenth(bench: Bench) -> None:
    with bench.start(*_SPLIT) as stock:
        full = stock.largest_block_mib
    with bench.start(*_SPLIT, "--slot-initial-ctx", "4096") as server:
        assert mib_at_start(server) == (16, 256)
        assert server.largest_block_mib < full / 12
    assert full > 256


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("-fa", "on"), id="flash-attention"),
        pytest.param(("-fa", "off"), id="transposed"),
        pytest.param(("-fa", "on", "-ctk", "q8_0", "-ctv", "q4_0"), id="quantised"),
        pytest.param(("-fa", "on", "--kv-unified"), id="unified"),
        pytest.param(("-fa", "on", "--sliding"), id="sliding-window"),
    ],
)
def test_growing_slots_say_what_full_ones_say(bench: Bench, words: tuple[str, ...]) -> None:
    """One after the other, since what is computed together depends on when requests arrive."""
    model = bench.sliding if "--sliding" in words else bench.long
    options = ("-np", "2", "-c", "8192", "--no-kv-unified", *(word for word in words if word != "--sliding"))
    with bench.start(*options, model=model) as stock:
        expected = tokens_in_turn(stock, (100, 700), 12)
    with bench.start(*options, "--slot-initial-ctx", "1", model=model) as server:
        assert tokens_in_turn(server, (100, 700), 12) == expected
        assert growths(server, count=2) == [(0, _STEP, 1024), (1, _STEP, 1024)]
    assert len(expected[0]) == 12


def test_memory_doubles_while_a_slot_generates(bench: Bench) -> None:
    with bench.start("-np", "1", "-c", "4096", "--slot-initial-ctx", "256") as server:
        answer = server.complete(prompt(1, 500), -1, n_predict=20, ignore_eos=True)
        assert len(answer.data["tokens"]) == 20
        assert growths(server, count=2) == [(0, 256, 512), (0, 512, 1024)]


def test_slots_under_load_keep_their_texts_apart(bench: Bench) -> None:
    """What is computed together differs from run to run, and numbers with it, but not by much."""
    requests = [prompt(seed, 150 + 60 * seed) for seed in range(8)]
    options = ("-np", str(_SLOTS), "-c", "16384", "--no-kv-unified")
    with bench.start(*options) as stock:
        expected = [likely_tokens(stock, text)[0] for text in requests]
    with bench.start(*options, "--slot-initial-ctx", "256", "--slot-shrink-idle-ms", "1") as server:
        for _ in range(2):
            with ThreadPoolExecutor(len(requests)) as pool:
                answers = list(pool.map(lambda text: likely_tokens(server, text), requests))
            for token, likely in zip(expected, answers, strict=True):
                assert token in likely
        assert len(growths(server, count=_SLOTS + 1)) > _SLOTS


def likely_tokens(server: Running, text: list[int]) -> list[int]:
    """Return the five most likely next tokens, the most likely first."""
    answer = server.complete(text, 1, cache_prompt=False, n_probs=5)
    (first,) = answer.data["completion_probabilities"]
    return [item["id"] for item in first["top_logprobs"]]


def test_an_idle_slot_gives_back_all_but_its_first_tokens(bench: Bench) -> None:
    text = prompt(2, 2500)
    with bench.start(*_SPLIT, "--slot-initial-ctx", "2048", "--slot-shrink-idle-ms", "300") as server:
        first, _ = mib_at_start(server)
        before = server.complete(text, 8, id_slot=0)
        shrunk = r"slot %d: context memory 4096 -> 2048 tokens \(2\.0 MiB given back, (\S+) MiB"
        assert float(server.wait_for(shrunk % 0)[0][1]) == first
        backed = (
            server.largest_block_mib
        )  # with the buffers of the computation, which have memory from here on
        server.complete(text, 8, id_slot=1)
        server.wait_for(shrunk % 1)
        assert server.largest_block_mib < 1.05 * backed
        again = server.complete(text, 8, id_slot=0)
    assert again.data["tokens"] == before.data["tokens"]
    assert before.data["timings"]["cache_n"] == 0
    assert again.data["timings"]["cache_n"] == 2048


def test_a_sliding_window_is_dropped_whole(bench: Bench) -> None:
    text = prompt(3, 900)
    words = (
        "-np",
        "2",
        "-c",
        "8192",
        "--no-kv-unified",
        "--slot-initial-ctx",
        "256",
        "--slot-shrink-idle-ms",
        "300",
    )
    with bench.start(*words, model=bench.sliding) as server:
        before = server.complete(text, 8, id_slot=0)
        server.wait_for(r"slot 0: context memory 1024 -> 256 tokens")
        again = server.complete(text, 8, id_slot=0)
    assert again.data["tokens"] == before.data["tokens"]
    assert again.data["timings"]["cache_n"] == 0


@pytest.fixture
def limited(bench: Bench) -> Iterator[Running]:
    """Two slots that can have 1 MiB, 1024 tokens, together."""
    words = ("-np", "2", "-c", "16384", "--no-kv-unified", "--slot-initial-ctx", "256")
    with bench.start(*words, "--slot-memory-limit", "1") as server:
        yield server


def test_without_memory_the_new_request_gets_503_and_the_running_one_ends_well(limited: Running) -> None:
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(limited.complete, prompt(4, 300), 200, id_slot=0, **SLOWLY)
        limited.wait_for(r"slot 0: context memory 256 -> 512 tokens")
        refused = limited.complete(prompt(5, 600), 4, id_slot=1)
        assert not running.done()
        done = running.result()
    assert refused.status == 503
    assert refused.data["error"]["type"] == "unavailable_error"
    assert "no memory for this request now" in refused.data["error"]["message"]
    assert done.status == 200
    assert len(done.data["tokens"]) == 200
    # Now the other slot is idle and makes room, without having been told to shrink by itself.
    assert limited.complete(prompt(5, 600), 4, id_slot=1).status == 200
    limited.wait_for(r"slot 1: context memory 256 -> 768 tokens")
    assert growths(limited)[-2:] == [(0, 512, 256), (1, 256, 768)]


def test_a_request_without_an_end_stops_where_memory_ends(limited: Running) -> None:
    answer = limited.complete(prompt(6, 700), -1, id_slot=0, ignore_eos=True)
    assert answer.status == 200
    assert answer.data["stop_type"] == "limit"
    assert answer.data["truncated"] is True
    assert 700 + len(answer.data["tokens"]) == 768 + 1  # the last one is not in the cache yet
    limited.wait_for("no memory for more context")


def test_memory_that_the_system_promised_and_does_not_have_is_asked_for_again(
    bench: Bench, tmp_path: Path
) -> None:
    memory = scarce_memory(tmp_path)
    memory.begin()
    words = ("-np", "2", "-c", "8192", "--no-kv-unified", "--slot-initial-ctx", "256")
    with bench.start(*words, variables=memory.variables) as server:
        server.wait_for(r"slot 1: no memory for its first 256 tokens")
        assert server.complete(prompt(8, 100), 4, id_slot=0).status == 503
        memory.end()
        before = server.complete(prompt(8, 100), 100, id_slot=0, ignore_eos=True)
        memory.begin()
        refused = server.complete(prompt(9, 700), 4, id_slot=1)
        assert (refused.status, refused.data["error"]["type"]) == (503, "unavailable_error")
        # A slot that has its memory goes on as far as that reaches.
        again = server.complete(prompt(8, 100), -1, id_slot=0, ignore_eos=True, cache_prompt=False)
        assert again.data["truncated"] is True
        assert 100 + len(again.data["tokens"]) == 256 + 1
        memory.end()
        assert server.complete(prompt(9, 700), 4, id_slot=1).status == 200
    with bench.start(*words[:-2]) as stock:
        expected = stock.complete(prompt(8, 100), 157, id_slot=0, ignore_eos=True)
    assert before.data["tokens"] == expected.data["tokens"][:100]
    assert again.data["tokens"] == expected.data["tokens"]


def test_a_prompt_that_is_too_long_is_refused_as_such_and_takes_no_memory(bench: Bench) -> None:
    words = ("-np", "2", "-c", "4096", "--no-kv-unified", "--slot-initial-ctx", "256")
    with bench.start(*words, "--slot-memory-limit", "1") as server:
        answer = server.complete(prompt(7, 3000), 4, id_slot=0)
        assert (answer.status, answer.data["error"]["type"]) == (400, "exceed_context_size_error")
        assert growths(server) == []


def test_a_request_with_a_draft_model_gets_all_that_it_was_promised(bench: Bench) -> None:
    """What the draft looks ahead is beyond the promise only where the request would have ended."""
    draft = ("-md", str(bench.long), "--spec-type", "draft-simple", "--spec-draft-n-max", "6")
    words = ("-np", "2", "-c", "8192", "--no-kv-unified", "--slot-initial-ctx", "256")
    with bench.start(*draft, *words, "--slot-memory-limit", "2") as server:
        # 768 tokens with the prompt, and 256 in the other slot: 1024 of 2 KiB, for there are two caches.
        answer = server.complete(prompt(1, 200), 567, id_slot=0, ignore_eos=True)
        assert answer.data["timings"]["draft_n_accepted"] > 400
        assert len(answer.data["tokens"]) == 567
        assert answer.data["truncated"] is False


def test_options_that_cannot_be_are_refused_or_told(bench: Bench) -> None:
    words = ("-m", str(bench.long), "--slot-initial-ctx", "-1")
    with spawned(bench.engine, *words, home=bench.home) as server:
        assert server.wait_for_end() == 1
        assert "must not be negative" in server.log
    with bench.start("-c", "512", "--slot-shrink-idle-ms", "5") as server:
        assert "have no effect without --slot-initial-ctx" in server.log
