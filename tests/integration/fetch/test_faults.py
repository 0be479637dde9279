"""Downloads from a server that misbehaves, over real sockets."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opencoti.errors import ConfigError, NetworkError, OpencotiError, StorageError, VerificationError
from opencoti.fetch.get import Fetched
from tests.fakes.http_faults import Fault, Kind, serving
from tests.integration.fetch.bench import CONTENT, SHA, Bench, shared_transports


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(folder=tmp_path / "cache")


def test_plain_download_is_verified_placed_and_asks_for_identity(bench: Bench) -> None:
    with serving(CONTENT) as server:
        fetched = bench.fetch(server)
        assert (fetched.action, fetched.size, fetched.transferred_bytes) == ("downloaded", 50_000, 50_000)
        assert fetched.path.read_bytes() == CONTENT
        assert fetched.path == bench.folder / SHA[:12] / "engine.bin"
        assert stat.S_IMODE(fetched.path.stat().st_mode) == 0o644
        assert server.seen[0].headers["accept-encoding"] == "identity"
        assert sorted(os.listdir(fetched.path.parent)) == [
            ".engine.bin.lock", ".engine.bin.stamp", "engine.bin",
        ]  # fmt: skip


def test_second_call_needs_no_network_and_a_damaged_file_is_fetched_again(bench: Bench) -> None:
    with serving(CONTENT) as server:
        path = bench.fetch(server).path
        assert bench.fetch(server, is_offline=True).action == "already-there"
        path.write_bytes(b"damaged")
        assert bench.fetch(server).action == "downloaded"
        assert path.read_bytes() == CONTENT
        assert len(server.seen) == 2


def test_offline_with_nothing_there_is_an_error_and_asks_nobody(bench: Bench) -> None:
    with serving(CONTENT) as server:
        with pytest.raises(NetworkError) as caught:
            bench.fetch(server, is_offline=True)
        assert (caught.value.error_id, server.seen) == ("offline", [])
    assert not bench.folder.exists()


def test_reset_is_followed_by_the_rest_only(bench: Bench) -> None:
    with serving(CONTENT, Fault(kind="close", at=20_000)) as server:
        fetched = bench.fetch(server)
        assert server.ranges == ["", "bytes=20000-"]
        assert server.seen[1].headers["if-range"] == '"v1"'
        assert fetched.transferred_bytes == 50_000


def test_case_b37_server_without_ranges_gives_the_whole_file_once_more(bench: Bench) -> None:
    with serving(CONTENT, Fault(kind="close", at=20_000), Fault(kind="ignore-range")) as server:
        assert bench.fetch(server).path.read_bytes() == CONTENT
        assert server.ranges == ["", "bytes=20000-"]
    told = [line for line in bench.recorded.text.splitlines() if "does not go on from byte 20000" in line]
    assert len(told) == 1


def test_case_b37_partial_of_an_earlier_run_and_no_ranges(bench: Bench) -> None:
    content = CONTENT[:2052]
    bench.sha256 = hashlib.sha256(content).hexdigest()
    with serving(content, Fault(kind="close", at=516), *[Fault(kind="close", at=0)] * 3) as server:
        assert isinstance(bench.outcome(server), NetworkError)
        assert bench.slot(server).part.read_bytes() == content[:516]
        server.script[:] = [Fault(kind="ignore-range")]
        assert bench.fetch(server).path.read_bytes() == content
        assert server.ranges[-1] == "bytes=516-"


@pytest.mark.parametrize("kind", ["wrong-range", "wrong-total", "bare-206", "other-etag"])
def test_odd_part_is_followed_by_the_whole_file(bench: Bench, kind: str) -> None:
    odd = Fault(kind=kind, at=3)  # type: ignore[arg-type]
    with serving(CONTENT, Fault(kind="close", at=20_000), odd) as server:
        assert bench.fetch(server).path.read_bytes() == CONTENT
        assert server.ranges == ["", "bytes=20000-", ""]


def test_entity_tag_that_cannot_be_sent_back_is_none(bench: Bench) -> None:
    with serving(CONTENT, Fault(kind="close", at=20_000)) as server:
        server.etag = '"é"'
        assert bench.fetch(server).path.read_bytes() == CONTENT
        assert server.ranges == ["", "bytes=20000-"]
        assert "if-range" not in server.seen[1].headers


def test_changed_validator_makes_the_server_send_the_whole_file(bench: Bench) -> None:
    with serving(CONTENT, Fault(kind="close", at=20_000), Fault(kind="changed")) as server:
        assert bench.fetch(server).path.read_bytes() == CONTENT
        assert server.ranges == ["", "bytes=20000-"]


def test_pieces_of_two_files_are_thrown_away_and_the_file_fetched_whole(bench: Bench) -> None:
    with serving(b"?" * 10 + CONTENT[10:], Fault(kind="close", at=20_000)) as server:
        server.on_block = lambda at: setattr(server, "content", CONTENT)
        assert bench.fetch(server).path.read_bytes() == CONTENT
        assert server.ranges == ["", "bytes=20000-", ""]
    assert "do not add up" in bench.recorded.text


@pytest.mark.parametrize("kind", ["close", "chunked-cut"])
def test_case_b39_early_end_is_no_end(bench: Bench, kind: str) -> None:
    with serving(CONTENT, *[Fault(kind=kind, at=10)] * 8) as server:  # type: ignore[arg-type]
        error = bench.outcome(server)
        assert isinstance(error, NetworkError)
        assert error.error_id == "download-failed"
        assert not bench.slot(server).final.exists()
        assert 10 <= bench.slot(server).part.stat().st_size <= 40
        server.script.clear()
        assert bench.fetch(server).path.read_bytes() == CONTENT


def test_case_b39_body_longer_than_announced_is_not_kept(bench: Bench) -> None:
    long = Fault(kind="long", at=10)
    with serving(CONTENT, Fault(kind="close", at=20_000), long) as server:
        assert bench.fetch(server).path.read_bytes() == CONTENT
        assert server.ranges == ["", "bytes=20000-", ""]
    assert "more than the 50000 bytes" in bench.recorded.text


def test_case_b39_compressed_answer_is_no_false_alarm(bench: Bench) -> None:
    with serving(CONTENT, Fault(kind="gzip")) as server:
        assert bench.fetch(server).path.read_bytes() == CONTENT
        assert len(server.seen) == 1


def test_case_b41_stall_and_trickle_end_and_the_next_try_goes_on(bench: Bench) -> None:
    with serving(CONTENT, Fault(kind="stall", at=20_000), Fault(kind="trickle", at=100)) as server:
        assert bench.fetch(server).path.read_bytes() == CONTENT
        assert server.ranges[:2] == ["", "bytes=20000-"]
        assert 20_100 <= int(server.ranges[2].removeprefix("bytes=").removesuffix("-")) < 20_200


def test_case_b41_endless_stall_ends_with_a_clear_error(bench: Bench) -> None:
    with serving(CONTENT, *[Fault(kind="stall", at=0)] * 9) as server:
        error = bench.outcome(server)
        assert isinstance(error, NetworkError)
        assert error.why == "nothing arrived for 0.25 s (gave up after 4 attempts)"
        assert len(server.seen) == 4


def test_retry_after_is_obeyed_and_too_long_a_pause_is_refused(bench: Bench) -> None:
    with serving(CONTENT, Fault(kind="status", retry_after="17")) as server:
        bench.fetch(server)
        assert bench.pauses[0] >= 17
    with serving(CONTENT[:-1], Fault(kind="status", retry_after="7200")) as server:
        bench.sha256 = "0" * 64
        error = bench.outcome(server)
        assert isinstance(error, NetworkError)
        assert "asks for a pause of 7200 s" in error.why
        assert len(server.seen) == 1


def test_missing_file_names_the_address_and_leaves_nothing(bench: Bench) -> None:
    with serving(CONTENT, Fault(kind="status", status=404)) as server:
        error = bench.outcome(server)
        assert isinstance(error, NetworkError)
        assert error.error_id == "not-found"
        assert server.url() in error.what
        assert not bench.slot(server).part.exists()


@pytest.mark.parametrize(
    "fault", [Fault(kind="garbage", at=9), Fault(kind="short", at=9), Fault(kind="html")]
)
def test_wrong_bytes_are_removed_and_never_get_the_name(bench: Bench, fault: Fault) -> None:
    with serving(CONTENT, fault) as server:
        error = bench.outcome(server)
        assert isinstance(error, VerificationError)
        assert (error.error_id, error.exit_code) == ("hash-mismatch", 6)
        assert SHA in error.why
        assert ("web page" in error.why) == (fault.kind == "html")
        assert os.listdir(bench.folder / SHA[:12]) == [".engine.bin.lock"]


def test_failed_update_keeps_the_old_file(bench: Bench) -> None:
    with serving(CONTENT, Fault(kind="garbage")) as server:
        slot = bench.slot(server)
        slot.folder.mkdir(parents=True)
        slot.final.write_bytes(b"old engine")
        assert isinstance(bench.outcome(server), VerificationError)
        assert slot.final.read_bytes() == b"old engine"


def test_redirects_are_followed_but_not_out_of_https(bench: Bench) -> None:
    with serving(CONTENT) as server:
        server.script[:] = [Fault(kind="redirect", location="/else/where")]
        bench.fetch(server)
        assert [request.path for request in server.seen] == ["/engine.bin", "/else/where"]
    with serving(CONTENT, Fault(kind="redirect", location="http://example.com/engine.bin")) as server:
        bench.sha256 = "0" * 64
        error = bench.outcome(server)
        assert isinstance(error, NetworkError)
        assert error.error_id == "redirect-refused"


@pytest.mark.parametrize("kind", ["hints", "slow-head"])
def test_answer_whose_head_never_ends_counts_as_none(bench: Bench, kind: Kind) -> None:
    with serving(CONTENT, Fault(kind=kind)) as server:
        fetched = bench.fetch(server)
        assert (fetched.path.read_bytes(), len(server.seen)) == (CONTENT, 2)
        assert "no answer that is complete" in bench.recorded.text


@pytest.mark.parametrize(
    ("location", "error_id"),
    [
        ("https://[", "redirect-refused"),
        ("https://a..b/", "address-unusable"),
        (f"https://{'a' * 300}.example/", "address-unusable"),
        ("https://xn--zzzzzz--.invalid/", "address-unusable"),
        ("data:text/plain,hi", "address-unusable"),
    ],
)
def test_redirect_to_no_address_is_our_error(bench: Bench, location: str, error_id: str) -> None:
    with serving(CONTENT, Fault(kind="redirect", location=location)) as server:
        error = bench.outcome(server)
        assert isinstance(error, NetworkError)
        assert (error.error_id, len(server.seen)) == (error_id, 1)


@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [
        ("HTTPS_PROXY", "ftp://someone:secret@proxy.example:1", "proxy"),
        ("ALL_PROXY", "socks5://127.0.0.1:1", "SOCKS"),
        ("NO_PROXY", "[::", "proxy"),
        ("SSL_CERT_FILE", "/nonexistent/ca.pem", "SSL_CERT_FILE"),
        ("SSL_CERT_FILE", os.devnull, "SSL_CERT_FILE"),
    ],
)
def test_variable_that_the_library_cannot_use_is_our_error(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, named: str
) -> None:
    monkeypatch.setenv(variable, value)
    with serving(CONTENT) as server:
        error = bench.outcome(server)
        assert isinstance(error, ConfigError)
        assert (error.error_id, server.seen) == ("network-variable-unusable", [])
        assert named in str(error)
        assert "secret" not in str(error)


def test_redirect_loop_ends(bench: Bench) -> None:
    with serving(CONTENT, *[Fault(kind="redirect", location="/engine.bin")] * 20) as server:
        error = bench.outcome(server)
        assert isinstance(error, NetworkError)
        assert (error.error_id, len(server.seen)) == ("redirect-loop", 11)


def test_proxy_of_the_environment_is_not_used_for_loopback(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with serving(CONTENT) as server:
        assert bench.fetch(server).action == "downloaded"


def test_case_b42_room_is_compared_with_the_remaining_bytes(bench: Bench) -> None:
    bench.free = 30_000
    with serving(CONTENT, *[Fault(kind="close", at=0)] * 9) as server:
        error = bench.outcome(server)
        assert isinstance(error, StorageError)
        assert error.why == "50000 more bytes needed, 30000 bytes free"
        bench.free = None
        server.script[:] = [Fault(kind="close", at=25_000), *[Fault(kind="close", at=0)] * 9]
        assert isinstance(bench.outcome(server), NetworkError)
        server.script.clear()
        bench.free = 30_000
        assert bench.fetch(server).resumed_from == 25_000


STATUSES = [404, 416, 429, 500, 503]
WHOLE_KINDS = [
    "good", "ignore-range", "wrong-total", "bare-206", "other-etag", "changed", "no-etag", "html", "gzip",
    "chunked",
]  # fmt: skip
FAULTS = st.one_of(
    st.builds(Fault, kind=st.sampled_from(["reset", "close", "chunked-cut"]), at=st.integers(0, 60_000)),
    st.builds(Fault, kind=st.sampled_from(["wrong-range", "short", "long"]), at=st.integers(1, 2000)),
    st.builds(Fault, kind=st.just("garbage"), at=st.integers(0, 49_999)),
    st.builds(
        Fault,
        kind=st.just("status"),
        status=st.sampled_from(STATUSES),
        retry_after=st.sampled_from(["", "1", "9999"]),
    ),
    st.builds(Fault, kind=st.sampled_from(WHOLE_KINDS)),
)


@settings(max_examples=60)
@given(st.lists(st.lists(FAULTS, max_size=5), min_size=1, max_size=3))
def test_any_faults_end_in_the_right_file_or_in_none_and_the_next_run_goes_on(
    runs: list[list[Fault]],
) -> None:
    with (
        shared_transports() as transports,
        tempfile.TemporaryDirectory() as folder,
        serving(CONTENT) as server,
    ):
        bench = Bench(folder=Path(folder), transports=transports)
        slot = bench.slot(server)
        for script in runs:
            server.script[:] = script
            check(bench.outcome(server), slot.final)
        server.script.clear()
        assert isinstance(bench.outcome(server), Fetched)
        assert slot.final.read_bytes() == CONTENT
        assert not slot.part.exists()
        assert not slot.note.exists()


def check(outcome: OpencotiError | Fetched, final: Path) -> None:
    if isinstance(outcome, Fetched):
        assert final.read_bytes() == CONTENT
    else:
        assert outcome.exit_code in (6, 7)
        assert not final.exists()
