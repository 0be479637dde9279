"""Trying again until a deadline: a release needs seconds to minutes before every server of a CDN shows it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from opencoti.console import Console
from opencoti.errors import NetworkError, OpencotiError, VerificationError

T = TypeVar("T")
# What an answer from before the release, or a half of it, looks like. Anything else is wrong at once.
_NOT_YET: Final = ("not-found", "download-failed", "http-refused", "signature-absent", "release-not-latest")


@dataclass(frozen=True, kw_only=True)
class Deadline:
    """How long to go on, in seconds, and the pause between attempts; clock and sleep are the outside."""

    total_s: float
    pause_s: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def until(attempt: Callable[[], T], deadline: Deadline, console: Console) -> T:
    """Return what `attempt` returns, trying again while the release is not (fully) there yet.

    Raises:
        OpencotiError: of the last attempt, after the deadline; any other kind of failure at once.
    """
    end = deadline.clock() + deadline.total_s
    while True:
        try:
            return attempt()
        except (NetworkError, VerificationError) as error:
            left = end - deadline.clock()
            if error.error_id not in _NOT_YET or left <= 0:
                raise
            _tell(console, error, left)
            deadline.sleep(min(deadline.pause_s, max(left, 0.0)))


def _tell(console: Console, error: OpencotiError, left_s: float) -> None:
    console.info(f"not there yet ({error}); trying for another {left_s:.0f} s")
