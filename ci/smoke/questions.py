"""What is asked of a running engine, and what counts as an answer."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ci.smoke.loopback import Loopback
from opencoti.errors import VerificationError

MAX_TOKENS: Final = 16
_CHAT: Final[dict[str, Any]] = {
    "messages": [{"role": "user", "content": "Say something about the sea."}],
    "max_tokens": MAX_TOKENS,
    "temperature": 0,
    "seed": 1,
    # The model is noise: it may want to end at once. And a cached prompt is computed in other batches,
    # which may round differently: both requests must take the same way.
    "ignore_eos": True,
    "cache_prompt": False,
}
_TEXTS: Final = ("the sea", "a mountain of iron")
_FINISH_REASONS: Final = ("stop", "length")


@dataclass(frozen=True, kw_only=True)
class ChatAnswer:
    """One completion; `tokens_per_second` is the engine's own figure, None if it gives none."""

    text: str
    prompt_tokens: int
    completion_tokens: int
    tokens_per_second: float | None
    duration_s: float


@dataclass(frozen=True, kw_only=True)
class EmbeddingAnswer:
    """Width of the vectors."""

    width: int
    duration_s: float


def check_model(client: Loopback, *, alias: str, model: Path, timeout_s: float) -> Any:
    """Check that this server serves our model under our unguessable alias; return what `/props` says.

    Raises:
        VerificationError: `smoke-not-ours`, `smoke-request-failed`.
    """
    models = client.get("/v1/models", timeout_s=timeout_s)
    names = [item.get("id") for item in _dicts(_field(models, "data"))]
    if names != [alias]:
        raise _not_ours(client.place, f"/v1/models lists {str(names)[:200]}, not {alias}")
    props = client.get("/props", timeout_s=timeout_s)
    served = _field(props, "model_path")
    if not isinstance(served, str) or Path(served).name != model.name:
        raise _not_ours(client.place, f"/props says the model is {str(served)[:200]!r}, not {model.name}")
    return props


def ask_chat(client: Loopback, *, alias: str, timeout_s: float) -> ChatAnswer:
    """Ask for one greedy completion.

    Raises:
        VerificationError: `smoke-bad-chat`, `smoke-request-failed`.
    """
    started = time.monotonic()
    document = client.post("/v1/chat/completions", {"model": alias, **_CHAT}, timeout_s=timeout_s)
    duration_s = time.monotonic() - started
    choice = next(iter(_dicts(_field(document, "choices"))), {})
    text = _field(choice.get("message"), "content")
    reason, usage = choice.get("finish_reason"), _field(document, "usage")
    prompt, completion = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    if not isinstance(text, str) or not text.strip():
        raise _bad_chat(f"its text is {str(text)[:100]!r}")
    if reason not in _FINISH_REASONS:
        raise _bad_chat(f"its finish_reason is {str(reason)[:60]!r}")
    if prompt < 1 or not 1 <= completion <= MAX_TOKENS:
        raise _bad_chat(f"it counts {prompt} prompt and {completion} completion tokens of {MAX_TOKENS}")
    return ChatAnswer(
        text=text,
        prompt_tokens=prompt,
        completion_tokens=completion,
        tokens_per_second=_speed(document),
        duration_s=duration_s,
    )


def require_same(first: ChatAnswer, second: ChatAnswer) -> None:
    """Raise `VerificationError` (`smoke-not-deterministic`) when two greedy answers differ."""
    if first.text != second.text:
        raise VerificationError(
            "smoke-not-deterministic",
            "the same greedy request gave two different texts",
            why=f"{first.text[:80]!r} and {second.text[:80]!r}",
        )


def ask_embedding(client: Loopback, *, alias: str, width: int, timeout_s: float) -> EmbeddingAnswer:
    """Ask for the vectors of two texts.

    Raises:
        VerificationError: `smoke-bad-embedding`, `smoke-request-failed`.
    """
    started = time.monotonic()
    document = client.post("/v1/embeddings", {"model": alias, "input": list(_TEXTS)}, timeout_s=timeout_s)
    duration_s = time.monotonic() - started
    vectors = [item.get("embedding") for item in _dicts(_field(document, "data"))]
    if len(vectors) != len(_TEXTS) or not all(_is_vector(vector, width) for vector in vectors):
        raise _bad_embedding(f"it is no list of {len(_TEXTS)} vectors of {width} finite numbers")
    if vectors[0] == vectors[1]:
        raise _bad_embedding("two different texts have the same vector")
    return EmbeddingAnswer(width=width, duration_s=duration_s)


def _is_vector(value: Any, width: int) -> bool:
    if not isinstance(value, list) or len(value) != width:
        return False
    numbers = [item for item in value if isinstance(item, (int, float)) and math.isfinite(item)]
    return len(numbers) == width and any(numbers)


def _field(document: Any, name: str) -> Any:
    return document.get(name) if isinstance(document, dict) else None


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _count(usage: Any, name: str) -> int:
    value = _field(usage, name)
    return value if isinstance(value, int) else 0


def _speed(document: Any) -> float | None:
    value = _field(_field(document, "timings"), "predicted_per_second")
    return round(float(value), 1) if isinstance(value, (int, float)) and value >= 0 else None


def _not_ours(place: str, why: str) -> VerificationError:
    return VerificationError(
        "smoke-not-ours", f"the server {place} does not serve the model of this run", why=why
    )


def _bad_chat(why: str) -> VerificationError:
    return VerificationError("smoke-bad-chat", "the chat completion is not usable", why=why)


def _bad_embedding(why: str) -> VerificationError:
    return VerificationError("smoke-bad-embedding", "the embedding is not usable", why=why)
