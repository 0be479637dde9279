"""Downloads of known chunks: several ranges at once, resume, repair, seeding; servers good and bad."""

from __future__ import annotations

import hashlib
import os
import random
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opencoti.errors import NetworkError, OpencotiError, StorageError, VerificationError
from opencoti.fetch import ranged
from opencoti.fetch.answers import TransferFailure
from opencoti.fetch.get import Fetched
from opencoti.fetch.progress import Progress
from opencoti.fetch.transport import Answer
from tests.fakes.http_faults import Fault, FaultServer, serving
from tests.integration.fetch.bench import CONTENT, SHA, Bench, shared_transports, table_of
from tests.integration.fetch.test_faults import FAULTS, check

CHUNK = 4096
TABLE = table_of(CONTENT)  # 13 chunks, the last one short
OLD = random.Random(8).randbytes(len(CONTENT))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(folder=tmp_path / "cache", table=TABLE)


def put_partial(bench: Bench, server: FaultServer, content: bytes) -> None:
    slot = bench.slot(server)
    slot.folder.mkdir(parents=True)
    slot.part.write_bytes(content)


def flipped(content: bytes, *places: int) -> bytes:
    changed = bytearray(content)
    for at in places:
        changed[at] ^= 1
    return bytes(changed)


def test_whole_file_in_one_range_where_more_are_not_worth_it(bench: Bench) -> None:
    bench.connections = 4
    with serving(CONTENT) as server:
        fetched = bench.fetch(server)
        assert fetched.path.read_bytes() == CONTENT
        assert (fetched.transferred_bytes, fetched.resumed_from) == (50_000, 0)
        assert server.ranges == ["bytes=0-49999"]
        assert sorted(os.listdir(fetched.path.parent)) == [
            ".engine.bin.lock", ".engine.bin.stamp", "engine.bin",
        ]  # fmt: skip


def test_several_connections_share_the_file_without_overlap(bench: Bench) -> None:
    content = random.Random(9).randbytes(6_000_001)
    bench.sha256, bench.table = hashlib.sha256(content).hexdigest(), table_of(content, 65_536)
    bench.connections = 4
    with serving(content) as server:
        server.block_bytes = 65_536
        fetched = bench.fetch(server)
        assert fetched.path.read_bytes() == content
        assert fetched.transferred_bytes == len(content)
        spans = sorted(tuple(map(int, text.removeprefix("bytes=").split("-"))) for text in server.ranges)
    assert len(spans) >= 2
    assert spans[0][0] == 0
    assert spans[-1][1] == len(content) - 1
    assert all(after[0] == before[1] + 1 for before, after in pairwise(spans))


def test_resume_fetches_the_missing_ranges_only_and_neighbours_together(bench: Bench) -> None:
    partial = bytearray(CONTENT)
    partial[CHUNK * 2 : CHUNK * 4] = bytes(2 * CHUNK)
    partial[CHUNK * 7 + 5] ^= 1
    with serving(CONTENT) as server:
        put_partial(bench, server, bytes(partial))
        fetched = bench.fetch(server)
        assert fetched.path.read_bytes() == CONTENT
        assert server.ranges == [f"bytes={CHUNK * 2}-{CHUNK * 4 - 1}", f"bytes={CHUNK * 7}-{CHUNK * 8 - 1}"]
        assert (fetched.transferred_bytes, fetched.resumed_from) == (3 * CHUNK, 50_000 - 3 * CHUNK)


def test_partial_longer_than_the_file_or_complete_needs_no_network(bench: Bench) -> None:
    with serving(CONTENT) as server:
        put_partial(bench, server, CONTENT + b"more")
        fetched = bench.fetch(server)
        assert fetched.path.read_bytes() == CONTENT
        assert (server.seen, fetched.transferred_bytes) == ([], 0)


def test_partial_of_a_ranged_download_is_not_believed_by_a_plain_one(bench: Bench) -> None:
    with serving(CONTENT, Fault(kind="close", at=20_000), *[Fault(kind="close", at=0)] * 9) as server:
        assert isinstance(bench.outcome(server), NetworkError)
        assert not bench.slot(server).note.exists()
        server.script.clear()
        bench.table = None
        assert bench.fetch(server).path.read_bytes() == CONTENT
        assert server.ranges[-1] == ""


def test_partial_of_a_plain_download_is_used_by_a_ranged_one(bench: Bench) -> None:
    bench.table = None
    with serving(CONTENT, Fault(kind="close", at=20_000), *[Fault(kind="close", at=0)] * 9) as server:
        assert isinstance(bench.outcome(server), NetworkError)
        server.script.clear()
        bench.table = TABLE
        assert bench.fetch(server).resumed_from == 4 * CHUNK
        assert server.ranges[-1] == f"bytes={4 * CHUNK}-49999"


