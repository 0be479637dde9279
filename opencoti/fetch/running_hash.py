"""SHA-256 over bytes that come in order; big blocks are hashed on a thread while the next one is fetched."""

from __future__ import annotations

import hashlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

# Below this, handing a block to another thread costs more than hashing it.
_WORTH_A_THREAD_BYTES = 128 << 10
_MOST_WAITING = 8


class RunningHash:
    """The hash of what was given so far.

    The thread starts with the first big block and ends with `close`, or with this object.
    """

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: deque[Future[None]] = deque()

    def update(self, block: bytes) -> None:
        """Add the next bytes, perhaps later; `block` is kept until then."""
        if len(block) < _WORTH_A_THREAD_BYTES:
            self.update_now(block)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="hash")
        self._settle(_MOST_WAITING - 1)
        self._waiting.append(self._pool.submit(self._digest.update, block))

    def update_now(self, block: bytes | memoryview) -> None:
        """Add the next bytes before this returns, so that a buffer may be used again."""
        self._settle(0)
        self._digest.update(block)

    def hexdigest(self) -> str:
        """Return the SHA-256 of everything that was given."""
        self._settle(0)
        return self._digest.hexdigest()

    def close(self) -> None:
        """End the thread. May be called twice."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _settle(self, most: int) -> None:
        """Wait until at most so many blocks are not hashed yet."""
        while len(self._waiting) > most:
            self._waiting.popleft().result()
