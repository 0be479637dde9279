"""Listening sockets as the kernel tells them, both ways that it tells them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from opencoti import procfs, sockdiag

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel")


@pytest.fixture
def ports() -> Iterator[dict[str, int]]:
    """Sockets at different addresses, by address; one of them is connected and does not listen."""
    with ExitStack() as stack:
        found = {}
        for family, address in (
            (socket.AF_INET, "127.0.0.1"),
            (socket.AF_INET, "127.9.8.7"),
            (socket.AF_INET, "0.0.0.0"),
            (socket.AF_INET6, "::1"),
            (socket.AF_INET6, "::ffff:127.0.0.1"),
        ):
            item = stack.enter_context(socket.socket(family))
            item.bind((address, 0))
            item.listen()
            found[address] = item.getsockname()[1]
        yield found


def table() -> tuple[procfs.Listener, ...]:
    return tuple(
        item
        for name in ("tcp", "tcp6")
        for item in procfs._listeners_of(procfs._PROC / "self" / "net" / name)
    )


def test_both_ways_tell_the_same(ports: dict[str, int]) -> None:
    wanted = set(ports.values())
    asked = {item for item in procfs.listeners() if item.port in wanted}
    assert asked == {item for item in table() if item.port in wanted}
    assert {item.port: item.is_loopback for item in asked} == {
        port: address != "0.0.0.0" for address, port in ports.items()
    }


def test_sockets_belong_to_their_process(ports: dict[str, int]) -> None:
    ours = procfs.sockets_of((os.getpid(),))
    mine = {item.port for item in procfs.listeners() if item.inode in ours}
    assert set(ports.values()) <= mine


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\0" * 15,
        b"\0" * 64,
        sockdiag._HEADER.pack(20, 2, 0, 0, 0) + b"\xfe\xff\xff\xff",  # an error
        sockdiag._HEADER.pack(200, 20, 0, 0, 0),  # longer than it is
        sockdiag._HEADER.pack(24, 20, 0, 0, 0) + b"\0" * 8,  # too short for a socket
    ],
    ids=["nothing", "half a header", "zeros", "an error", "cut", "short"],
)
def test_nonsense_is_no_answer(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    class Link:
        def __init__(self, *_: object) -> None:
            self.answers = [answer, b""]

        def __enter__(self) -> Link:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def settimeout(self, seconds: float) -> None:
            pass

        def sendto(self, *_: object) -> None:
            pass

        def recv(self, size: int) -> bytes:
            if not self.answers:
                raise TimeoutError
            return self.answers.pop(0)

    monkeypatch.setattr(sockdiag.socket, "socket", Link)
    assert sockdiag.listening() is None


def test_family_of_a_process_is_found_without_looking_at_all() -> None:
    script = "sleep 60 & echo $!; wait"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        child = int(shell.stdout.readline())
        assert set(procfs.descendants(shell.pid)) == {shell.pid, child}
        assert set(procfs.descendants(os.getpid())) >= {os.getpid(), shell.pid, child}
        os.kill(child, 9)
        shell.kill()
    assert procfs.descendants(shell.pid) == (shell.pid,)
