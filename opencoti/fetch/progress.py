"""One line about how far a file is."""

from __future__ import annotations

import time
from collections.abc import Callable

from opencoti.console import Console


class Progress:
    """Renders the status line of one file; the console decides how often it shows."""

    def __init__(self, name: str, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._console = console
        self._clock = clock
        self.start(0)

    def start(self, size: int) -> None:
        """Begin to measure the speed, `size` bytes being there already."""
        self._from = size
        self._since = self._clock()

    def show(self, size: int, total: int | None, doing: str = "") -> None:
        """Tell that `size` bytes of `total` (None: unknown) are done."""
        elapsed = self._clock() - self._since
        speed = f", {(size - self._from) / elapsed / 1e6:.1f} MB/s" if elapsed > 0 else ""
        share = f" of {total / 1e6:.1f} MB, {100 * size // total}%" if total else " MB"
        label = f"{self._name} ({doing})" if doing else self._name
        self._console.status(f"{label}: {size / 1e6:.1f}{share}{speed}")
