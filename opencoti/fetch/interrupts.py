"""Ctrl-C and SIGTERM at once, even when they arrive at the worst moment.

Python runs a signal's handler between two steps of the program. One that arrives just before a system call
that blocks (`poll` on a silent connection) is noticed only when that call ends, after 30 s. So a thread is
told about each signal by the interpreter's wake-up descriptor and interrupts the main thread a few times with
a signal that does nothing, which ends the system call.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_NUDGES_S = (0.0, 0.05, 0.2, 0.5)


@contextmanager
def prompt_signals() -> Iterator[None]:
    """See to it that signals interrupt blocking calls of the main thread while the block runs.

    To be entered in the main thread. Takes SIGURG and the wake-up descriptor for itself. Where the system has
    no such signals nothing is done.
    """
    if not hasattr(signal, "pthread_kill") or not hasattr(signal, "SIGURG"):
        yield
        return
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    before = signal.signal(signal.SIGURG, _ignore)
    descriptor = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    main = threading.get_ident()
    ended = threading.Event()
    words = (reader.fileno(), main, ended)
    thread = threading.Thread(target=_nudge, args=words, name="signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(descriptor)
        ended.set()
        writer.close()  # the thread reads the end, and goes
        thread.join()
        reader.close()
        signal.signal(signal.SIGURG, before)


def _nudge(descriptor: int, main: int, ended: threading.Event) -> None:
    while arrived := os.read(descriptor, 64):
        if set(arrived) == {signal.SIGURG}:
            continue
        for pause_s in _NUDGES_S:
            if ended.wait(pause_s):
                return
            signal.pthread_kill(main, signal.SIGURG)


def _ignore(number: int, frame: object) -> None:
    """Handle a signal by doing nothing: that it arrived is enough."""
