"""Slots whose KV cache is on a device (patch 0006): the device in software, in its pinned container."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest

from ci.engines.image import ToolchainImage
from ci.paths import Layout
from ci.smoke.contained import lavapipe, open_container_place
from opencoti.console import Console
from tests.e2e.models import long_model, sliding_model, uneven_model
from tests.e2e.running import Running, contained
from tests.e2e.test_lazy_slots import SLOWLY, growths, prompt, tokens_in_turn
from tests.fakes.gpu_artifact import vulkan_artifact
from tests.fakes.scarce_device import ScarceDevice

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("docker_daemon")]

_STEP = 256
MIB = 1 << 20
_PART_READ = "cached n_tokens = 2048"
_TWO = ("-np", "2", "-c", "8192", "-t", "1")
_SPLIT = (*_TWO, "--no-kv-unified")
_SHARED = (*_TWO, "--kv-unified")


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The engine with the Vulkan library, and two models."""

    image: str
    engine: Path
    long: Path
    sliding: Path
    uneven: Path
    home: Path

    def start(
        self,
        *words: str,
        model: Path | None = None,
        variables: Sequence[str] = (),
        files: Sequence[Path] = (),
    ) -> AbstractContextManager[Running]:
        """Start a server."""
        model = model or self.long
        words = ("-m", str(model), *words)
        files = (model, *files)
        return contained(self.image, self.engine, *words, home=self.home, files=files, variables=variables)


@pytest.fixture(scope="module")
def bench(real_layout: Layout, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    root = tmp_path_factory.mktemp("device")
    with open_container_place(real_layout, Console(quiet=True), files=()):
        image = ToolchainImage(lavapipe(real_layout), real_layout).tag
    home = root / "home"
    home.mkdir()
    return Bench(
        image=image,
        engine=vulkan_artifact(real_layout, root),
        long=long_model(real_layout, root / "long.gguf"),
        sliding=sliding_model(real_layout, root / "sliding.gguf"),
        uneven=uneven_model(real_layout, root / "uneven.gguf"),
        home=home,
    )


def cells(server: Running) -> list[int]:
    """Return how many cells the cache began with, and how many it would have in full."""
    match = server.wait_for(r"the KV cache starts with (\d+) of (\d+) cells")[0]
    return [int(number) for number in match.groups()]


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("-ctk", "q8_0", "-ctv", "q4_0"), id="quantised"),
        pytest.param(("--sliding",), id="sliding window"),
    ],
)
def test_a_cache_that_moves_says_what_a_full_one_says(bench: Bench, words: tuple[str, ...]) -> None:
    model = bench.sliding if "--sliding" in words else bench.long
    options = [*_SPLIT, "-fa", "on", "--cache-ram", "0", *(word for word in words if word != "--sliding")]
    with bench.start(*options, model=model) as stock:
        expected = tokens_in_turn(stock, (60, 300), 4)
    with bench.start(*options, "--slot-initial-ctx", "1", "--log-verbosity", "4", model=model) as server:
        assert tokens_in_turn(server, (60, 300), 4) == expected
        assert cells(server) == [_STEP, 4096]
        assert growths(server, count=2) == [(0, _STEP, 512), (1, _STEP, 512)]
    assert [len(found) for found in expected] == [4] * 4


def test_a_cache_that_shrinks_brings_the_cells_at_its_end_forward(bench: Bench) -> None:
    """Two slots share the cells, with a transposed V: what slot 1 has lies behind what slot 0 gives back."""
    options = (*_SHARED, "-fa", "off", "--cache-ram", "0")
    first, second = prompt(1, 500), prompt(2, 120)

    def talk(server: Running, shrunk: str = "") -> list[list[int]]:
        begun = server.complete(second[:40], 2, id_slot=1).data["tokens"]
        server.complete(first, 1, id_slot=0)
        middle = server.complete(second, 2, id_slot=1).data["tokens"]
        if shrunk:
            server.wait_for(shrunk)
        answer = server.complete([*second, *middle, *first[:20]], 4, id_slot=1)
        assert answer.data["timings"]["cache_n"] >= len(second)
        return [begun, middle, answer.data["tokens"]]

    with bench.start(*options) as stock:
        expected = talk(stock)
    lazy = ("--slot-initial-ctx", "256", "--slot-shrink-idle-ms", "400", "--log-verbosity", "4")
    with bench.start(*options, *lazy) as server:
        assert talk(server, r"slot 0: context memory 512 -> 256 tokens") == expected
        assert cells(server) == [512, 8192]


def test_a_state_is_read_into_a_cache_that_is_smaller(bench: Bench) -> None:
    """What a session has waits in the memory of the host while its slot is small."""
    text = prompt(3, 400)
    with bench.start(*_SPLIT, "--slot-initial-ctx", "256", "--slot-shrink-idle-ms", "300") as server:
        before = server.complete(text, 8, session_id="one")
        server.wait_for(r"slot 0: context memory 512 -> 256 tokens")
        again = server.complete(text, 8, session_id="one")
    assert again.data["tokens"] == before.data["tokens"]
    assert again.data["session"]["restored_from"] == "memory"
    assert again.data["timings"]["prompt_n"] == 1


@pytest.fixture
def limited(bench: Bench) -> Iterator[Running]:
    """Two slots that can have 2 MiB, 1024 tokens each, since the parts of both are as large as the larger."""
    words = ("--slot-initial-ctx", "256", "--slot-memory-limit", "2", "--cache-ram", "0")
    with bench.start(*_SPLIT, *words) as server:
        yield server


