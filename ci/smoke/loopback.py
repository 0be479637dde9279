"""HTTP to a server on this machine that is not trusted: bounded in time and size, never through a proxy."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from opencoti.errors import ConfigError, VerificationError
from opencoti.jsonio import parse_strict

if TYPE_CHECKING:
    import httpx

MAX_BODY_BYTES: Final = 8 << 20
_CONNECT_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An answer: its status and its whole body."""

    status: int
    body: bytes


class Loopback:
    """A client of one port of 127.0.0.1, or of a socket file; close it, or use it in a `with` block."""

    def __init__(
        self, port: int, *, socket: Path | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        import httpx

        self.place = f"on port {port}" if socket is None else f"at {socket.name}"
        self._clock = clock
        self._client = httpx.Client(
            base_url=f"http://127.0.0.1:{port}" if socket is None else "http://127.0.0.1",
            transport=None if socket is None else httpx.HTTPTransport(uds=str(socket)),
            trust_env=False,
            headers={"Accept-Encoding": "identity", "User-Agent": "opencoti-smoke"},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def probe(self, path: str, *, timeout_s: float) -> Reply | None:
        """GET a path; None when nobody answers properly in time."""
        import httpx

        try:
            return self._request("GET", path, None, timeout_s)
        except (httpx.HTTPError, _TooMuchError):
            return None

    def get(self, path: str, *, timeout_s: float) -> Any:
        """GET a JSON document. Raises `VerificationError` like `post`."""
        return self._document("GET", path, None, timeout_s)

    def post(self, path: str, body: dict[str, Any], *, timeout_s: float) -> Any:
        """POST a JSON document and return the one that comes back.

        Raises:
            VerificationError: `smoke-request-failed`: no answer in time, a status other than 200, too long
                or no JSON.
        """
        return self._document("POST", path, body, timeout_s)

    def _document(self, method: str, path: str, body: dict[str, Any] | None, timeout_s: float) -> Any:
        import httpx

        try:
            reply = self._request(method, path, body, timeout_s)
        except httpx.TimeoutException as exc:
            raise _failed(method, path, f"no answer within {timeout_s:.0f} s") from exc
        except httpx.HTTPError as exc:
            raise _failed(method, path, f"the connection broke: {exc}") from exc
        except _TooMuchError as exc:
            raise _failed(method, path, str(exc)) from exc
        if reply.status != 200:
            excerpt = reply.body[:300].decode("utf-8", "replace")
            raise _failed(method, path, f"status {reply.status}: {excerpt}")
        try:
            return parse_strict(reply.body, f"the answer to {path}")
        except ConfigError as exc:
            raise _failed(method, path, exc.why) from exc

    def _request(self, method: str, path: str, body: dict[str, Any] | None, timeout_s: float) -> Reply:
        import httpx

        end = self._clock() + timeout_s
        timeout = httpx.Timeout(timeout_s, connect=min(timeout_s, _CONNECT_TIMEOUT_S))
        with self._client.stream(method, path, json=body, timeout=timeout) as response:
            return Reply(status=response.status_code, body=self._read(response, end))

    def _read(self, response: httpx.Response, end: float) -> bytes:
        """Read a body that may never end: the client's time-outs are per read, the sum is kept here."""
        parts: list[bytes] = []
        size = 0
        for part in response.iter_raw():
            size += len(part)
            parts.append(part)
            if size > MAX_BODY_BYTES:
                raise _TooMuchError(f"the answer is longer than {MAX_BODY_BYTES} bytes")
            if self._clock() > end:
                raise _TooMuchError("the answer does not end")
        return b"".join(parts)


class _TooMuchError(Exception):
    """An answer that goes on after its limit of bytes or seconds."""


def _failed(method: str, path: str, why: str) -> VerificationError:
    return VerificationError("smoke-request-failed", f"the engine failed at {method} {path}", why=why)
