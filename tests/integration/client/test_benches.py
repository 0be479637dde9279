"""The benches of the client measure what they say: tokens that sessions lose, one recording for two."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ci.paths import Layout
from perf.client_server import events_of
from perf.launch import prepared
from perf.turns import LIMIT_SHARE, Lost, measure
from tests.conftest import ROOT
from tests.integration.launch.real import real_options

WORDS = ("so ", "it ", "is ")


@pytest.mark.engine
def test_interleaved_sessions_lose_next_to_nothing_case_b57(real_layout: Layout) -> None:
    real_options(real_layout)
    with prepared(real_layout) as case:
        found = measure(case, 600, sessions=2, turns=2)
    assert set(found) == {"sessions", "plain requests"}
    lost = found["sessions"]
    assert lost.turns == 4
    assert 580 <= lost.prefix_tokens <= 640
    assert lost.share <= LIMIT_SHARE
    assert lost.breaks == ()


def test_share_of_what_was_lost_counts_from_the_prefix() -> None:
    lost = Lost(prefix_tokens=2000, tokens=50, turns=3, breaks=("the history was changed",))
    assert lost.share == 0.025
    assert str(lost) == "50 of 2000 tokens (2.50%) in 3 turns; prefix not stable: the history was changed"


def recording() -> bytes:
    deltas = [
        {"choices": [{"index": 0, "delta": {"content": word}, "finish_reason": None}]} for word in WORDS
    ]
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    events = [json.dumps(event).encode() for event in (*deltas, last)]
    return b"".join(b"data: " + event + b"\n\n" for event in (*events, b"[DONE]"))


@pytest.mark.parametrize("pause_us", [0, 100])
def test_both_clients_read_the_whole_recording(tmp_path: Path, pause_us: int) -> None:
    path = tmp_path / "stream"
    path.write_bytes(recording())
    assert len(events_of(path.read_bytes())) == len(WORDS) + 2
    server = [sys.executable, "-m", "perf.client_server", str(path)]
    with subprocess.Popen(
        server, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{int(process.stdout.readline())}/{pause_us}"
        for client in ("opencoti", "openai"):
            argv = [sys.executable, "-m", "perf.client_reader", client, url, "2"]
            done = json.loads(subprocess.run(argv, cwd=ROOT, capture_output=True, check=True).stdout)
            assert done["text"] == "so it is "
            assert len(done["seconds"]) == 2
        assert process.stdin is not None
        process.stdin.close()
