"""The compiler cache with real ccache, the pinned compiler, and a real Redis; needs no container engine."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ci.engines.cache_stores import REMOTE_VARIABLE
from ci.engines.compiler_cache import OFF_VARIABLE
from ci.engines.host import HostEngine
from ci.paths import Layout
from ci.stages.model import Stage, Step
from ci.toolchains.host import find_toolchain
from tests.conftest import RecordedConsole, require

FILES = 20
RULES = """rule c
  command = $tools/cc -g0 -O1 -I'$src/include' -I'$folder' -MD -MF $out_name.d -c $in -o $out_name
""" + "".join(f"build f{n}.o: c $src/f{n}.c\n  out_name = f{n}.o\n" for n in range(FILES))


@pytest.fixture(autouse=True)
def ccache() -> None:
    require(shutil.which("ccache") is not None, "ccache is not installed")


class Checkout:
    """A source tree and a build folder at a place of their own, and one tool cache for all of them."""

    def __init__(self, root: Path, cache: Path, real: Layout) -> None:
        self.layout = Layout(root=root, cache=cache)
        self.engine = HostEngine(self.layout, find=lambda name, _: find_toolchain(name, real))
        self.source, self.out = root / "build" / "source tree", root / "build" / "stages" / "out"
        (self.source / "include").mkdir(parents=True)
        (self.source / "rules").write_text(RULES)
        (self.source / "include" / "where.h").write_text("static const char *header = __FILE__;\n")
        for number in range(FILES):
            text = f'#include "where.h"\nconst char *f{number}(void) {{ return header + *__FILE__; }}\n'
            (self.source / f"f{number}.c").write_text(text)

    def build(self, recorded: RecordedConsole, *, tool_cache: Path | None = None, made: str = "") -> str:
        """Compile everything in an empty build folder; return what the console said."""
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir(parents=True)
        (self.out / "made.h").write_text(made)
        cache = tool_cache or self.layout.cache / "tools"
        cache.mkdir(parents=True, exist_ok=True)
        start = len(recorded.text)
        self.engine.run(
            stage(),
            source=self.source,
            out=self.out,
            tool_cache=cache,
            jobs=2,
            log=self.layout.logs / "log",
            console=recorded.console,
        )
        return recorded.text[start:]

    def objects(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.out.glob("*.o")}


def stage() -> Stage:
    # The build folder gets a ninja file that names the folders; `sh` alone is everywhere.
    prepare = (
        'printf "tools = %s\\nsrc = %s\\nfolder = %s\\n" "$0" "$1" "$2" > build.ninja; '
        'while IFS= read -r line; do printf "%s\\n" "$line"; done < "$1/rules" >> build.ninja'
    )
    return Stage(
        name="cached",
        toolchain="zig",
        steps=(
            Step(title="configure", argv=("/bin/sh", "-c", prepare, "{tools}", "{src}", "{out}")),
            Step(title="compile", argv=("{tools}/ninja", "-C", "{out}", "-j", "{jobs}")),
        ),
        env={},
        source_tree="1" * 40,
        inputs={},
        outputs=("*.o",),
    )


@pytest.fixture
def checkouts(tmp_path: Path, real_layout: Layout) -> tuple[Checkout, Checkout]:
    made = [Checkout(tmp_path / name, tmp_path / "cache", real_layout) for name in ("one", "a/second one")]
    return made[0], made[1]


def test_another_checkout_of_the_same_source_finds_every_object(
    checkouts: tuple[Checkout, Checkout], recorded: RecordedConsole
) -> None:
    """case B20"""
    first, second = checkouts
    assert f"compiler cache: 0 of {FILES} calls were hits (0%)" in first.build(recorded)
    assert f"compiler cache: {FILES} of {FILES} calls were hits (100%)" in second.build(recorded)
    assert first.objects() == second.objects()
    assert str(second.layout.root) not in str(second.objects())


def test_with_and_without_the_cache_the_same_bytes_come_out(
    checkouts: tuple[Checkout, Checkout], recorded: RecordedConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A header that the build makes has `__FILE__` in it too."""
    first, second = checkouts
    for checkout in checkouts:
        (checkout.source / "f0.c").write_text('#include "made.h"\nconst char *f0(void) { return made; }\n')
    made = "static const char *made = __FILE__;\n"
    first.build(recorded, made=made)
    cached = first.objects()
    assert f"{FILES - 1} of {FILES} calls were hits" in second.build(recorded, made=made), (
        "all but the one with made.h"
    )
    assert second.objects() == cached
    monkeypatch.setenv(OFF_VARIABLE, "1")
    first.build(recorded, made=made)
    assert first.objects() == cached
    assert b"include/where.h" in cached["f1.o"]


def test_a_compiler_of_another_version_finds_nothing(
    checkouts: tuple[Checkout, Checkout], recorded: RecordedConsole, real_layout: Layout
) -> None:
    """case B20: the wrappers have the same bytes and times; what is behind them counts."""
    first, _ = checkouts
    first.build(recorded)

    class Newer:
        def __init__(self, name: str) -> None:
            self._real = find_toolchain(name, real_layout)
            self.id, self.description, self.extra_path = "e" * 64, "newer", self._real.extra_path
            self.prepare, self.check, self.record = self._real.prepare, self._real.check, self._real.record

    first.engine = HostEngine(first.layout, find=lambda name, _: Newer(name))
    assert f"0 of {FILES} calls were hits" in first.build(recorded)


