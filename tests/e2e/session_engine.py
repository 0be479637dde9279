"""An engine with the tiny model and a long context, and requests that name their session.

Prompts are lists of token ids: no template, so a count of tokens can be foretold.
"""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from ci.paths import Layout
from ci.smoke.model import VOCABULARY, make_tiny_model
from opencoti.launch.engine import Engine
from tests.integration.launch.real import launch_real

CONTEXT: Final = 32768
OWN_CACHES: Final = ("--parallel", "4")
UNIFIED: Final = ()
"""Without --parallel the engine takes four slots that share one KV cache."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a test looks at."""

    document: dict[str, Any]

    @property
    def tokens(self) -> list[int]:
        return list(self.document["tokens"])

    @property
    def computed(self) -> int:
        return int(self.document["timings"]["prompt_n"])

    @property
    def session(self) -> dict[str, Any]:
        return dict(self.document["session"])

    @property
    def logprobs(self) -> dict[int, float]:
        """Of the first token; empty where it is no whole character."""
        found = self.document.get("completion_probabilities") or [{"top_logprobs": []}]
        return {item["id"]: item["logprob"] for item in found[0]["top_logprobs"]}


class Conversations:
    """The sessions of one server, and their histories."""

    def __init__(self, url: str, *, seed: int = 1, api_key: str = "") -> None:
        self.histories: dict[str, list[int]] = {}
        self._dice = random.Random(seed)
        headers = {"Connection": "close"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})
        self.http = httpx.Client(base_url=url, timeout=120, trust_env=False, headers=headers)

    def noise(self, count: int) -> list[int]:
        return [self._dice.randrange(1000, 100_000) for _ in range(count)]

    def ask(self, prompt: Sequence[int], session: str | None = None, **options: Any) -> Answer:
        body = {"prompt": prompt, "n_predict": 4, "temperature": 0, "return_tokens": True, "ignore_eos": True}
        body |= options | ({} if session is None else {"session_id": session})
        answer = self.http.post("/completion", json=body)
        assert answer.status_code == 200, answer.text
        return Answer(document=answer.json())

    def turn(self, session: str, added: Sequence[int], *, is_named: bool = True, **options: Any) -> Answer:
        """Ask with the history of a session and something new at its end."""
        prompt = [*self.histories.get(session, []), *added]
        answer = self.ask(prompt, session if is_named else None, **options)
        self.histories[session] = [*prompt, *answer.tokens]
        return answer

    def round(self, turns: dict[str, Sequence[int]]) -> dict[str, Answer]:
        """Have several sessions ask at once."""
        with ThreadPoolExecutor(len(turns)) as pool:
            pending = {name: pool.submit(self.turn, name, added) for name, added in turns.items()}
            return {name: future.result() for name, future in pending.items()}

    def listed(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.http.get("/sessions").json()["sessions"]
        return found


class Sessions(Conversations):
    """Those of an engine that was launched."""

    def __init__(self, engine: Engine, *, seed: int = 1, api_key: str = "") -> None:
        super().__init__(engine.url, seed=seed, api_key=api_key)
        self.engine = engine


@contextmanager
def running(
    layout: Layout, folder: Path, *words: str, model: Path | None = None, **options: Any
) -> Iterator[Sessions]:
    """Start an engine; end it as `stop` does, if the test has not."""
    context = ["--ctx-size", str(CONTEXT)]
    context += [] if model else ["--override-kv", f"qwen2.context_length=int:{CONTEXT}"]
    given = {"model": model} if model else {}
    engine = launch_real(layout, folder, arguments=(*context, "--threads", "1", *words), **given, **options)
    with engine:
        yield Sessions(engine)


def other_model(layout: Layout, folder: Path) -> Path:
    """A model of the same shape with other weights."""
    return make_tiny_model(layout.sources / "llama.cpp" / VOCABULARY, folder / "other.gguf", seed=7)


def digest_of(name: str) -> str:
    """What stands for the name of a session wherever the engine tells it."""
    return hashlib.sha256(name.encode()).hexdigest()


def assert_alike(one: dict[int, float], other: dict[int, float]) -> None:
    """Two lists of the likeliest tokens come from the same text, whatever it was cut into to compute it."""
    both = set(one) & set(other)
    assert len(both) >= 4
    assert all(abs(one[token] - other[token]) < 0.7 for token in both)


def saved_files(folder: Path) -> list[Path]:
    """The states in a folder, by name."""
    return sorted(folder / name for name in os.listdir(folder) if name.endswith(".kv"))


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait for something that a thread of the engine does, long enough for a slow machine."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