def test_damage_on_the_way_costs_one_chunk(bench: Bench) -> None:
    with serving(CONTENT, Fault(kind="garbage", at=3 * CHUNK + 7)) as server:
        fetched = bench.fetch(server)
        assert fetched.path.read_bytes() == CONTENT
        assert server.ranges == ["bytes=0-49999", f"bytes={3 * CHUNK}-{4 * CHUNK - 1}"]
        assert fetched.transferred_bytes == 50_000 + CHUNK


@pytest.mark.parametrize("kind", ["reset", "close", "stall"])
def test_lost_connection_keeps_the_chunks_that_arrived(bench: Bench, kind: str) -> None:
    with serving(CONTENT, Fault(kind=kind, at=20_000)) as server:  # type: ignore[arg-type]
        assert bench.fetch(server).path.read_bytes() == CONTENT
        assert server.ranges[0] == "bytes=0-49999"
        start = int(server.ranges[1].removeprefix("bytes=").split("-")[0])
        assert start <= 4 * CHUNK
        assert kind == "reset" or start == 4 * CHUNK  # a reset may drop what was not read yet


def test_case_b37_server_without_ranges_gives_the_whole_file(bench: Bench) -> None:
    with serving(CONTENT, *[Fault(kind="ignore-range")] * 3) as server:
        put_partial(bench, server, CONTENT[: 3 * CHUNK])
        fetched = bench.fetch(server)
        assert fetched.path.read_bytes() == CONTENT
        assert server.ranges == [f"bytes={3 * CHUNK}-49999"]
        assert fetched.transferred_bytes == 50_000
    assert bench.recorded.text.count("does not give parts") == 1


def test_server_without_ranges_and_several_connections(bench: Bench) -> None:
    content = random.Random(9).randbytes(6_000_001)
    bench.sha256, bench.table = hashlib.sha256(content).hexdigest(), table_of(content, 65_536)
    bench.connections = 4
    with serving(content, *[Fault(kind="ignore-range")] * 9) as server:
        server.block_bytes = 65_536
        assert bench.fetch(server).transferred_bytes == len(content)
        assert len(server.seen) == 1


@pytest.mark.parametrize("kind", ["wrong-range", "wrong-total", "bare-206"])
def test_odd_part_is_followed_by_the_whole_file(bench: Bench, kind: str) -> None:
    with serving(CONTENT, Fault(kind=kind, at=3)) as server:  # type: ignore[arg-type]
        assert bench.fetch(server).path.read_bytes() == CONTENT
        assert server.ranges == ["bytes=0-49999", ""]


def test_a_server_that_turns_away_ends_the_download_with_its_reason(bench: Bench) -> None:
    bench.connections = 4
    with serving(CONTENT, *[Fault(kind="status", status=503)] * 20) as server:
        error = bench.outcome(server)
        assert isinstance(error, NetworkError)
        assert error.why == "the server answered with status 503 (gave up after 4 attempts)"
    with serving(CONTENT, Fault(kind="status", status=404)) as server:
        error = bench.outcome(server)
        assert isinstance(error, NetworkError)
        assert error.error_id == "not-found"


def test_repair_of_one_byte_fetches_one_chunk(bench: Bench) -> None:
    with serving(CONTENT) as server:
        path = bench.fetch(server).path
        path.write_bytes(flipped(CONTENT, 12_345))
        server.seen.clear()
        fetched = bench.fetch(server)
        assert path.read_bytes() == CONTENT
        assert server.ranges == [f"bytes={3 * CHUNK}-{4 * CHUNK - 1}"]
        assert (fetched.transferred_bytes, fetched.seeded_bytes) == (CHUNK, 50_000 - CHUNK)


