"""Settings of the compiler cache, reading its statistics, and the relay to a shared storage."""

from __future__ import annotations

import io
import socket
from dataclasses import replace

import pytest

from ci.engines.cache_relay import SOCKET_NAME, cache_relay, read_command
from ci.engines.cache_stores import REMOTE_VARIABLE, RemoteStorage
from ci.engines.compiler_cache import (
    SIZE_VARIABLE,
    CacheUse,
    CompilerCache,
    read_size,
    read_use,
    report_use,
    size_gib,
)
from ci.engines.steps import stage_environment
from ci.stages.model import Expansion, Stage
from opencoti.errors import ConfigError
from tests.conftest import RecordedConsole

CACHE = CompilerCache(program="/t/ccache", compiler_id="c" * 64, out="/out")
STAGE = Stage(name="cpu", toolchain="zig", steps=(), env={}, source_tree="1" * 40, inputs={}, outputs=("a",))
# CCACHE_STATSLOG of ccache 4.7.5: a miss, then a hit that came from a Redis.
LOG_4_7 = """# ../../src/a.c
cache_miss
direct_cache_miss
local_storage_miss
local_storage_read_miss
local_storage_write
preprocessed_cache_miss
remote_storage_miss
remote_storage_write
# ../../src/a.c
direct_cache_hit
local_storage_miss
local_storage_write
remote_storage_hit
remote_storage_read_hit
"""
# The words that ccache 4.4 to 4.6 used for the two kinds of storage.
LOG_4_5 = """# a.c
cache_miss
direct_cache_miss
preprocessed_cache_miss
primary_storage_miss
secondary_storage_miss
# b.c
direct_cache_miss
preprocessed_cache_hit
primary_storage_miss
secondary_storage_hit
# c.c
called_for_link
# d.c
cache_miss
secondary_storage_error
"""
PRINTED_4_7 = ["autoconf_test\t0", "cache_miss\t3", "cache_size_kibibyte\t2048", "files_in_cache\t2"]


def environment(cache: CompilerCache | None) -> dict[str, str]:
    expansion = Expansion(src="/src", out="/out", tools="/t", jobs=2)
    return stage_environment(STAGE, expansion, tool_cache="/cache", path="/t", cache=cache)


def test_a_stage_gets_a_launcher_and_a_cache_that_knows_the_compiler_by_its_content() -> None:
    """case B20"""
    added = {name: value for name, value in environment(CACHE).items() if name not in environment(None)}
    assert added.pop("CCACHE_COMPILERCHECK").startswith("string:" + "c" * 64 + "/")
    assert added == {
        "OPENCOTI_LAUNCHER": "/t/ccache",
        "CCACHE_MAXSIZE": "10G",
        "CCACHE_NOHASHDIR": "1",
        "CCACHE_STATSLOG": "/out/.opencoti-ccache.log",
    }
    assert environment(CACHE)["CCACHE_DIR"] == "/cache/ccache"


def test_paths_are_relative_where_checkouts_differ() -> None:
    """case B20"""
    moving = replace(CACHE, source="/home/me/src", source_from_out="../src", prefix="/cache/prefix")
    assert environment(moving)["CCACHE_BASEDIR"] == "/home/me/src"
    assert environment(moving)["CCACHE_PREFIX"] == "/cache/prefix"
    assert environment(moving)["OPENCOTI_SRC_REL"] == "../src"


@pytest.mark.parametrize(
    ("text", "use"),
    [
        (LOG_4_7, CacheUse(hits=1, misses=1, remote_hits=1, remote_errors=0)),
        (LOG_4_5, CacheUse(hits=1, misses=2, remote_hits=1, remote_errors=1)),
        ("", CacheUse(hits=0, misses=0, remote_hits=0, remote_errors=0)),
    ],
    ids=["4.7", "4.5", "nothing"],
)
def test_statistics_of_two_versions_are_read(text: str, use: CacheUse) -> None:
    """case B20"""
    assert read_use(text) == use


def test_the_size_is_read() -> None:
    assert read_size(PRINTED_4_7) == 2 << 20
    assert read_size(["cache_size\t1"]) == 0


