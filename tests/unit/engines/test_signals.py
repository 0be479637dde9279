"""Ctrl-C and SIGTERM while a container lives (case B10)."""

from __future__ import annotations

import signal
import threading

import pytest

from ci.engines.owner import HOST, OWNER_PID, OWNER_START, is_orphan, owner_labels
from ci.engines.signals import SignalGate
from opencoti.entry import Terminated


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)]
)
def test_a_signal_interrupts_the_open_part_and_a_second_one_cannot_disturb_the_clean_up(
    number: signal.Signals, raised: type[BaseException]
) -> None:
    before = signal.getsignal(number)
    events = []
    with pytest.raises(raised), SignalGate() as gate:  # noqa: PT012
        try:
            with gate.open():
                signal.raise_signal(number)
                events.append("went on")
        finally:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(number)
            events.append("cleaned up")
    assert events == ["cleaned up"]
    assert signal.getsignal(number) is before


def test_a_signal_while_something_is_made_waits_for_the_open_part() -> None:
    events = []
    with pytest.raises(KeyboardInterrupt), SignalGate() as gate:  # noqa: PT012
        signal.raise_signal(signal.SIGINT)
        events.append("made")
        with gate.open():
            events.append("ran")
    assert events == ["made"]


def test_a_signal_that_came_too_late_is_raised_at_the_end() -> None:
    events = []
    with pytest.raises(Terminated):  # noqa: PT012
        with SignalGate() as gate:
            with gate.open():
                events.append("ran")
            signal.raise_signal(signal.SIGTERM)
            events.append("cleaned up")
        events.append("not reached")
    assert events == ["ran", "cleaned up"]


def test_another_thread_holds_nothing() -> None:
    seen = []

    def work() -> None:
        with SignalGate() as gate, gate.open():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT)]


def test_only_containers_whose_owner_is_gone_for_certain_are_orphans() -> None:
    mine = owner_labels("r")
    assert not is_orphan(mine)
    assert is_orphan(mine | {OWNER_PID: "99999999"})
    assert is_orphan(mine | {OWNER_START: "1"}), "the number was given to another process"
    assert not is_orphan(mine | {OWNER_PID: "99999999", HOST: "another boot"})
    assert not is_orphan({})
