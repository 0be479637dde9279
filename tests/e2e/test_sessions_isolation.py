"""What a session has is its own, also where requests are refused, wait, or share a prompt with others."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from ci.paths import Layout
from ci.smoke.model import VOCABULARY
from tests.e2e.conftest import EngineArtifact
from tests.e2e.models import long_model
from tests.e2e.running import Running, started
from tests.e2e.session_engine import Answer, assert_alike, digest_of
from tests.e2e.test_lazy_slots import prompt
from tests.fakes.tiny_mamba import make_tiny_mamba

pytestmark = pytest.mark.engine

_SPLIT = ("-c", "16384", "--no-kv-unified")
_SHARE_NOTHING = ("--slot-prompt-similarity", "0")
_NO_TOKEN = 10**6


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Where engines are started."""

    engine: Path
    long: Path
    home: Path

    @contextmanager
    def start(self, slots: int, *words: str, model: Path | None = None) -> Iterator[Running]:
        files = ("-m", str(model or self.long), "-t", "1", "-np", str(slots))
        with started(self.engine, *files, *words, home=self.home) as server:
            yield server


@pytest.fixture
def bench(artifact: EngineArtifact, real_layout: Layout, tmp_path: Path) -> Bench:
    return Bench(engine=artifact.path, long=long_model(real_layout, tmp_path / "long.gguf"), home=tmp_path)


def ask(server: Running, tokens: list[int], count: int = 2, **more: object) -> Answer:
    answer = server.complete(tokens, count, **more)
    assert answer.status == 200, answer.data
    return Answer(document=answer.data)


def listed(server: Running, name: str) -> int:
    """How many tokens a session has, as `GET /sessions` tells it."""
    digest = digest_of(name)
    return max(
        item["n_tokens"] for item in server.ask("/sessions").data["sessions"] if item["digest"] == digest
    )


def test_answers_in_other_slots_leave_nothing_behind_that_comes_later(bench: Bench) -> None:
    """`n_cmpl` copies a prompt into another slot; with one token to make, nothing follows it there."""
    text = prompt(1, 400)
    with bench.start(2, *_SPLIT) as server:
        ask(server, text, session_id="a")
        ask(server, prompt(3, 100), session_id="c")
        server.complete(prompt(2, 500), 1, n_cmpl=2, session_id="b")
        kept = ask(server, [*text, 7, 8, 9], 1, session_id="a", n_probs=8)
        fresh = ask(server, [*text, 7, 8, 9], 1, cache_prompt=False, n_probs=8)
    assert kept.session["reused"] == 400
    assert_alike(kept.logprobs, fresh.logprobs)


def test_a_slot_for_another_answer_keeps_nothing_when_that_is_refused(bench: Bench) -> None:
    text = prompt(1, 400)
    with bench.start(2, *_SPLIT, *_SHARE_NOTHING) as server:
        ask(server, text, session_id="a")
        ask(server, prompt(2, 100), session_id="b")
        assert server.complete([*prompt(3, 20), _NO_TOKEN], 2, n_cmpl=2, id_slot=1).status == 400
        assert server.ask("/sessions/a", method="DELETE").status == 200
        assert ask(server, [*text, 7], id_slot=0).document["timings"]["cache_n"] == 0


def test_what_two_sessions_have_in_common_is_kept_for_each(bench: Bench) -> None:
    text, more = prompt(1, 600), prompt(2, 600)
    with bench.start(1, *_SPLIT, *_SHARE_NOTHING) as server:
        ask(server, text, 1, session_id="a")
        ask(server, prompt(3, 50))  # takes the slot
        ask(server, [*text, *more], 1, session_id="b")
        ask(server, prompt(4, 50))
        assert ask(server, [*text, 7], 1, session_id="a").session["reused"] == 600
        ask(server, prompt(5, 50))
        assert ask(server, [*text, *more, 7], 1, session_id="b").session["reused"] == 1200
        # Of no name, it would replace theirs.
        ask(server, [*text, 7, *prompt(6, 50)], 1, id_slot=0)
        ask(server, prompt(7, 50))
        assert ask(server, [*text, 7, 8], session_id="a").session["reused"] == 601