@pytest.mark.parametrize(
    ("use", "is_known", "warning"),
    [
        (CacheUse(hits=1, misses=30, remote_hits=0, remote_errors=0), True, "knew 3% of a build"),
        (CacheUse(hits=1, misses=30, remote_hits=0, remote_errors=0), False, ""),
        (CacheUse(hits=0, misses=5, remote_hits=0, remote_errors=0), True, ""),
        (
            CacheUse(hits=9, misses=1, remote_hits=0, remote_errors=0, size_bytes=int(9.8 * (1 << 30))),
            False,
            "cache is full",
        ),
        (CacheUse(hits=9, misses=1, remote_hits=0, remote_errors=4), False, "failed 4 times"),
    ],
)
def test_a_cache_that_is_of_no_use_is_warned_about(
    use: CacheUse, is_known: bool, warning: str, recorded: RecordedConsole
) -> None:
    """case B20"""
    lines: list[str] = []
    report_use(use, limit_gib=10, console=recorded.console, log=lines.append, is_known=is_known)
    assert lines[0].startswith(f"compiler cache: {use.hits} of {use.compiles} calls were hits")
    assert ("WARN" in recorded.text) is bool(warning)
    assert warning in recorded.text


@pytest.mark.parametrize("text", ["3", "0", "10G", "-5", "ten"])
def test_a_size_that_one_build_fills_is_refused(text: str) -> None:
    """case B20"""
    with pytest.raises(ConfigError) as caught:
        size_gib({SIZE_VARIABLE: text})
    assert caught.value.error_id == "ccache-size"


def test_the_size_can_be_set() -> None:
    assert (size_gib({}), size_gib({SIZE_VARIABLE: "50"})) == (10, 50)


def storage(text: str) -> RemoteStorage | None:
    return RemoteStorage.from_environment({REMOTE_VARIABLE: text})


def test_addresses_of_a_shared_cache_are_read() -> None:
    assert storage("") is None
    redis = storage("redis://me:pass%2Fword@cache.example:7000/3|read-only")
    assert redis == RemoteStorage(
        scheme="redis",
        host="cache.example",
        port=7000,
        path="/3",
        user="me",
        password="pass/word",
        is_read_only=True,
    )
    assert "pass" not in f"{redis} {redis!r}"
    assert storage("redis://word@h") == RemoteStorage(scheme="redis", host="h", port=6379, password="word")
    assert str(storage("https://cache.example/objects/")) == "https://cache.example:443/objects"


@pytest.mark.parametrize(
    "text", ["cache.example", "ftp://h", "redis://", "redis://h:port", "redis://secret@h/name"]
)
def test_an_address_that_is_none_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        storage(text)
    assert caught.value.error_id == "ccache-remote"
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [b"GET x\r\n", b"*1\r\n$5\r\nab\r\n", b"*0\r\n", b"*99\r\n", b"*1\r\n$-1\r\n", b"*1\r\n$99999999999\r\n"],
)
def test_what_is_no_command_ends_the_conversation(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        read_command(io.BytesIO(data))


def test_a_stage_can_ask_for_nothing_but_objects_of_the_cache() -> None:
    nowhere = RemoteStorage(scheme="redis", host="127.0.0.1", port=1)
    commands = {
        b"*1\r\n$8\r\nFLUSHALL\r\n": b"-ERR not a key",
        b"*2\r\n$3\r\nGET\r\n$8\r\npassword\r\n": b"-ERR not a key",
        b"*2\r\n$4\r\nKEYS\r\n$16\r\nccache:012345678\r\n": b"-ERR not a command",
        b"*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n": b"+OK",
    }
    with cache_relay(nowhere) as (relay, folder):
        assert folder.stat().st_mode & 0o077 == 0
        for command, answer in commands.items():
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(folder / SOCKET_NAME))
                connection.sendall(command)
                connection.shutdown(socket.SHUT_WR)
                said = b"".join(iter(lambda c=connection: c.recv(4096), b""))  # type: ignore[misc]
                assert said.startswith(answer)
        assert relay.failures == 0
    assert not folder.exists()


def test_a_storage_that_fails_is_soon_not_asked_any_more() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        gone = RemoteStorage(scheme="redis", host="127.0.0.1", port=bound.getsockname()[1])
        command = b"*2\r\n$3\r\nGET\r\n$16\r\nccache:012345678\r\n"
        with cache_relay(gone) as (relay, folder), socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(folder / SOCKET_NAME))
            connection.sendall(command * 6)
            connection.shutdown(socket.SHUT_WR)
            said = b"".join(iter(lambda: connection.recv(4096), b""))
    assert said.count(b"-ERR") == 6
    assert relay.failures == 3
    assert relay.is_given_up
