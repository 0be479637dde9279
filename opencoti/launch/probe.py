"""Short HTTP questions to a server on this machine that is not trusted; needs the standard library only.

One connection per question, straight to the address: no proxy, no redirect, a bounded answer, one deadline
for all of it.
"""

from __future__ import annotations

import json
import socket
import time
from dataclasses import dataclass
from typing import Any, Final

MAX_ANSWER_BYTES: Final = 4 << 20
_READ_BYTES: Final = 65536


class NoAnswerError(Exception):
    """Nobody answered properly; the text says what happened."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came back: the status, and the body as JSON (None where it is none)."""

    status: int
    document: Any

    def field(self, name: str) -> Any:
        """Return a field of the document, None where there is none."""
        return self.document.get(name) if isinstance(self.document, dict) else None


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where a server listens, and the password it wants."""

    host: str
    port: int
    api_key: str = ""


def ask(address: Address, path: str, *, body: dict[str, Any] | None = None, timeout_s: float) -> Answer:
    """Send one request (POST where there is a body) and return the answer.

    Raises:
        NoAnswerError: no connection, no end within `timeout_s`, too long, or no HTTP.
    """
    end = time.monotonic() + timeout_s
    request = _request(address, path, body)
    try:
        with socket.create_connection((address.host, address.port), timeout=timeout_s) as connection:
            connection.sendall(request)
            raw = _read(connection, end)
    except TimeoutError as exc:
        raise NoAnswerError(f"no answer to {path} within {timeout_s:.0f} s") from exc
    except OSError as exc:
        raise NoAnswerError(f"{path}: {exc.strerror or exc}") from exc
    return _parse(raw, path)


def _request(address: Address, path: str, body: dict[str, Any] | None) -> bytes:
    payload = b"" if body is None else json.dumps(body).encode()
    # Version 1.0: the server may neither keep the connection nor send in chunks.
    lines = [
        f"{'GET' if body is None else 'POST'} {path} HTTP/1.0",
        f"Host: {address.host}:{address.port}",
        "Connection: close",
        "Accept: application/json",
        f"Content-Length: {len(payload)}",
    ]
    if body is not None:
        lines.append("Content-Type: application/json")
    if address.api_key:
        lines.append(f"Authorization: Bearer {address.api_key}")
    return "\r\n".join([*lines, "", ""]).encode() + payload


def _read(connection: socket.socket, end: float) -> bytes:
    """Read until the promised length or the end of the connection."""
    raw = bytearray()
    wanted: int | None = None
    while wanted is None or len(raw) < wanted:
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(left)
        block = connection.recv(_READ_BYTES)
        if not block:
            break
        raw += block
        if len(raw) > MAX_ANSWER_BYTES:
            raise NoAnswerError(f"the answer is longer than {MAX_ANSWER_BYTES} bytes")
        if wanted is None:
            wanted = _promised_bytes(raw)
    return bytes(raw)


def _promised_bytes(raw: bytearray) -> int | None:
    """Return how long the whole answer will be, None as long as the header does not say."""
    head, separator, _ = raw.partition(b"\r\n\r\n")
    if not separator:
        return None
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length" and value.strip().isdigit():
            return len(head) + 4 + int(value)
    return None


def _parse(raw: bytes, path: str) -> Answer:
    head, _, body = raw.partition(b"\r\n\r\n")
    words = head.split(b"\r\n", 1)[0].split()
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        raise NoAnswerError(f"what answers {path} does not speak HTTP")
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    return Answer(status=int(words[1]), document=document)