def test_what_was_used_the_longest_time_ago_leaves_memory_first_whoever_has_it(bench: Bench) -> None:
    """Five states of 400 KiB fit."""
    with bench.start(1, *_SPLIT, "--cache-ram", "2") as server:
        for seed in range(3):
            ask(server, prompt(seed, 400), 1)
        ask(server, prompt(10, 400), 1, session_id="a")
        for seed in range(3, 6):
            ask(server, prompt(seed, 400), 1)
        assert ask(server, [*prompt(10, 400), 7], session_id="a").session["reused"] == 400
        assert ask(server, [*prompt(0, 400), 7]).document["timings"]["cache_n"] == 0


@pytest.mark.parametrize("name", ["b", None], ids=["named", "unnamed"])
def test_text_that_waits_to_be_cut_is_copied_to_nobody(
    bench: Bench, real_layout: Layout, name: str | None
) -> None:
    """A recurrent state is cut when its request begins; another of the same session comes in between."""
    model = make_tiny_mamba(
        real_layout.sources / "llama.cpp" / VOCABULARY, bench.home / "mamba.gguf", context=20_000
    )
    shared, private = prompt(1, 300), prompt(2, 300)
    named = {"session_id": name} if name else {}
    batch = ("-c", "60000", "-b", "18432", "-ub", "18432", "--no-kv-unified", "--cache-ram", "0", "-lv", "5")
    with bench.start(3, *batch, model=model) as server, ThreadPoolExecutor(3) as pool:
        ask(server, shared, session_id="a")
        ask(server, [*shared, *private], session_id="a")
        ask(server, prompt(3, 100), session_id="c")
        busy = pool.submit(ask, server, prompt(4, 18_000), session_id="d")  # one batch
        server.wait_for("cached n_tokens = 0, memory_seq_rm .0, end.", count=3)
        begun = len(server.wait_for("new task, id"))
        first = pool.submit(server.complete, [*shared, *prompt(5, 100)], 1, **named)
        server.wait_for("new task, id", count=begun + 1)
        second = pool.submit(server.complete, [*shared, *prompt(6, 60_000)], 1, **named)
        assert not busy.done()
        assert (first.result().status, second.result().status) == (200, 400)
        if name:
            assert listed(server, name) <= 402
        server.ask("/sessions/a", method="DELETE")
        probe = ask(server, [*shared, *private, 7], 1, **named)
        assert probe.document["timings"]["cache_n"] <= 300


@pytest.mark.parametrize(
    "words", [(), ("--cache-ram", "0", "--session-save-path", "states")], ids=["memory", "disk"]
)
def test_what_a_session_has_is_found_where_its_slot_has_the_like_of_another(
    bench: Bench, words: tuple[str, ...]
) -> None:
    """The other's text, which begins the same, is not for it. That is no reason to leave its own alone."""
    given = tuple(str(bench.home / word) if word == "states" else word for word in words)
    common = prompt(1, 600)
    with bench.start(1, "-c", "8192", *_SHARE_NOTHING, *given) as server:
        first = ask(server, common, session_id="a")
        ask(server, [*common, *prompt(2, 20)], session_id="b")
        again = ask(server, [*common, *first.tokens, 7], session_id="a")
        assert again.session["restored_from"] == ("disk" if words else "memory")
        assert again.computed <= 2


def test_what_is_nobodys_is_kept_where_a_session_may_not_have_it(bench: Bench) -> None:
    """Also if the session's prompt goes on with exactly that."""
    text = prompt(1, 600)
    with bench.start(1, "-c", "8192", *_SHARE_NOTHING) as server:
        ask(server, text, 1)
        assert ask(server, [*text, 7], 1, session_id="a").session["reused"] == 0
        assert ask(server, [*text, 8, 9], 1).computed <= 2
