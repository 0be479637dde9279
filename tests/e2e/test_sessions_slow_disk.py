"""Sessions whose disk lags behind: nothing is forgotten, and what was used last is what stays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from ci.paths import Layout
from tests.e2e.conftest import EngineArtifact
from tests.e2e.models import long_model, one_slot
from tests.e2e.running import WORKS, Running, started
from tests.e2e.session_engine import digest_of, saved_files, wait_for
from tests.e2e.test_lazy_slots import prompt as long_prompt
from tests.fakes.last_block import last_block
from tests.fakes.preload import Fault
from tests.fakes.slow_disk import slow_disk

pytestmark = pytest.mark.engine

NAMES: Final = [f"s{number}" for number in range(8)]
NEWEST: Final = set(NAMES[-3:])
"""States take about 270 KiB each: one is being written, four wait as they are more than 1 MiB, three fit."""


@dataclass(frozen=True, kw_only=True)
class Late:
    """A server, and a disk that can be held up."""

    server: Running
    disk: Fault
    folder: Path

    @property
    def saved(self) -> set[str]:
        """Sessions with a file."""
        found = {path.name.split("-")[0] for path in saved_files(self.folder)}
        return {name for name in NAMES if digest_of(name) in found}

    def turn(self, name: str, prompt: Sequence[int]) -> list[int]:
        """Ask for a session; return its history."""
        answer = self.server.complete(prompt, 2, session_id=name)
        assert answer.status == 200
        return [*prompt, *answer.data["tokens"]]


def prompt(name: str) -> list[int]:
    """Tokens of a session's own."""
    return [1000 + 997 * NAMES.index(name) + step for step in range(260)]


@pytest.fixture(params=[len(NAMES), 2], ids=["a-slot-each", "two-slots"])
def late(
    request: pytest.FixtureRequest, artifact: EngineArtifact, real_layout: Layout, tmp_path: Path
) -> Iterator[Late]:
    disk = slow_disk(tmp_path)
    folder = tmp_path / "states"
    model = long_model(real_layout, tmp_path / "long.gguf")
    words = ("-m", str(model), "-t", "1", "-np", str(request.param), "-c", "65536", "--no-kv-unified")
    words = (*words, "-lv", "4", "--session-save-path", str(folder), "--session-save-max-mib", "1")
    with started(artifact.path, *words, home=tmp_path, variables=disk.variables) as server:
        disk.begin()
        yield Late(server=server, disk=disk, folder=folder)


def test_states_that_found_no_room_are_saved_when_there_is_some(late: Late) -> None:
    for name in NAMES:
        late.turn(name, prompt(name))
    assert late.saved == set()
    late.disk.end()
    wait_for(lambda: late.saved == NEWEST)  # and nobody asks for anything


def test_what_was_used_last_is_what_stays_at_the_end(late: Late) -> None:
    for name in NAMES:
        late.turn(name, prompt(name))
    late.server.ask_to_end()
    late.server.wait_for("is saved now")
    late.disk.end()
    assert late.server.wait_for_end() == 0
    assert late.saved == NEWEST


def test_a_state_that_is_too_large_does_not_replace_one_that_waits(late: Late) -> None:
    late.turn("s0", prompt("s0"))  # its state is being written
    history = late.turn("s1", prompt("s1"))
    late.server.wait_for("copied the state of slot 1")
    late.turn("s1", [*history, *range(20_000, 21_000)])
    late.server.wait_for("larger than --session-save-max-mib")
    assert late.server.log.count("copied the state of slot 1") == 1  # not once more, to find that out
    late.disk.end()
    wait_for(lambda: late.saved == {"s0", "s1"})


def test_a_state_stays_until_the_one_that_follows_it_is_whole(late: Late) -> None:
    """There is no room for both, and the server may be killed meanwhile."""
    late.disk.end()
    history = late.turn("s0", [*prompt("s0"), *prompt("s1")])
    wait_for(lambda: late.saved == {"s0"})
    late.disk.begin()
    late.turn("s0", [*history, *range(20_000, 20_100)])
    wait_for(lambda: any(path.name.startswith(".tmp-") for path in late.folder.iterdir()))
    assert late.saved == {"s0"}
    late.disk.end()
    wait_for(lambda: len(list(late.folder.iterdir())) == 1 and late.saved == {"s0"})


def test_the_same_again_is_a_use(late: Late) -> None:
    late.disk.end()
    for count, name in enumerate(("s0", "s1", "s2"), 1):
        late.turn(name, prompt(name))
        wait_for(lambda count=count: len(late.saved) == count)  # type: ignore[misc]
    late.turn("s0", prompt("s0"))
    late.turn("s3", prompt("s3"))
    wait_for(lambda: late.saved == {"s0", "s2", "s3"})


