"""Sessions and LoRA adapters: a state is used only with the adapters that it was computed with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ci.paths import Layout
from ci.smoke.model import SMALL_VOCABULARY, make_tiny_model
from tests.e2e.models import tiny_adapter
from tests.e2e.session_engine import UNIFIED, Answer, Sessions, running

pytestmark = pytest.mark.engine

PREFIX = 400
SEAM = 20
PROBE: dict[str, Any] = {"n_predict": 2, "n_probs": 8}
ONE_SLOT = ("--parallel", "1")


def scales(first: float, second: float = 0.0) -> list[dict[str, float]]:
    """What a request says of the two adapters."""
    return [{"id": 0, "scale": first}, {"id": 1, "scale": second}]


@pytest.fixture(scope="module", params=[ONE_SLOT, UNIFIED], ids=["one-slot", "unified"])
def sessions(
    request: pytest.FixtureRequest, real_layout: Layout, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sessions]:
    folder = tmp_path_factory.mktemp("adapters")
    paths = [tiny_adapter(folder / f"{seed}.gguf", seed=seed) for seed in (1, 2)]
    words = [word for path in paths for word in ("--lora", str(path))]
    with running(real_layout, folder, *request.param, *words) as found:
        yield found


def differs(one: dict[int, float], other: dict[int, float]) -> bool:
    """Whether two lists of the likeliest tokens come from other computations, beyond rounding."""
    both = set(one) & set(other)
    return len(both) < 4 or any(abs(one[token] - other[token]) > 0.2 for token in both)


def fresh(sessions: Sessions, prompt: list[int], lora: list[dict[str, float]]) -> dict[int, float]:
    """Return what is likely after a prompt that is computed anew."""
    return sessions.ask(prompt, cache_prompt=False, lora=lora, **PROBE).logprobs


def go_on(sessions: Sessions, name: str, **options: Any) -> Answer:
    return sessions.turn(name, sessions.noise(10), **PROBE, **options)


def test_a_state_in_memory_waits_for_its_adapters(sessions: Sessions) -> None:
    plain, changed = scales(0), scales(1)
    sessions.turn("writer", sessions.noise(PREFIX), lora=changed)
    # Another session takes the only slot and leaves it with the adapters that the next request asks for.
    sessions.turn("guest", sessions.noise(PREFIX), lora=plain)
    answer = go_on(sessions, "writer", lora=plain)
    assert answer.session["reused"] == 0
    prompt = sessions.histories["writer"][:-2]
    assert not differs(answer.logprobs, fresh(sessions, prompt, plain))
    assert differs(answer.logprobs, fresh(sessions, prompt, changed)), "the adapter changes what is said"
    # Both states of one session are kept, each for its adapters.
    history = sessions.histories["writer"]
    for lora, known in ((changed, PREFIX), (plain, len(history) - 2)):
        sessions.histories["writer"] = list(history)
        again = go_on(sessions, "writer", lora=lora)
        assert again.session["reused"] >= known - SEAM
        assert not differs(again.logprobs, fresh(sessions, sessions.histories["writer"][:-2], lora))


@pytest.mark.parametrize("lora", [scales(0.5), scales(1, 0.5), [], None], ids=str)
def test_a_session_that_changes_its_adapters_computes_its_prompt_again(
    sessions: Sessions, lora: list[dict[str, float]] | None
) -> None:
    name = f"changes-{lora is None}-{len(lora or ())}-{lora[0]['scale'] if lora else ''}"
    sessions.turn(name, sessions.noise(PREFIX), lora=scales(1))
    assert go_on(sessions, name, lora=scales(1)).computed <= 10 + SEAM
    # Without the field, or with an empty one, the adapters are those of the server: both, in full.
    asked = {} if lora is None else {"lora": lora}
    answer = go_on(sessions, name, **asked)
    assert answer.session["reused"] == 0
    used = lora or scales(1, 1)
    assert not differs(answer.logprobs, fresh(sessions, sessions.histories[name][:-2], used))
    assert go_on(sessions, name, **asked).computed <= 10 + SEAM


def test_what_is_shared_is_shared_with_the_same_adapters_only(sessions: Sessions) -> None:
    system = sessions.noise(PREFIX)
    sessions.turn("first", [*system, *sessions.noise(20)], lora=scales(1))
    same = sessions.turn("same", [*system, *sessions.noise(20)], lora=scales(1))
    other = sessions.turn("other", [*system, *sessions.noise(20)], lora=scales(0, 1))
    assert same.computed == 20
    assert other.session["reused"] == 0


def test_adapters_of_the_server_count_as_well(sessions: Sessions) -> None:
    sessions.turn("server", sessions.noise(PREFIX))
    try:
        assert sessions.http.post("/lora-adapters", json=scales(1)).status_code == 200
        answer = go_on(sessions, "server")
    finally:
        sessions.http.post("/lora-adapters", json=scales(1, 1))
    assert answer.session["reused"] == 0
    assert not differs(answer.logprobs, fresh(sessions, sessions.histories["server"][:-2], scales(1)))


def test_text_that_is_filled_in_is_computed_with_the_adapters_that_it_asks_for(
    real_layout: Layout, tmp_path: Path
) -> None:
    """No request names a session here: upstream's own choice of a slot overlooks adapters."""
    vocabulary = real_layout.sources / "llama.cpp" / SMALL_VOCABULARY  # has the marks for it
    model = make_tiny_model(vocabulary, tmp_path / "model.gguf")
    path = tiny_adapter(tmp_path / "adapter.gguf", seed=1)
    body = {"input_prefix": "a b c " * 30, "input_suffix": "d", "temperature": 0, **PROBE}
    with running(real_layout, tmp_path, *ONE_SLOT, "--lora", str(path), model=model) as sessions:

        def fill_in(**options: Any) -> Answer:
            return Answer(document=sessions.http.post("/infill", json=body | options).json())

        fill_in(lora=[{"id": 0, "scale": 0.0}])
        assert fill_in(lora=[{"id": 0, "scale": 0.0}]).document["timings"]["cache_n"] > 50
        changed = fill_in()
        assert changed.document["timings"]["cache_n"] == 0
        assert not differs(changed.logprobs, fill_in(cache_prompt=False).logprobs)


def test_an_adapter_that_begins_at_a_word_shares_what_comes_before(
    real_layout: Layout, tmp_path: Path
) -> None:
    word = [1000, 1001, 1002]
    path = tiny_adapter(tmp_path / "adapter.gguf", seed=1, begins_at=word)
    on, off = [{"id": 0, "scale": 1.0}], [{"id": 0, "scale": 0.0}]
    with running(real_layout, tmp_path, *ONE_SLOT, "--lora", str(path)) as sessions:
        sessions.turn("a", sessions.noise(PREFIX), lora=off)
        changed = sessions.turn("a", [*word, *sessions.noise(10)], lora=on, **PROBE)
        assert changed.computed <= len(word) + 10 + SEAM
        prompt = sessions.histories["a"][:-2]
        assert not differs(changed.logprobs, fresh(sessions, prompt, on))
        assert differs(changed.logprobs, fresh(sessions, prompt, off)), "the adapter changes what is said"
        # What was computed after the word is of no use without the adapter.
        plain = go_on(sessions, "a", lora=off)
        assert not differs(plain.logprobs, fresh(sessions, sessions.histories["a"][:-2], off))
