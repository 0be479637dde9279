"""What can go wrong between client and engine, as errors. Decided by type and status, never by a text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from opencoti.errors import BusyError, NetworkError, OpencotiError, UsageError, VerificationError

_EXCERPT: int = 300
_LOADING = 503


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Turn what httpx raises into errors of ours.

    Raises:
        NetworkError: `engine-unreachable`, `answer-too-slow`, `answer-broken-off`.
    """
    import httpx

    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as exc:
        raise NetworkError(
            "engine-unreachable",
            "no engine answers",
            why=f"{exc} ({path})",
            hint="`python -m opencoti.launch status` lists the engines of this user",
        ) from exc
    except httpx.TimeoutException as exc:
        raise NetworkError(
            "answer-too-slow", f"the engine sent nothing for too long ({path})", hint="raise Limits.idle_s"
        ) from exc
    except httpx.HTTPError as exc:
        raise NetworkError(
            "answer-broken-off", f"the engine broke off ({path})", why=f"{type(exc).__name__}: {exc}"
        ) from exc


def too_long(path: str, limit_bytes: int) -> NetworkError:
    """An answer goes on past its limit of bytes."""
    return NetworkError(
        "answer-too-long", f"the engine's answer to {path} was cut off", why=f"more than {limit_bytes} bytes"
    )


def too_slow(path: str, limit_s: float) -> NetworkError:
    """An answer goes on past its limit of seconds."""
    return NetworkError(
        "answer-too-slow", f"the engine's answer to {path} does not end", why=f"after {limit_s:.0f} s"
    )


def malformed(path: str, why: str) -> VerificationError:
    """An answer is not what the interface says."""
    return VerificationError(
        "answer-malformed",
        f"the engine's answer to {path} is not usable",
        why=why[:_EXCERPT],
        hint="is it an engine of opencoti, or something else at this address?",
    )


def truncated(path: str) -> NetworkError:
    """A stream ended without saying that it is complete."""
    return NetworkError(
        "stream-truncated",
        f"the engine's stream of {path} ended in the middle",
        why="it ended without its last event",
        hint="the engine may have stopped: `python -m opencoti.launch status`",
    )


def status_error(status: int, body: bytes, path: str) -> OpencotiError:
    """Explain an answer with an error status; `body` may be cut."""
    why = f"status {status}: {error_text(body)}"
    if status == _LOADING:
        return BusyError("engine-loading", "the engine is not ready", why=why, hint="wait, and ask again")
    if 300 <= status < 400:
        return malformed(path, f"status {status}: it sends us somewhere else")
    if status in (401, 403):
        return UsageError("engine-refused", f"the engine refuses {path}", why=why, hint="give its api_key")
    if 400 <= status < 500:
        return UsageError("request-refused", f"the engine cannot do {path} as it was asked", why=why)
    if status == 501:
        return UsageError(
            "request-unsupported", f"the engine was not started for {path}", why=why, hint="see its options"
        )
    return NetworkError("engine-failed", f"the engine failed at {path}", why=why)


def stream_error(document: object, path: str) -> NetworkError:
    """An error arrived in the middle of a stream."""
    return NetworkError(
        "engine-failed", f"the engine failed at {path}", why=_message(document) or str(document)[:_EXCERPT]
    )


def error_text(body: bytes) -> str:
    """Return the message in an error body, or its beginning."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return body[:_EXCERPT].decode("utf-8", "replace")
    return _message(document) or str(document)[:_EXCERPT]


def _message(document: object) -> str:
    inner = document.get("error") if isinstance(document, dict) else None
    message = inner.get("message") if isinstance(inner, dict) else inner
    return message[:_EXCERPT] if isinstance(message, str) else ""
