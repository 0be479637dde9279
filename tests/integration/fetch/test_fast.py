"""Fast networks: bodies come straight from the socket, and most chunks are checked with the whole file."""

from __future__ import annotations

import hashlib
import os
import random
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opencoti.errors import NetworkError, VerificationError
from opencoti.fetch.get import Fetched
from opencoti.fetch.partial import Partial
from tests.fakes.http_faults import Fault, FaultServer, serving
from tests.integration.fetch.bench import NEVER, Bench, shared_transports, table_of

CHUNK = 65_536
BIG = random.Random(11).randbytes(6 * (1 << 20) + 4321)  # 97 chunks
BIG_SHA = hashlib.sha256(BIG).hexdigest()
CUTS = ["close", "reset", "stall"]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return fast_bench(tmp_path)


def fast_bench(folder: Path, *, has_table: bool = True) -> Bench:
    table = table_of(BIG, CHUNK) if has_table else None
    return Bench(folder=folder / "cache", sha256=BIG_SHA, table=table, fast_bytes_per_s=0)


def quick(server: FaultServer) -> FaultServer:
    server.block_bytes = 1 << 18
    return server


@pytest.mark.parametrize("has_table", [True, False])
@pytest.mark.parametrize("connections", [1, 4])
def test_whole_file_arrives(tmp_path: Path, has_table: bool, connections: int) -> None:
    bench = fast_bench(tmp_path, has_table=has_table)
    bench.connections = connections
    with serving(BIG) as server:
        fetched = bench.fetch(quick(server))
    assert fetched.path.read_bytes() == BIG
    assert fetched.transferred_bytes == len(BIG)


@pytest.mark.parametrize("kind", CUTS)
def test_lost_connection_is_followed_by_the_rest_only(bench: Bench, kind: str) -> None:
    with serving(BIG, Fault(kind=kind, at=3_000_000)) as server:  # type: ignore[arg-type]
        fetched = bench.fetch(quick(server))
        assert fetched.path.read_bytes() == BIG
        again = int(server.ranges[1].removeprefix("bytes=").split("-")[0])
    # A reset may drop what was not read yet.
    assert kind == "reset" or 3_000_000 - CHUNK < again <= 3_000_000
    assert fetched.transferred_bytes <= len(BIG) + CHUNK


@pytest.mark.parametrize("kind", CUTS)
def test_lost_connection_without_a_table(tmp_path: Path, kind: str) -> None:
    bench = fast_bench(tmp_path, has_table=False)
    with serving(BIG, Fault(kind=kind, at=3_000_000)) as server:  # type: ignore[arg-type]
        assert bench.fetch(quick(server)).path.read_bytes() == BIG
        again = int(server.ranges[1].removeprefix("bytes=").removesuffix("-"))
    assert kind == "reset" or again == 3_000_000


def test_byte_that_no_sample_shows_costs_one_chunk(bench: Bench) -> None:
    with serving(BIG, Fault(kind="garbage", at=5 * CHUNK + 7)) as server:
        fetched = bench.fetch(quick(server))
        assert fetched.path.read_bytes() == BIG
        assert server.ranges[-1] == f"bytes={5 * CHUNK}-{6 * CHUNK - 1}"
    assert fetched.transferred_bytes == len(BIG) + CHUNK
    assert f"{CHUNK} bytes are wrong" in bench.recorded.text


def test_bad_sample_ends_the_favour(bench: Bench) -> None:
    """The first chunk is a sample: what comes behind it is checked at once, and nothing is read twice."""
    with serving(BIG, Fault(kind="garbage", at=7)) as server:
        fetched = bench.fetch(quick(server))
        assert fetched.path.read_bytes() == BIG
        assert f"bytes=0-{CHUNK - 1}" in server.ranges
    assert fetched.transferred_bytes == len(BIG) + CHUNK
    assert "are wrong" not in bench.recorded.text


@pytest.mark.parametrize("is_vouched", [False, True])
def test_server_with_another_file_is_found_out(bench: Bench, is_vouched: bool) -> None:
    other = random.Random(12).randbytes(len(BIG))
    bench.is_vouched = is_vouched
    with serving(other) as server:
        error = bench.outcome(quick(server))
        assert isinstance(error, VerificationError)
        assert error.error_id == "hash-mismatch"
        assert not bench.slot(server).final.exists()
        assert not bench.slot(server).part.exists()