def test_a_second_build_without_hits_is_warned_about(
    checkouts: tuple[Checkout, Checkout], recorded: RecordedConsole
) -> None:
    """case B20"""
    first, _ = checkouts
    first.build(recorded)
    shutil.rmtree(first.layout.cache / "tools" / "ccache")
    assert "knew 0% of a build that it has seen before" in first.build(recorded)


def test_a_cache_that_cannot_be_written_is_told_and_the_build_goes_on(
    checkouts: tuple[Checkout, Checkout], recorded: RecordedConsole
) -> None:
    """case B19"""
    first, _ = checkouts
    tools = first.layout.cache / "tools"
    tools.mkdir(parents=True)
    for name in ("home", "tmp", "zig"):
        (tools / name).mkdir()
    # A folder that nobody can write to, whoever runs the tests.
    (tools / "ccache").symlink_to("/proc/self/fd")
    told = first.build(recorded)
    assert "cannot be written" in told
    assert "compiler cache:" not in told
    assert len(first.objects()) == FILES


def test_no_cache_is_used_when_it_is_switched_off_or_the_build_is_from_scratch_or_a_release(
    checkouts: tuple[Checkout, Checkout],
    recorded: RecordedConsole,
    monkeypatch: pytest.MonkeyPatch,
    real_layout: Layout,
) -> None:
    first, second = checkouts
    first.build(recorded)
    assert "compiler cache" not in first.build(recorded, tool_cache=first.layout.root / "private")
    second.engine = HostEngine(
        second.layout, find=lambda name, _: find_toolchain(name, real_layout), is_strict=True
    )
    assert "compiler cache" not in second.build(recorded)
    monkeypatch.setenv(OFF_VARIABLE, "1")
    assert "compiler cache" not in first.build(recorded)


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[int]:
    """A Redis with a password, on a loopback port."""
    require(shutil.which("redis-server") is not None, "redis-server is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    command = [
        "redis-server",
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--dir",
        str(tmp_path),
    ]
    command += ["--requirepass", "secret word"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "Ready to accept connections" in line:
                break
        yield port
        process.terminate()


class Objects(BaseHTTPRequestHandler):
    """An HTTP server that keeps what is PUT; imitates any WebDAV-like store."""

    stored: dict[str, bytes]
    protocol_version = "HTTP/1.1"

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self) -> None:
        value = self.stored.get(self.path)
        self._answer(404 if value is None else 200, value or b"")

    do_HEAD = do_GET  # noqa: N815

    def do_PUT(self) -> None:
        self.stored[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(201)

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def http_server() -> Iterator[tuple[int, dict[str, bytes]]]:
    stored: dict[str, bytes] = {}
    handler = type("Handler", (Objects,), {"stored": stored})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=partial(server.serve_forever, poll_interval=0.01))
        thread.start()
        yield server.server_address[1], stored
        server.shutdown()
        thread.join()


def other_machine(checkout: Checkout) -> None:
    """Take the local cache away: what is found now came from the shared storage."""
    shutil.rmtree(checkout.layout.cache / "tools" / "ccache")


def test_machines_share_a_redis_that_no_stage_can_reach_itself(
    checkouts: tuple[Checkout, Checkout],
    recorded: RecordedConsole,
    redis: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(REMOTE_VARIABLE, f"redis://secret%20word@127.0.0.1:{redis}/1")
    first, second = checkouts
    first.build(recorded)
    other_machine(second)
    assert f"{FILES} of {FILES} calls were hits (100%), {FILES} from the shared" in second.build(recorded)
    assert first.objects() == second.objects()
    everything = recorded.text + (second.layout.logs / "log").read_text()
    assert "secret" not in everything


def test_machines_share_an_http_server(
    checkouts: tuple[Checkout, Checkout],
    recorded: RecordedConsole,
    http_server: tuple[int, dict[str, bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port, stored = http_server
    address = f"http://127.0.0.1:{port}/objects"
    monkeypatch.setenv(REMOTE_VARIABLE, address)
    first, second = checkouts
    first.build(recorded)
    assert len(stored) == 2 * FILES
    other_machine(second)
    monkeypatch.setenv(REMOTE_VARIABLE, f"{address}|read-only")
    assert f"{FILES} from the shared storage" in second.build(recorded)
    stored.clear()
    other_machine(second)
    assert "0 of" in second.build(recorded)
    assert stored == {}


def test_a_storage_that_is_gone_stops_nothing(
    checkouts: tuple[Checkout, Checkout], recorded: RecordedConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        monkeypatch.setenv(REMOTE_VARIABLE, f"redis://127.0.0.1:{bound.getsockname()[1]}")
        told = checkouts[0].build(recorded)
    assert "this build went on without it" in told
    assert len(checkouts[0].objects()) == FILES
