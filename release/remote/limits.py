"""Patience with a remote: how often a call is repeated, how fast writes follow each other, how long in all.

Time comes from a `Clock`, so that tests wait for nothing.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

from opencoti.console import Console
from opencoti.errors import NetworkError
from release.remote.model import PassingError

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, kw_only=True)
class Clock:
    """Where time comes from: seconds that only grow, seconds since 1970, and waiting."""

    monotonic: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When to give up, and how fast to go.

    Attributes:
        tries: attempts of one call.
        first_wait_s: pause after its first failure; doubled after each further one.
        longest_backoff_s: the most that such a pause becomes.
        total_wait_s: ceiling on all pauses of a run together.
        write_gap_s: least time between two writes. GitHub allows about 80 a minute.
        writes_per_hour: GitHub allows about 500; above this a write waits.
        absence_looks_s: pauses before the looks that must find no draft before one is made. The list of
            releases shows a new one only after a while.
        lost_looks_s: likewise after a call whose answer was lost.
    """

    tries: int = 8
    first_wait_s: float = 1.0
    longest_backoff_s: float = 60.0
    total_wait_s: float = 1800.0
    write_gap_s: float = 1.0
    writes_per_hour: int = 400
    absence_looks_s: tuple[float, ...] = (2.0, 4.0, 8.0)
    lost_looks_s: tuple[float, ...] = (2.0, 4.0, 8.0, 16.0, 30.0)


# For a place where everything is seen at once, and nobody counts.
PROMPT = Limits(write_gap_s=0.0, writes_per_hour=1_000_000, absence_looks_s=(), lost_looks_s=())


@dataclass
class Patience:
    """Repeats and paces the calls of one run. Holds no thread."""

    console: Console
    limits: Limits = field(default_factory=Limits)
    clock: Clock = field(default_factory=Clock)
    waited_s: float = 0.0
    _writes: deque[float] = field(default_factory=deque)

    def read(self, what: str, act: Callable[[], ResultT]) -> ResultT:
        """Return the result of a call that may be repeated freely.

        Args:
            what: what it does, for messages.
            act: the call; `PassingError` makes it be repeated.

        Raises:
            NetworkError: `remote-failed`, `remote-wait-too-long`; and what `act` raises.
        """
        return self.write(what, act, lambda: None, is_paced=False)

    def write(
        self,
        what: str,
        act: Callable[[], ResultT],
        look: Callable[[], ResultT | None],
        *,
        is_paced: bool = True,
    ) -> ResultT:
        """Return the result of a call that changes something.

        Args:
            what: what it does, for messages.
            act: the call. After `PassingError` it may have had its effect or not.
            look: finds out; what it returns, if that is not None, is the result.
            is_paced: keep the distance to the write before.

        Raises:
            NetworkError: as `read`.
        """
        failures = 0
        while True:
            try:
                if is_paced:
                    self._pace()
                return act()
            except PassingError as trouble:
                failures += 1
                self._after(what, failures, trouble)
                if trouble.wait_s is not None:
                    continue  # a remote that asks to wait has done nothing
            if (found := look()) is not None:
                return found

    def pause(self, seconds: float, why: str) -> None:
        """Wait, on the account of this run.

        Raises:
            NetworkError: `remote-wait-too-long`, the run would wait longer than it may in all.
        """
        if self.waited_s + seconds > self.limits.total_wait_s:
            raise NetworkError(
                "remote-wait-too-long",
                "the remote asks for more patience than this run has",
                why=f"{why}: another {seconds:.0f} s after {self.waited_s:.0f} s of waiting",
                hint=f"run the same command again after {self._at(seconds)}: it goes on where this one ended",
            )
        self.waited_s += seconds
        if seconds >= 5:
            self.console.info(f"waiting {seconds:.0f} s: {why}")
        self.clock.sleep(seconds)

    def _after(self, what: str, failures: int, trouble: PassingError) -> None:
        if failures >= self.limits.tries:
            raise NetworkError(
                "remote-failed",
                f"cannot {what}",
                why=f"{failures} attempts failed, the last one: {trouble}",
                hint="run the same command again: it goes on where this one ended",
            ) from trouble
        backoff = min(self.limits.first_wait_s * 2.0 ** (failures - 1), self.limits.longest_backoff_s)
        self.pause(backoff if trouble.wait_s is None else trouble.wait_s, f"{what}: {trouble}")

    def _pace(self) -> None:
        now = self.clock.monotonic()
        while self._writes and now - self._writes[0] > 3600:
            self._writes.popleft()
        if self._writes and (gap := self.limits.write_gap_s - (now - self._writes[-1])) > 0:
            self.pause(gap, "distance between two writes")
        if len(self._writes) >= self.limits.writes_per_hour:
            self.pause(3600 - (now - self._writes[0]), "writes of the last hour")
        self._writes.append(self.clock.monotonic())

    def _at(self, seconds: float) -> str:
        return datetime.fromtimestamp(self.clock.now() + seconds, UTC).strftime("%H:%M:%S UTC")
