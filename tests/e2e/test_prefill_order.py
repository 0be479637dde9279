"""Which of several prompts is read first (patch 0009): the one with the least left; none waits for ever."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from ci.paths import Layout
from tests.e2e.conftest import EngineArtifact
from tests.e2e.models import long_model
from tests.e2e.running import Running, started
from tests.e2e.test_lazy_slots import prompt

pytestmark = pytest.mark.engine

# A round reads 64 tokens, so that a long prompt takes hundreds of them.
_SMALL_ROUNDS = ("-b", "64", "-ub", "64", "-np", "4", "-c", "131072", "--no-kv-unified", "--cache-ram", "0")
_LONG = 20_000
_PLACED = r"slot launch_slot_: id +%d .*processing task"


@pytest.fixture(scope="module")
def server(
    artifact: EngineArtifact, real_layout: Layout, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    home = tmp_path_factory.mktemp("order")
    model = long_model(real_layout, home / "long.gguf")
    words = ("-m", str(model), "-t", "1", "--log-verbosity", "5", *_SMALL_ROUNDS)
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


def test_a_long_prompt_goes_on_while_shorter_ones_keep_coming(server: Running) -> None:
    """Six clients always have a prompt of two rounds ready for the other three slots."""
    is_over = threading.Event()
    answered = []

    def keep_asking(client: int) -> None:
        for number in range(2000):
            if is_over.is_set():
                return
            text = prompt(10_000 * client + number, 128)
            answered.append(server.complete(text, 1, id_slot=1 + client % 3, cache_prompt=False).status)

    with ThreadPoolExecutor(6) as pool:
        asking = [pool.submit(keep_asking, client) for client in range(6)]
        try:
            long = server.complete(prompt(3, 2_000), 1, id_slot=0, cache_prompt=False)
        finally:
            is_over.set()
        for one in asking:
            one.result()
    assert long.status == 200
    assert set(answered) == {200}
    # As many rounds as it has itself, and four of theirs for each.
    assert len(answered) < 2 * (2_000 / 64) * 5
    server.wait_for(r"id +0 .*opencoti: later prompts went first in 4 rounds, this one is next")
