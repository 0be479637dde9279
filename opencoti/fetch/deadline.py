"""A limit for a call that sets none for itself as a whole, only for each of its steps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


def run_within(limit_s: float, action: Callable[[], T], discard: Callable[[T], None]) -> T:
    """Return what `action` returns, or raise what it raises.

    It runs on a thread of its own: the caller can leave it alone, and a signal is not held up.

    Args:
        limit_s: how long it may take.
        action: the call.
        discard: is given a result that came too late, on that thread.

    Raises:
        TimeoutError: it takes longer; it goes on alone until it ends by itself.
    """
    call = _Call(action, discard)
    threading.Thread(target=call.run, name="request", daemon=True).start()
    return call.wait(limit_s)


class _Call(Generic[T]):
    """A call on one thread that another one waits for, until it does no longer."""

    def __init__(self, action: Callable[[], T], discard: Callable[[T], None]) -> None:
        self._action = action
        self._discard = discard
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._is_left = False
        self._results: list[T] = []
        self._failure: BaseException | None = None

    def run(self) -> None:
        """Call, and keep or discard what came."""
        try:
            result = self._action()
        except BaseException as exc:  # raised again where it is waited for
            self._failure = exc
        else:
            with self._lock:
                self._results.append(result)
                is_late = self._is_left
            if is_late:
                self._discard(result)
        self._ended.set()

    def wait(self, limit_s: float) -> T:
        """Return the result. Raises `TimeoutError`."""
        try:
            self._ended.wait(limit_s)
        finally:
            with self._lock:
                self._is_left = not self._results
        if self._results:
            return self._results[0]
        if self._failure is not None:
            raise self._failure
        raise TimeoutError
