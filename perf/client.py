"""What a client costs per streamed token: ours beside the official `openai` package, on one recorded answer.

The answer is recorded from the engine with the tiny model and replayed by a server on loopback: in one go,
and with each event alone, as tokens arrive. Processor time is what counts; each client has a process of its
own, and they take turns. The package has to be installed (it is in the environment of the tests).
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ci.context import Context
from opencoti.client import Client
from opencoti.errors import BuildError, MissingError
from opencoti.launch import launch
from perf.client_reader import CLIENTS
from perf.client_server import events_of
from perf.launch import prepared
from perf.measure import Report, Sample

_TOKENS = 1000
_STREAMS = 5
_PAUSE_US = 300
_WAYS = {"in one go": 0, "one by one": _PAUSE_US}
_REQUEST = {
    "messages": [{"role": "user", "content": "hello"}],
    "stream": True,
    "stream_options": {"include_usage": True},
    "max_tokens": _TOKENS,
    "temperature": 0,
    "ignore_eos": True,
}


def run(context: Context, *, runs: int) -> Report:
    """Measure both clients in turns, `runs` times."""
    if importlib.util.find_spec("openai") is None:
        raise MissingError(
            "bench-needs-openai",
            "this Python has no package openai to compare with",
            hint="run it as `.nox/dev/bin/python -m perf client`",
        )
    with tempfile.TemporaryDirectory(prefix="opencoti-bench-") as scratch:
        recording = Path(scratch) / "stream"
        recording.write_bytes(record(context))
        count = len(events_of(recording.read_bytes()))
        with _replaying(recording, context) as base:
            samples = [
                sample
                for way, pause_us in _WAYS.items()
                for sample in _in_turns(way, f"{base}/{pause_us}", context, runs=runs, count=count)
            ]
    facts: dict[str, object] = {"events of the recording": count, "unit": "processor time of 1000 events"}
    for way in _WAYS:
        ours, theirs = (next(s for s in samples if s.name == f"{name}, {way}").median for name in CLIENTS)
        facts[f"{way}"] = (
            f"{ours * 1000:.1f} µs per event, openai {theirs * 1000:.1f} µs: {ours / theirs:.2f} of it"
        )
    return Report(title="client, per streamed token", samples=samples, facts=facts)


def record(context: Context) -> bytes:
    """Return the bytes of one streamed answer of the engine."""
    with (
        prepared(context.layout) as case,
        launch(case.options, environ=case.environ) as engine,
        Client(engine.url) as client,
    ):
        return client.request("POST", "/v1/chat/completions", json.dumps(_REQUEST).encode())


@contextmanager
def _replaying(recording: Path, context: Context) -> Iterator[str]:
    argv = [sys.executable, "-m", "perf.client_server", str(recording)]
    with subprocess.Popen(
        argv, cwd=context.layout.root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.stdin.close()


def _in_turns(way: str, base: str, context: Context, *, runs: int, count: int) -> list[Sample]:
    seconds: dict[str, list[float]] = {name: [] for name in CLIENTS}
    texts = set()
    for _ in range(runs):
        for name, found in seconds.items():
            argv = [sys.executable, "-m", "perf.client_reader", name, base, str(_STREAMS)]
            done = subprocess.run(argv, cwd=context.layout.root, capture_output=True, text=True, check=False)
            if done.returncode:
                raise BuildError("bench-command-failed", f"the client {name} failed", why=done.stderr[-300:])
            result = json.loads(done.stdout)
            found.append(statistics.median(result["seconds"]) / count * 1000)
            texts.add(result["text"])
    if len(texts) != 1:
        raise BuildError("bench-clients-differ", "the clients read different texts from one recording")
    return [Sample(name=f"{name}, {way}", seconds=tuple(found)) for name, found in seconds.items()]