def test_always_the_same_wrong_byte_is_refused_after_few_tries(bench: Bench) -> None:
    bench.is_vouched = True
    with serving(BIG, *[Fault(kind="garbage", at=5 * CHUNK + 7)] * 9) as server:
        error = bench.outcome(quick(server))
        assert isinstance(error, VerificationError)
        assert "are not those of the table" in error.why
        assert 3 <= len(server.seen) <= 6


def test_what_was_not_checked_yet_is_not_believed_by_the_next_run(bench: Bench) -> None:
    script = [Fault(kind="garbage", at=5 * CHUNK + 7), *[Fault(kind="close", at=0)] * 9]
    with serving(BIG, *script) as server:
        assert isinstance(bench.outcome(quick(server)), NetworkError)
        server.script.clear()
        fetched = bench.fetch(server)
        assert fetched.path.read_bytes() == BIG
    assert fetched.resumed_from % CHUNK == 0
    assert fetched.transferred_bytes == len(BIG) - fetched.resumed_from


@pytest.mark.parametrize("is_enough", [True, False])
def test_one_connection_stays_alone_while_it_is_fast_enough(bench: Bench, is_enough: bool) -> None:
    bench.connections, bench.fast_bytes_per_s = 4, NEVER
    bench.alone_bytes_per_s = 0 if is_enough else NEVER
    served_by: set[int] = set()
    has_company = threading.Event()

    def note(sent: int) -> None:
        """The server has a thread per connection; the first one takes its time until there is another."""
        served_by.add(threading.get_ident())
        if len(served_by) > 1:
            has_company.set()
        elif not is_enough:
            has_company.wait(0.01)

    with serving(BIG) as server:
        server.on_block = note
        assert bench.fetch(server).path.read_bytes() == BIG
    assert (len(served_by) == 1) == is_enough


def test_part_and_whole_file_side_by_side_are_read_again(bench: Bench) -> None:
    """One worker gets a part with a wrong byte in it, the other one the whole file."""
    bench.connections = 2
    with serving(BIG, Fault(kind="garbage", at=5 * CHUNK + 7), *[Fault(kind="ignore-range")] * 9) as server:
        assert bench.fetch(quick(server)).path.read_bytes() == BIG


PLACES = st.integers(0, len(BIG))
FAULTS = st.builds(
    Fault,
    kind=st.sampled_from(
        ["good", "close", "reset", "garbage", "ignore-range", "short", "chunked-cut", "wrong-range", "stall"]
    ),
    at=PLACES,
)


@settings(max_examples=25)
@given(st.lists(FAULTS, max_size=4), st.booleans(), st.sampled_from([1, 3]))
def test_any_faults_end_in_the_right_file_or_in_none(
    script: list[Fault], has_table: bool, connections: int
) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(BIG, *script) as server,
        shared_transports(fast_bytes_per_s=0) as transports,
    ):
        bench = replace(
            fast_bench(Path(folder), has_table=has_table), transports=transports, connections=connections
        )
        outcome = bench.outcome(quick(server))
        final = bench.slot(server).final
        assert final.exists() == isinstance(outcome, Fetched)
        server.script.clear()
        assert isinstance(bench.outcome(server), Fetched)
        assert final.read_bytes() == BIG


class ChangedBehindTheHash(Partial):
    """Gets a wrong chunk, once, when all of it went through the hash: what a writer that is late would do."""

    is_changed = False

    def absorb(self, count: int) -> None:
        super().absorb(count)
        if self.size == len(BIG) and not self.is_changed:
            self.is_changed = True
            os.pwrite(self.handle, bytes(CHUNK), 5 * CHUNK)


def test_chunks_of_a_hostile_table_are_not_believed_where_two_wrote_at_once(bench: Bench) -> None:
    bench.table = table_of(BIG[: 5 * CHUNK] + bytes(CHUNK) + BIG[6 * CHUNK :], CHUNK)
    bench.open_partial = ChangedBehindTheHash.open
    with serving(BIG, Fault(), Fault(kind="ignore-range")) as server:
        fetched = bench.fetch(quick(server))
        assert server.ranges[:2] == ["bytes=0-4194303", "bytes=4194304-6295776"]
    assert fetched.path.read_bytes() == BIG