def test_a_state_that_leaves_its_slot_is_read_once(
    artifact: EngineArtifact, real_layout: Layout, tmp_path: Path
) -> None:
    """For memory and for the disk. The server had no quiet moment to save it before."""
    folder = tmp_path / "states"
    words = one_slot(real_layout, tmp_path, "-lv", "5", "--session-save-path", str(folder))
    with started(artifact.path, *words, home=tmp_path) as server, ThreadPoolExecutor(2) as pool:
        first = pool.submit(server.complete, long_prompt(1, 10_000), 1, session_id="s0")
        server.wait_for(WORKS)
        second = pool.submit(server.complete, long_prompt(2, 50), 1, session_id="s1")
        server.wait_for("defer task")
        assert (first.result().status, second.result().status) == (200, 200)
        server.ask_to_end()
        assert server.wait_for_end() == 0
        assert server.log.count("copied the state of slot 0") == 2  # one each
    assert len(saved_files(folder)) == 2


def test_a_state_that_waits_for_the_disk_is_found(
    artifact: EngineArtifact, real_layout: Layout, tmp_path: Path
) -> None:
    """It is nowhere else: there is no prompt cache, and its slot went to others."""
    disk = slow_disk(tmp_path)
    model = long_model(real_layout, tmp_path / "long.gguf")
    words = ("-m", str(model), "-t", "1", "-np", "1", "-c", "8192", "--cache-ram", "0")
    words = (*words, "--session-save-path", str(tmp_path / "states"))
    with started(artifact.path, *words, home=tmp_path, variables=disk.variables) as server:
        disk.begin()
        histories = {}
        for name in ("s0", "s1", "s2"):  # one is being written, one waits, one is in the slot
            answer = server.complete(prompt(name), 2, session_id=name)
            histories[name] = [*prompt(name), *answer.data["tokens"]]
        listed = {item["digest"]: item["on_disk"] for item in server.ask("/sessions").data["sessions"]}
        assert listed[digest_of("s0")]
        assert listed[digest_of("s1")]
        for name in ("s0", "s1"):
            session = server.complete([*histories[name], 7], 1, session_id=name).data["session"]
            assert (session["restored_from"], session["reprocessed"]) == ("disk", 2)
        disk.end()


def test_there_may_be_no_memory_for_a_state_on_its_way_to_the_disk(
    artifact: EngineArtifact, real_layout: Layout, tmp_path: Path
) -> None:
    """It stays in the prompt cache, which took the last large block, and is saved at the end."""
    memory = last_block(tmp_path)
    folder = tmp_path / "states"
    model = long_model(real_layout, tmp_path / "long.gguf")
    words = ("-m", str(model), "-t", "1", "-np", "1", "-c", "32768", "--session-save-path", str(folder))
    with (
        started(artifact.path, *words, home=tmp_path, variables=memory.variables) as server,
        ThreadPoolExecutor(2) as pool,
    ):
        first = pool.submit(server.complete, long_prompt(1, 16_000), 1, session_id="s0")  # a state of 16 MiB
        wait_for(lambda: server.slots()[0]["is_processing"])
        memory.begin()
        second = pool.submit(server.complete, prompt("s1"), 1, session_id="s1")
        assert (first.result().status, second.result().status) == (200, 200)
        server.wait_for("no memory to save")
        memory.end()
        server.ask_to_end()
        assert server.wait_for_end() == 0
    assert len(saved_files(folder)) == 2


def test_the_beginning_of_what_is_saved_takes_no_room(
    artifact: EngineArtifact, real_layout: Layout, tmp_path: Path
) -> None:
    """A copy that was taken of it earlier, beside a long prompt, would push out what another session has."""
    folder = tmp_path / "states"
    model = long_model(real_layout, tmp_path / "long.gguf")
    words = ("-m", str(model), "-t", "1", "-np", "3", "-c", "30000", "--no-kv-unified")
    words = (*words, "--session-save-path", str(folder), "--session-save-max-mib", "3")
    with started(artifact.path, *words, home=tmp_path) as server:
        server.complete(long_prompt(1, 700), 2, session_id="s0")
        answer = server.complete(long_prompt(2, 1_000), 2, session_id="s1")
        wait_for(lambda: len(saved_files(folder)) == 2)
        server.complete(long_prompt(3, 6_000), 1)
        history = [*long_prompt(2, 1_000), *answer.data["tokens"]]
        assert all(item["in_memory"] for item in server.ask("/sessions").data["sessions"])
        shorter = saved_files(folder)
        server.complete([*history, *long_prompt(4, 500)], 2, session_id="s1")
        wait_for(lambda: len(saved_files(folder)) == 2 and saved_files(folder) != shorter)
        server.ask_to_end()
        assert server.wait_for_end() == 0
    assert {path.name.split("-")[0] for path in saved_files(folder)} == {digest_of("s0"), digest_of("s1")}
    assert len(saved_files(folder)) == 2
