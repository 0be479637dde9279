"""How much of a server's answer is taken, and for how long. Pure but for the clock it is given."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from opencoti.client.failures import too_long, too_slow


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one request.

    Attributes:
        connect_s: until the connection stands.
        idle_s: without any byte; a long prompt is silent until its first token.
        total_s: from the request to the last byte.
        body_bytes: an answer that is no stream.
        stream_bytes: a stream, all events together.
        event_bytes: one event of a stream.
        error_bytes: what is read of an error's body; the rest is not fetched.
    """

    connect_s: float = 5.0
    idle_s: float = 300.0
    total_s: float = 3600.0
    body_bytes: int = 64 << 20
    stream_bytes: int = 64 << 20
    event_bytes: int = 4 << 20
    error_bytes: int = 64 << 10


class Budget:
    """What is left of the limits during one request."""

    def __init__(
        self, path: str, *, max_bytes: int, total_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._left_bytes = max_bytes
        self._total_s = total_s
        self._clock = clock
        self._end = clock() + total_s

    def spend(self, size_bytes: int) -> None:
        """Count a block that arrived.

        Raises:
            NetworkError: `answer-too-long`, `answer-too-slow`.
        """
        self._left_bytes -= size_bytes
        if self._left_bytes < 0:
            raise too_long(self.path, self._max_bytes)
        if self._clock() > self._end:
            raise too_slow(self.path, self._total_s)
