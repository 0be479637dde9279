"""Patience: when a transfer is a stall, when to try again, and after which pause. Clocks are arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from opencoti.errors import NetworkError
from opencoti.fetch.answers import TransferFailure
from opencoti.fetch.settings import Limits

if TYPE_CHECKING:
    from tenacity import RetryCallState

T = TypeVar("T")
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 20.0
# An attempt counts as fruitful when it adds this much beyond the furthest byte ever reached, so that the
# number of attempts is bounded by the size of the file even with a server that drops every connection.
_FRUITFUL_BYTES = 1 << 20


class SpeedGuard:
    """Notices a body that arrives too slowly. One per answer."""

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._since = clock()
        self._bytes = 0

    def feed(self, size: int) -> None:
        """Count arrived bytes. Raises `TransferFailure` when the last window was too slow."""
        self._bytes += size
        now = self._clock()
        elapsed = now - self._since
        if elapsed < self._limits.timeout_s:
            return
        if self._bytes < self._limits.min_bytes_per_s * elapsed:
            raise TransferFailure(f"only {self._bytes} bytes in {elapsed:.1f} s")
        self._since, self._bytes = now, 0


class Patience:
    """Decides about the next attempt from the failure and from how far the transfer ever came."""

    def __init__(self, limits: Limits, reached: Callable[[], int]) -> None:
        self._limits = limits
        self._reached = reached
        self._furthest = reached()
        self.fruitless = 0
        self.attempts = 0

    def note(self, failure: TransferFailure) -> bool:
        """Take a failure in; return whether to give up."""
        self.attempts += 1
        self.fruitless += 1
        if self._reached() >= self._furthest + _FRUITFUL_BYTES:
            self._furthest = self._reached()
            self.fruitless = 0
        asked = failure.retry_after_s
        too_long = asked is not None and asked > self._limits.longest_wait_s
        return too_long or self.fruitless >= self._limits.tries


def repeat(
    attempt: Callable[[], T],
    patience: Patience,
    *,
    sleep: Callable[[float], None],
    announce: Callable[[TransferFailure, float], None],
) -> T:
    """Call `attempt` until it returns or patience ends; the last `TransferFailure` is raised on.

    Args:
        attempt: one try.
        patience: the policy; one per transfer.
        sleep: waits, in seconds.
        announce: told about each failure that is followed by another try, and the pause before it.
    """
    import tenacity

    jitter = tenacity.wait_random_exponential(multiplier=_FIRST_PAUSE_S, max=_LONGEST_PAUSE_S)

    def pause(state: RetryCallState) -> float:
        failure = _failure_of(state)
        if failure.is_range_useless and state.attempt_number == 1:
            return 0.0
        return max(failure.retry_after_s or 0.0, jitter(state))

    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(TransferFailure),
        stop=lambda state: patience.note(_failure_of(state)),
        wait=pause,
        before_sleep=lambda state: announce(_failure_of(state), state.upcoming_sleep),
        sleep=sleep,
        reraise=True,
    )
    return retrying(attempt)


def given_up(url: str, failure: TransferFailure, *, attempts: int, kept: str) -> NetworkError:
    """Describe a transfer that ended without the file; `kept` says what the next run can use."""
    why = f"{failure.reason} (gave up after {attempts} attempts)"
    if failure.retry_after_s is not None:
        why += f"; it asks for a pause of {failure.retry_after_s:.0f} s"
    return NetworkError(
        "download-failed",
        f"cannot download {url}",
        why=why,
        hint=f"check the network and the proxy settings, then run the command again{kept}",
    )


def announcement(failure: TransferFailure, pause_s: float) -> str:
    """Return what to tell about a failure that is followed by another try."""
    start = "starting from the beginning" if failure.is_range_useless else "trying again"
    return f"{failure.reason}; {start} in {pause_s:.1f} s" if pause_s else f"{failure.reason}; {start}"


def _failure_of(state: RetryCallState) -> TransferFailure:
    failure = state.outcome.exception() if state.outcome else None
    assert isinstance(failure, TransferFailure)
    return failure
