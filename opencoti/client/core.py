"""What the two clients have in common: settings, limits on what is read, the state of a stream. Sans I/O."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Generic

from opencoti.client.answers import client_headers, require_plain, require_stream
from opencoti.client.exchanges import StreamExchange
from opencoti.client.limits import Budget, Limits
from opencoti.client.requests import Base
from opencoti.client.session import Conversation, SlotTable
from opencoti.client.sse import C, StreamEnd, StreamReader

if TYPE_CHECKING:
    import httpx

_ANY_BYTES = 1 << 40


class ClientCore:
    """Settings of a client, and the slots that its sessions use. Holds no connection."""

    def __init__(self, url: str, *, api_key: str, limits: Limits | None) -> None:
        self.base = Base.parse(url)
        self.limits = limits or Limits()
        self.slots = SlotTable()
        self._api_key = api_key

    def _http_settings(self) -> dict[str, Any]:
        """Return the arguments of an httpx client: no proxy on this machine, no redirects."""
        import httpx

        return {
            "base_url": self.base.url,
            "headers": client_headers(self._api_key),
            "timeout": httpx.Timeout(self.limits.idle_s, connect=self.limits.connect_s),
            "trust_env": not self.base.is_loopback,
            "follow_redirects": False,
        }


def new_conversation(*, system: str, is_isolated: bool, session_id: str, has_reasoning: bool) -> Conversation:
    """Return the state of a new session; it gets a random name if it has none."""
    return Conversation(
        system=system,
        is_isolated=is_isolated,
        session_id=session_id or secrets.token_hex(8),
        has_reasoning=has_reasoning,
    )


class BodyReader:
    """Collects the blocks of one answer, as many as its status allows.

    An error's body is read up to its limit, so that its beginning can be shown; what follows is not fetched.
    """

    def __init__(self, response: httpx.Response, path: str, limits: Limits) -> None:
        self.is_error = response.status_code != 200
        self._limit = limits.error_bytes
        if self.is_error:
            self._budget = Budget(path, max_bytes=_ANY_BYTES, total_s=limits.connect_s)
        else:
            require_plain(response, path)
            self._budget = Budget(path, max_bytes=limits.body_bytes, total_s=limits.total_s)
        self._parts: list[bytes] = []
        self._size = 0

    def take(self, block: bytes) -> bool:
        """Take a block; tell whether another one is wanted. Raises `NetworkError`."""
        self._budget.spend(len(block))
        self._parts.append(block)
        self._size += len(block)
        return not (self.is_error and self._size >= self._limit)

    @property
    def body(self) -> bytes:
        """What was read."""
        data = b"".join(self._parts)
        return data[: self._limit] if self.is_error else data


class StreamCore(Generic[C]):
    """The state of one streamed answer."""

    def __init__(self, response: httpx.Response, exchange: StreamExchange[C], limits: Limits) -> None:
        require_stream(response, exchange.path)
        self._response = response
        self._path = exchange.path
        self._reader = StreamReader(exchange.kind, exchange.path, max_event_bytes=limits.event_bytes)
        self._budget = Budget(exchange.path, max_bytes=limits.stream_bytes, total_s=limits.total_s)
        self._end: StreamEnd | None = None

    @property
    def end(self) -> StreamEnd:
        """The whole answer. Raises `NetworkError` (`stream-truncated`) before the last piece was read."""
        return self._end or self._reader.end()

    def _feed(self, block: bytes) -> list[C]:
        self._budget.spend(len(block))
        return self._reader.feed(block)
