"""Which of several prompts is read first (patch 0009): the one with the least left; none waits for ever."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from ci.paths import Layout
from tests.e2e.conftest import EngineArtifact
from tests.e2e.models import long_model
from tests.e2e.running import Running, started
from tests.e2e.test_lazy_slots import prompt

pytestmark = pytest.mark.engine

# A round reads 64 tokens, so that a long prompt takes hundreds of them.
_ROUND = 64
_SMALL_ROUNDS = ("-b", str(_ROUND), "-ub", str(_ROUND), "--no-kv-unified", "--cache-ram", "0")
_FOUR_SLOTS = ("-np", "4", "-c", "131072", *_SMALL_ROUNDS)
_SIXTEEN_SLOTS = ("-np", "16", "-c", "131072", *_SMALL_ROUNDS)
_OVERTAKEN_MAX = 4
_LONG = 20_000
_PLACED = r"slot launch_slot_: id +%d .*processing task"


@pytest.fixture(scope="module")
def server(
    artifact: EngineArtifact, real_layout: Layout, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    home = tmp_path_factory.mktemp("order")
    model = long_model(real_layout, home / "long.gguf")
    words = ("-m", str(model), "-t", "1", "--log-verbosity", "5", *_FOUR_SLOTS)
    with started(artifact.path, *words, home=home) as running:
        yield running


def test_a_short_question_does_not_wait_for_a_long_prompt_in_a_slot_before_it(server: Running) -> None:
    """By number, the slot of the long one would come first in every round until its end."""
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(server.complete, prompt(1, _LONG), 1, id_slot=0)
        server.wait_for(_PLACED % 0)
        short = server.complete(prompt(2, 100), 4, id_slot=3)
        assert not long.done()
        assert len(short.data["tokens"]) == 4
        assert len(long.result().data["tokens"]) == 1


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """Clients that always have another prompt ready for the slots after the first, two for each."""

    server: Running
    slots: int
    length: int

    def while_reading(self, text: list[int]) -> int:
        """Have the first slot read a prompt; return how many others were answered meanwhile."""
        is_over = threading.Event()
        answered: list[int] = []

        def keep_asking(client: int) -> None:
            slot = 1 + client % self.slots
            # Of several lengths: the order is one of what is left.
            length = self.length - 7 * (client // 2)
            for number in range(5000):
                if is_over.is_set():
                    return
                other = prompt(10_000 * client + number, length)
                answered.append(self.server.complete(other, 1, id_slot=slot, cache_prompt=False).status)

        with ThreadPoolExecutor(2 * self.slots) as pool:
            asking = [pool.submit(keep_asking, client) for client in range(2 * self.slots)]
            try:
                long = self.server.complete(text, 1, id_slot=0, cache_prompt=False)
                count = len(answered)
            finally:
                is_over.set()
            for one in asking:
                one.result()
        assert long.status == 200
        assert set(answered) == {200}
        return count


@pytest.mark.parametrize(
    ("slots", "length"),
    [
        pytest.param(3, 128, id="rounds that others fill"),
        pytest.param(1, 63, id="rounds of which others leave one token"),
    ],
)
def test_a_long_prompt_goes_on_while_shorter_ones_keep_coming(
    server: Running, slots: int, length: int
) -> None:
    told = r"id +0 .*opencoti: later prompts went first in 4 rounds, this one is next"
    tokens = 5_000  # so many rounds that it is let go by in some, however seldom the clients get to ask
    before = len(re.findall(told, server.log))
    count = Crowd(server=server, slots=slots, length=length).while_reading(prompt(3, tokens))
    # As many rounds as it has itself, and four of theirs for each.
    assert count * length < 2 * tokens * (1 + _OVERTAKEN_MAX)
    server.wait_for(told, count=before + 1)


def test_of_many_that_waited_the_first_goes_first(
    artifact: EngineArtifact, real_layout: Layout, tmp_path: Path
) -> None:
    """With more slots than rounds that a prompt lets go by, all have soon waited: then age counts."""
    length, rounds = 900, 6_000 / _ROUND
    model = long_model(real_layout, tmp_path / "long.gguf")
    with started(artifact.path, "-m", str(model), "-t", "1", *_SIXTEEN_SLOTS, home=tmp_path) as running:
        count = Crowd(server=running, slots=15, length=length).while_reading(prompt(3, 6_000))
    assert count * length / _ROUND < 2 * rounds * (1 + _OVERTAKEN_MAX)
