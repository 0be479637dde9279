"""A signal that the kernel did not hand to the waiting thread still ends its wait."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from opencoti.fetch.interrupts import prompt_signals


class ArrivedError(Exception):
    """The handler ran."""


def arrive(number: int, frame: object) -> None:
    raise ArrivedError


@pytest.fixture
def masked() -> Iterator[None]:
    """Let the main thread receive no SIGUSR1 itself, as if it came just before a system call."""
    before = signal.signal(signal.SIGUSR1, arrive)
    yield
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
    signal.signal(signal.SIGUSR1, before)


def wait_for(descriptor: int) -> None:
    with prompt_signals():
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGUSR1)).start()
        select.select([descriptor], [], [], 20)


def test_wait_ends_although_another_thread_got_the_signal(masked: None) -> None:
    silent, end = os.pipe()
    started = time.monotonic()
    try:
        with pytest.raises(ArrivedError):
            wait_for(silent)
    finally:
        os.close(silent)
        os.close(end)
    assert time.monotonic() - started < 10  # the handler would run after the wait in any case


def test_everything_is_as_before_afterwards() -> None:
    handler, count = signal.getsignal(signal.SIGURG), threading.active_count()
    with prompt_signals():
        assert signal.getsignal(signal.SIGURG) is not handler
    assert signal.getsignal(signal.SIGURG) is handler
    assert threading.active_count() == count
    assert signal.set_wakeup_fd(-1) == -1