def test_upgrade_takes_moved_chunks_from_the_older_file(bench: Bench, tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_bytes(OLD[:CHUNK] + CONTENT[5 * CHUNK : 11 * CHUNK] + OLD[:777])
    bench.seeds = (old,)
    with serving(CONTENT) as server:
        fetched = bench.fetch(server)
        assert fetched.path.read_bytes() == CONTENT
        assert server.ranges == [f"bytes=0-{5 * CHUNK - 1}", f"bytes={11 * CHUNK}-49999"]
        assert fetched.seeded_bytes == 6 * CHUNK
    assert old.read_bytes()[:CHUNK] == OLD[:CHUNK]


def test_chunk_that_stands_in_many_places_is_copied_to_all(bench: Bench, tmp_path: Path) -> None:
    content = bytes(8 * CHUNK) + CONTENT[:CHUNK]
    bench.sha256, bench.table = hashlib.sha256(content).hexdigest(), table_of(content)
    old = tmp_path / "old"
    old.write_bytes(bytes(CHUNK))
    bench.seeds = (old,)
    with serving(content) as server:
        assert bench.fetch(server).transferred_bytes == CHUNK


def test_older_artifacts_of_the_cache_are_found_by_themselves(bench: Bench) -> None:
    older = bench.folder / ("0" * 12) / "older.bin"
    older.parent.mkdir(parents=True)
    older.write_bytes(flipped(CONTENT, 0))
    (older.parent / "other.txt").write_bytes(CONTENT)
    with serving(CONTENT) as server:
        assert bench.fetch(server).transferred_bytes == CHUNK


@pytest.mark.parametrize("is_vouched", [False, True])
def test_table_of_another_file_loses_against_the_pin_unless_it_is_signed(
    bench: Bench, is_vouched: bool
) -> None:
    bench.table, bench.is_vouched = table_of(OLD), is_vouched
    with serving(CONTENT) as server:
        outcome = bench.outcome(server)
        if is_vouched:
            assert isinstance(outcome, VerificationError)
            assert "are not those of the table" in outcome.why
            assert os.listdir(bench.folder / SHA[:12]) == [".engine.bin.lock"]
        else:
            assert isinstance(outcome, Fetched)
            assert outcome.path.read_bytes() == CONTENT
            assert outcome.transferred_bytes > 50_000
            assert "going on without the chunk table" in bench.recorded.text


@pytest.mark.parametrize("is_vouched", [False, True])
def test_file_and_table_that_agree_are_still_held_against_the_pin(bench: Bench, is_vouched: bool) -> None:
    bench.table, bench.is_vouched = table_of(OLD), is_vouched
    with serving(OLD) as server:
        error = bench.outcome(server)
        assert isinstance(error, VerificationError)
        assert error.error_id == "hash-mismatch"
        assert os.listdir(bench.folder / SHA[:12]) == [".engine.bin.lock"]


def test_redirect_is_followed_once_and_again_when_its_end_expires(bench: Bench) -> None:
    content = random.Random(9).randbytes(9_000_000)
    bench.sha256, bench.table = hashlib.sha256(content).hexdigest(), table_of(content, 65_536)
    with serving(
        content,
        Fault(kind="redirect", location="/cdn/1"),
        Fault(),
        Fault(kind="status", status=403),
        Fault(kind="redirect", location="/cdn/2"),
    ) as server:
        server.block_bytes = 65_536
        bench.fetch(server)
        paths = [request.path for request in server.seen]
    assert paths[:5] == ["/engine.bin", "/cdn/1", "/cdn/1", "/engine.bin", "/cdn/2"]
    assert set(paths[5:]) <= {"/cdn/2"}


def test_case_b42_room_is_compared_with_the_missing_bytes(bench: Bench) -> None:
    bench.free = 2 * CHUNK
    with serving(CONTENT) as server:
        put_partial(bench, server, CONTENT[:-CHUNK])
        assert bench.fetch(server).path.read_bytes() == CONTENT
        bench.slot(server).final.unlink()
        error = bench.outcome(server)
        assert isinstance(error, StorageError)
        assert error.why == f"50000 more bytes needed, {2 * CHUNK} bytes free"


def test_empty_file(bench: Bench) -> None:
    bench.sha256, bench.table = hashlib.sha256(b"").hexdigest(), table_of(b"")
    with serving(b"") as server:
        assert bench.fetch(server).size == 0


@settings(max_examples=60)
@given(
    st.lists(st.lists(FAULTS, max_size=5), min_size=1, max_size=3),
    st.sampled_from([table_of(CONTENT), table_of(OLD), table_of(CONTENT[:-5]), table_of(CONTENT + OLD)]),
)
def test_any_faults_and_any_table_end_in_the_right_file_or_in_none(
    runs: list[list[Fault]], table: object
) -> None:
    with (
        shared_transports() as transports,
        tempfile.TemporaryDirectory() as folder,
        serving(CONTENT) as server,
    ):
        bench = Bench(folder=Path(folder), transports=transports, table=table)  # type: ignore[arg-type]
        slot = bench.slot(server)
        for script in runs:
            server.script[:] = script
            outcome: OpencotiError | Fetched = bench.outcome(server)
            check(outcome, slot.final)
        server.script.clear()
        assert isinstance(bench.outcome(server), Fetched)
        assert slot.final.read_bytes() == CONTENT
        assert not slot.part.exists()
        assert not slot.note.exists()


class Silent:
    """A transport that gives no answer until it is released."""

    def __init__(self) -> None:
        self.is_asked = threading.Event()
        self.may_answer = threading.Event()

    def get(self, url: str, headers: Mapping[str, str]) -> AbstractContextManager[Answer]:
        self.is_asked.set()
        self.may_answer.wait()
        raise TransferFailure("released")


def test_interrupt_does_not_wait_for_a_silent_server(bench: Bench) -> None:
    bench.transport = silent = Silent()

    class Interrupted(Progress):
        def show(self, size: int, total: int | None, doing: str = "") -> None:
            silent.is_asked.wait()
            raise KeyboardInterrupt

    def seconds_until_the_end(server: FaultServer) -> float:
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            bench.fetch(server)
        return time.monotonic() - started

    with pytest.MonkeyPatch.context() as patch, serving(CONTENT) as server:
        patch.setattr(ranged, "Progress", Interrupted)
        took = [seconds_until_the_end(server) for _ in range(3)]
    silent.may_answer.set()
    assert min(took) < ranged._JOIN_S  # what it would be if it waited; more than once, for a busy machine
