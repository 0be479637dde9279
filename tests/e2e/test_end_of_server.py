"""A server that is asked to end (SIGTERM) at a bad moment ends (patches 0012 and 0013)."""

from __future__ import annotations

import http.client
import json
import urllib.parse
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from ci.paths import Layout
from tests.e2e.conftest import EngineArtifact
from tests.e2e.models import long_model, one_slot
from tests.e2e.running import WORKS, Running, spawned, started
from tests.e2e.session_engine import wait_for
from tests.e2e.test_lazy_slots import prompt
from tests.fakes.preload import make_library
from tests.fakes.slow_disk import slow_disk

pytestmark = pytest.mark.engine

_TOLD = "the server is ending"
_GO_ON = b"HTTP/1.1 100 Continue\r\n\r\n"
_ENDS_EARLY: Final = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>

int sigaction(int number, const struct sigaction * wanted, struct sigaction * before) {
    int (*real)(int, const struct sigaction *, struct sigaction *) = dlsym(RTLD_NEXT, "sigaction");
    int result = real(number, wanted, before);
    if (number == SIGTERM && wanted != NULL && wanted->sa_handler != SIG_DFL) {
        raise(SIGTERM);
        usleep(200000);
    }
    return result;
}
"""


@contextmanager
def _begun(server: Running, body: bytes, path: str = "/completion") -> Iterator[http.client.HTTPConnection]:
    """Have the server wait for the body of a request: it said that it has read the head."""
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(server.url).netloc, timeout=60)
    try:
        connection.putrequest("POST", path)
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", str(len(body)))
        connection.putheader("Expect", "100-continue")
        connection.endheaders()
        said = b""
        while len(said) < len(_GO_ON) and (more := connection.sock.recv(len(_GO_ON) - len(said))):
            said += more
        assert said == _GO_ON
        yield connection
    finally:
        connection.close()


def _last_line(answer: http.client.HTTPResponse) -> str | None:
    """Read to the end; None: it was cut in the middle of a chunk, which the client can tell."""
    try:
        return answer.read().decode().strip().splitlines()[-1]
    except http.client.IncompleteRead:
        return None


def test_who_waits_is_told(artifact: EngineArtifact, real_layout: Layout, tmp_path: Path) -> None:
    """One request is computed, and one waits for its slot."""
    words = one_slot(real_layout, tmp_path, "-lv", "5")
    with started(artifact.path, *words, home=tmp_path) as server, ThreadPoolExecutor(2) as pool:
        first = pool.submit(server.complete, prompt(1, 60_000), 1)
        server.wait_for(WORKS)
        second = pool.submit(server.complete, prompt(2, 50), 1)
        server.wait_for("defer task")
        server.ask_to_end()
        for answer in (first.result(), second.result()):
            assert answer.status == 503
            assert _TOLD in answer.data["error"]["message"]
        assert server.wait_for_end() == 0


def test_a_stream_does_not_look_whole(artifact: EngineArtifact, real_layout: Layout, tmp_path: Path) -> None:
    """Its end says why, unless the server's HTTP library has cut it already."""
    body = json.dumps({"prompt": [1, 2, 3], "n_predict": 60_000, "ignore_eos": True, "stream": True}).encode()
    with started(artifact.path, *one_slot(real_layout, tmp_path), home=tmp_path) as server:
        with _begun(server, body) as connection:
            connection.send(body)
            with connection.getresponse() as answer:
                assert answer.readline().startswith(b"data: ")
                server.ask_to_end()
                last = _last_line(answer)
        assert server.wait_for_end() == 0
    assert last is None or _TOLD in last


@pytest.mark.parametrize("sleeps", [False, True], ids=["awake", "asleep"])
@pytest.mark.parametrize(
    ("path", "request_body"),
    [
        ("/completion", {"prompt": [1, 2, 3], "n_predict": 1}),
        ("/completion", {"prompt": "a text", "n_predict": 1}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a text"}]}),
        ("/tokenize", {"content": "a text"}),
    ],
    ids=["tokens", "text", "chat", "tokenize"],
)
def test_a_request_that_comes_too_late_is_told(
    artifact: EngineArtifact,
    real_layout: Layout,
    tmp_path: Path,
    sleeps: bool,
    path: str,
    request_body: dict[str, object],
) -> None:
    """Its body arrives when the loop has ended. Asleep, the server has no model that could read its text."""
    body = json.dumps(request_body).encode()
    words = one_slot(real_layout, tmp_path, *(("--sleep-idle-seconds", "1") if sleeps else ()))
    with started(artifact.path, *words, home=tmp_path) as server:
        if sleeps:
            server.wait_for("entering sleeping state")
        with _begun(server, body, path) as connection:
            server.ask_to_end()
            server.wait_for("cleaning up before exit")
            connection.send(body)
            with connection.getresponse() as answer:
                text = answer.read().decode()
        assert server.wait_for_end() == 0
    if path == "/tokenize" and not sleeps:
        assert answer.status == 200  # that takes no loop
    else:
        assert (answer.status, _TOLD in text) == (503, True)


def test_a_router_ends_with_its_children(
    artifact: EngineArtifact, real_layout: Layout, tmp_path: Path
) -> None:
    """They answer those who wait, and it passes that on. It starts none for those who come meanwhile."""
    models = tmp_path / "models"
    models.mkdir()
    long_model(real_layout, models / "long.gguf")
    words = ("--models-dir", str(models), "-t", "1", "-np", "1", "-c", "65536")
    body = json.dumps({"prompt": [1, 2, 3], "n_predict": 1, "model": "long"}).encode()
    with started(artifact.path, *words, home=tmp_path) as router, ThreadPoolExecutor(1) as pool:
        waits = pool.submit(router.complete, prompt(1, 60_000), 1, model="long")
        wait_for(lambda: router.slots("?model=long")[0]["is_processing"])
        with _begun(router, body) as late:
            router.ask_to_end()
            router.wait_for("stopping model instance")
            late.send(body)
            with late.getresponse() as refusal:
                text = refusal.read().decode()
        answer = waits.result()
        assert (answer.status, _TOLD in answer.data["error"]["message"]) == (503, True)
        assert (refusal.status, _TOLD in text) == (503, True)
        assert router.wait_for_end() == 0


def test_an_end_before_the_loop_begins(artifact: EngineArtifact, real_layout: Layout, tmp_path: Path) -> None:
    """The signal comes as soon as there is somebody to handle it, and what begins the loop comes late."""
    early = make_library(_ENDS_EARLY, tmp_path / "ends-early.so")
    words = one_slot(real_layout, tmp_path)
    with spawned(artifact.path, *words, home=tmp_path, variables={"LD_PRELOAD": str(early)}) as server:
        assert server.wait_for_end() == 0
        assert "model loaded" in server.log


def test_an_end_is_not_lost_while_the_server_goes_to_sleep(
    artifact: EngineArtifact, real_layout: Layout, tmp_path: Path
) -> None:
    """The loop holds a lock then, for as long as a slow disk takes."""
    disk = slow_disk(tmp_path)
    model = long_model(real_layout, tmp_path / "long.gguf")
    words = ("-m", str(model), "-t", "1", "-np", "1", "-c", "8192", "--sleep-idle-seconds", "1")
    words = (*words, "--session-save-path", str(tmp_path / "states"))
    with started(artifact.path, *words, home=tmp_path, variables=disk.variables) as server:
        disk.begin()
        server.complete(prompt(1, 50), 2, session_id="a")
        server.wait_for("is saved now")
        server.ask_to_end()
        disk.end()
        assert server.wait_for_end() == 0
