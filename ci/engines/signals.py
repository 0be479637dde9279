"""Holding Ctrl-C and SIGTERM back while something is made or removed that must not be left behind."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Final

from opencoti.entry import Terminated

_HELD: Final = (signal.SIGINT, signal.SIGTERM)


class SignalGate:
    """Keeps SIGINT and SIGTERM pending inside its `with` block, except inside `open()`.

    In `open()` the first signal raises and closes the gate at once, so that a second one, however quick,
    cannot interrupt the clean-up that follows. What is still pending at the end is raised then, unless an
    exception is on its way already. Outside the main thread, where no signals arrive, nothing is held.
    """

    def __init__(self) -> None:
        self._previous: dict[signal.Signals, Any] = {}
        self._pending: signal.Signals | None = None
        self._is_open = False

    def __enter__(self) -> SignalGate:
        if threading.current_thread() is threading.main_thread():
            for number in _HELD:
                self._previous[number] = signal.signal(number, self._take)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if kind is None:
            self._raise_pending()

    @contextmanager
    def open(self) -> Iterator[None]:
        """Let signals through while the block runs."""
        self._is_open = True
        try:
            self._raise_pending()
            yield
        finally:
            self._is_open = False

    def _take(self, number: int, frame: FrameType | None) -> None:
        self._pending = self._pending or signal.Signals(number)
        if self._is_open:
            self._is_open = False
            self._raise_pending()

    def _raise_pending(self) -> None:
        pending, self._pending = self._pending, None
        if pending == signal.SIGINT:
            raise KeyboardInterrupt
        if pending == signal.SIGTERM:
            raise Terminated
