"""Clients that give up while others get their answers (patch 0016)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from ci.paths import Layout
from tests.e2e.conftest import EngineArtifact
from tests.e2e.models import long_model
from tests.e2e.running import Running, started
from tests.e2e.test_lazy_slots import prompt

pytestmark = pytest.mark.engine

_TWO_SLOTS = ("-t", "1", "-np", "2", "-c", "131072", "--no-kv-unified", "-b", "512", "-ub", "512")
_LONG = 60_000
_BEGUN = 2_000
_ENDED = r"slot +release: id +1 .*stop processing: n_tokens = (\d+)"
# More than one client takes while the prompt of the other is read.
_ENDLESS = 60_000


@contextmanager
def posted(server: Running, tokens: list[int], **more: object) -> Iterator[HTTPConnection]:
    """Send a request and do not wait for its answer; the connection is closed at the end of the block."""
    place = urlsplit(server.url)
    with closing(HTTPConnection(str(place.hostname), place.port, timeout=240)) as connection:
        body = json.dumps({"prompt": tokens, "temperature": 0, "ignore_eos": True} | more)
        connection.request("POST", "/completion", body, headers={"Content-Type": "application/json"})
        yield connection


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_prompt_that_was_given_up_beside_a_stream_is_not_read_to_its_end(
    artifact: EngineArtifact, real_layout: Layout, tmp_path: Path, *, stream: bool
) -> None:
    """Each token of the stream wakes whoever waits: that is not to begin the second before a look anew."""
    model = long_model(real_layout, tmp_path / "long.gguf")
    with (
        started(artifact.path, "-m", str(model), *_TWO_SLOTS, home=tmp_path) as server,
        posted(server, prompt(1, 10), n_predict=_ENDLESS, stream=True, id_slot=0) as streaming,
        streaming.getresponse() as tokens,
    ):
        assert tokens.readline().startswith(b"data: ")
        with posted(server, prompt(2, _LONG), n_predict=1, stream=stream, id_slot=1):
            # So that nothing of an answer is left to be sent, by which its end would be noticed at once.
            while server.slots()[1].get("n_prompt_tokens_processed", 0) < _BEGUN:
                assert tokens.readline(), "the stream ended before the prompt was read"
        while not (ended := re.search(_ENDED, server.log)):
            assert tokens.readline(), "the stream ended first"
        assert _BEGUN <= int(ended[1]) < _LONG
        assert server.slots()[0]["is_processing"]
