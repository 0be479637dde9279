"""Waiting for a release to show up: a clock that is not real, and what is worth waiting for."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from opencoti.errors import NetworkError, OpencotiError, StorageError, VerificationError
from release.checking.waiting import Deadline, until
from tests.conftest import RecordedConsole


@dataclass
class Clock:
    """Moves by what is slept."""

    now: float = 0.0
    pauses: list[float] = field(default_factory=list)

    def sleep(self, pause_s: float) -> None:
        self.pauses.append(pause_s)
        self.now += pause_s

    def deadline(self, total_s: float) -> Deadline:
        return Deadline(total_s=total_s, pause_s=15.0, clock=lambda: self.now, sleep=self.sleep)


def absent() -> OpencotiError:
    return NetworkError("not-found", "nothing there")


def test_what_shows_up_in_time_is_returned() -> None:
    clock, failures = Clock(), [absent(), VerificationError("signature-absent", "no signature"), absent()]
    recorded = RecordedConsole()

    def attempt() -> str:
        if failures:
            raise failures.pop()
        return "there"

    assert until(attempt, clock.deadline(600), recorded.console) == "there"
    assert clock.pauses == [15.0, 15.0, 15.0]
    assert "not there yet (nothing there); trying for another 600 s" in recorded.text


def test_deadline_ends_it_with_the_last_failure() -> None:
    clock = Clock()

    def attempt() -> str:
        raise absent()

    with pytest.raises(NetworkError):
        until(attempt, clock.deadline(40), RecordedConsole().console)
    assert clock.pauses == [15.0, 15.0, 10.0]


@pytest.mark.parametrize(
    "error", [VerificationError("signature-mismatch", "x"), StorageError("storage-failed", "x")]
)
def test_what_is_wrong_is_not_waited_for(error: OpencotiError) -> None:
    clock = Clock()

    def attempt() -> str:
        raise error

    with pytest.raises(type(error)):
        until(attempt, clock.deadline(600), RecordedConsole().console)
    assert clock.pauses == []
