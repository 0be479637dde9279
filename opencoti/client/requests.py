"""Request bodies as bytes, with a fixed order of keys. Pure."""

from __future__ import annotations

import ipaddress
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from opencoti.errors import UsageError

Message = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How an answer is made; None leaves it to the engine. `extra` holds any other field of the interface."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return what is set, as fields of the request."""
        own = {
            name: getattr(self, name)
            for name in ("max_tokens", "temperature", "top_p", "seed", "stop")
            if getattr(self, name) is not None
        }
        return own | dict(self.extra)


def encode(value: Any) -> bytes:
    """Return a value as compact JSON; the same value always gives the same bytes.

    Raises:
        UsageError: `request-not-json`: a value that JSON cannot hold, half a surrogate pair, NaN.
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as exc:
        raise UsageError("request-not-json", "the request cannot be sent", why=str(exc)[:200]) from exc


def chat_body(messages: Sequence[bytes], options: Mapping[str, Any]) -> bytes:
    """Return the body of a chat request: the encoded messages first, so that a longer one begins alike.

    Raises:
        UsageError: `request-not-json`, `no-messages`.
    """
    if not messages:
        raise UsageError("no-messages", "a chat needs at least one message")
    rest = encode(dict(options))
    return b'{"messages":[' + b",".join(messages) + (b"]," if len(rest) > 2 else b"]") + rest[1:]


def streaming(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options that ask for a stream with counts at its end."""
    return {**options, "stream": True, "stream_options": {"include_usage": True}}


@dataclass(frozen=True, kw_only=True)
class Base:
    """Address of an engine. On this machine no proxy is ever asked."""

    url: str
    is_loopback: bool

    @classmethod
    def parse(cls, url: str) -> Base:
        """Read an address like `http://127.0.0.1:8080`; `/v1` at its end is left out.

        Raises:
            UsageError: `bad-engine-url`.
        """
        trimmed = url.strip().rstrip("/").removesuffix("/v1").rstrip("/")
        try:
            parts = urlsplit(trimmed)
            host, _ = parts.hostname or "", parts.port
        except ValueError as exc:
            raise _bad_url(url, str(exc)) from exc
        if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
            raise _bad_url(url, "expected http://HOST:PORT")
        if parts.username or parts.password:
            raise _bad_url("(not shown)", "a password in an address ends up in logs")
        return cls(url=trimmed, is_loopback=_is_loopback(host))


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _bad_url(url: str, why: str) -> UsageError:
    return UsageError(
        "bad-engine-url", f"{url[:120]!r} is no address of an engine", why=why, hint="use Engine.url"
    )


def require_vectors(vectors: Sequence[Sequence[float]], wanted: int) -> str:
    """Return what is wrong with vectors, empty when there is one per text, all of one width and finite."""
    if len(vectors) != wanted:
        return f"{len(vectors)} vectors for {wanted} texts"
    if len({len(vector) for vector in vectors}) != 1:
        return "its vectors are of different widths"
    if not all(math.isfinite(number) for vector in vectors for number in vector):
        return "a vector holds a number that is not finite"
    return ""