def test_without_memory_the_new_request_gets_503_and_the_running_one_ends_well(limited: Running) -> None:
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(limited.complete, prompt(4, 280), 200, id_slot=0, **SLOWLY)
        limited.wait_for(r"slot 0: context memory 256 -> 512 tokens")
        refused = limited.complete(prompt(5, 1100), 4, id_slot=1)
        assert not running.done()
        done = running.result()
    assert refused.status == 503
    assert "no memory for this request now" in refused.data["error"]["message"]
    assert done.status == 200
    assert len(done.data["tokens"]) == 200
    assert limited.complete(prompt(5, 560), 2, id_slot=1).status == 200
    limited.wait_for(r"slot 1: context memory 256 -> 1024 tokens")
    assert growths(limited)[-1] == (1, 256, 1024)


def test_layers_that_have_grown_go_back_when_the_next_one_finds_no_memory(bench: Bench) -> None:
    """The driver refuses buffers of more than 16 MB, which only the last layer would need."""
    options = ("-np", "64", "-c", str(64 * 512), "--no-kv-unified", "-fa", "on", "-ub", "64", "-t", "1")
    options = (*options, "--cache-ram", "0")
    text, large = prompt(1, 200), prompt(2, 300)

    def talk(server: Running) -> Iterator[list[int]]:
        first = server.complete(text, 3, id_slot=3).data["tokens"]
        yield first
        if "takes_over" in server.log:
            refused = server.complete(large, 3, id_slot=4)
            assert (refused.status, refused.data["error"]["type"]) == (503, "unavailable_error")
            server.wait_for("no memory for a KV cache of 512 cells, it keeps 256")
        again = server.complete([*text, *first, 7, 8, 9], 6, id_slot=3)
        assert again.data["timings"]["cache_n"] == len(text) + 2
        yield again.data["tokens"]

    with bench.start(*options, model=bench.uneven) as stock:
        expected = list(talk(stock))
    lazy = (*options, "--slot-initial-ctx", "256", "--log-verbosity", "4")
    limit = ("GGML_VK_FORCE_MAX_BUFFER_SIZE=16000000",)
    with bench.start(*lazy, model=bench.uneven, variables=limit) as server:
        assert list(talk(server)) == expected
        assert cells(server) == [256, 512]
        assert growths(server) == []


def test_without_memory_to_compute_a_cache_is_as_large_as_before(bench: Bench) -> None:
    """With `-fa off` and a large context, scores of part of it are on the device, those of all of it are not.

    So a cache that grows needs larger compute buffers. Where there is memory for the cells and not for these,
    here for what a session had, a request that is in the middle of its prompt must go on.
    """
    device = ScarceDevice(bench.home)
    words = ("-np", "2", "-c", "131072", "--kv-unified", "-fa", "off", "-ub", "512", "-b", "512", "-t", "1")
    lazy = ("--slot-initial-ctx", "256", "--slot-shrink-idle-ms", "200", "--log-verbosity", "4")
    text, large = prompt(1, 3000), prompt(2, 4000)
    with bench.start(*words, *lazy, variables=device.variables, files=(device.library,)) as server:
        server.complete(large, 2, session_id="large")
        server.wait_for(r"context memory 4096 -> 256 tokens")
        body = {"ignore_eos": True, "cache_prompt": False}
        with ThreadPoolExecutor(1) as pool:
            begun = server.log.count(_PART_READ)
            running = pool.submit(server.complete, text, 4, **body)
            server.wait_for(re.escape(_PART_READ), count=begun + 1)
            device.leave(11 * MIB)
            refused = server.complete([*large, 5], 2, session_id="large")
            done = running.result()
        server.wait_for("no memory to compute with a KV cache of")
        assert (refused.status, refused.data["error"]["type"]) == (503, "unavailable_error")
        device.leave_all()
        assert done.data["tokens"] == server.complete(text, 4, **body).data["tokens"]
        assert server.complete([*large, 5], 2, session_id="large").status == 200


def test_an_idle_slot_gives_memory_back_on_a_device_that_is_full(bench: Bench) -> None:
    """There is no room for a smaller cache beside the larger one, so what is in it goes through the host."""
    options = (*_SPLIT, "-fa", "on", "--cache-ram", "0")
    first, second = prompt(1, 900), prompt(2, 100)
    way = 64 * 1024  # enough to the host, and not for a layer

    def talk(server: Running, then: Callable[[], object] = lambda: None) -> list[list[int]]:
        begun = server.complete(second, 3, id_slot=1).data["tokens"]
        server.complete(first, 2, id_slot=0)
        then()
        answer = server.complete([*second, *begun, 7], 4, id_slot=1)
        assert answer.data["timings"]["cache_n"] >= len(second)
        return [begun, answer.data["tokens"], server.complete(first[:250], 4, id_slot=0).data["tokens"]]

    with bench.start(*options) as stock:
        expected = talk(stock)
    device = ScarceDevice(bench.home)
    lazy = ("--slot-initial-ctx", "256", "--slot-shrink-idle-ms", "5000", "--log-verbosity", "4")
    with bench.start(*options, *lazy, variables=device.variables, files=(device.library,)) as server:

        def shrink() -> None:
            held = device.held
            device.leave(way)
            server.wait_for(r"slot 0: context memory 1024 -> 256 tokens")
            both_slots = 2 * (1024 - 256) * 1024  # the part of each has the size of the larger
            assert held - device.held >= both_slots - way

        assert talk(server, shrink) == expected
