"""Reading a body from its socket: when that is done, and what every way that it may end looks like."""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import httpx
import pytest

from opencoti.fetch.answers import TransferFailure
from opencoti.fetch.direct import read_body

BODY = random.Random(4).randbytes(3_000_000)
FIRST = 600_000  # what comes through the library, above what proves a speed


class Body(httpx.SyncByteStream):
    """What the library has read already, in blocks, and then the rest, which it counts."""

    def __init__(self, *blocks: bytes) -> None:
        self.blocks = blocks
        self.asked = 0

    def __iter__(self) -> Iterator[bytes]:
        for block in self.blocks:
            self.asked += 1
            yield block


class Stream:
    """Imitates the network stream of httpcore."""

    def __init__(self, connection: object, tls: object = None) -> None:
        self.info = {"socket": connection, "ssl_object": tls}

    def get_extra_info(self, name: str) -> object:
        return self.info.get(name)


def answer(
    body: Body, connection: object, *, tls: object = None, version: bytes = b"HTTP/1.1", **headers: str
) -> httpx.Response:
    extensions = {"network_stream": Stream(connection, tls), "http_version": version}
    given = {"content-length": str(len(BODY))} | {
        name.replace("_", "-"): text for name, text in headers.items()
    }
    return httpx.Response(200, headers=given, stream=body, extensions=extensions)


@contextmanager
def server(serve: Callable[[socket.socket], None]) -> Iterator[socket.socket]:
    """Give one end of a TCP connection whose other end is served by a thread."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    thread = threading.Thread(target=serve, args=(theirs,))
    thread.start()
    with ours, theirs:
        yield ours
        thread.join()


def read_into(got: bytearray, response: httpx.Response, *, timeout_s: float = 30) -> None:
    for block in read_body(response, timeout_s=timeout_s, fast_bytes_per_s=0, clock=lambda: 0.0):
        got += block


def test_rest_of_a_fast_body_comes_from_the_socket_byte_for_byte() -> None:
    with server(lambda end: end.sendall(BODY[FIRST:] + b"the next answer")) as connection:
        body = Body(BODY[:FIRST], b"never asked for")
        got = bytearray()
        read_into(got, answer(body, connection))
        assert (got, body.asked) == (BODY, 1)


@pytest.mark.parametrize(
    "case",
    ["slow", "http2", "chunked", "no-length", "little-left", "no-proof", "tls-in-tls", "no-socket"],
)
def test_anything_else_stays_with_the_library(case: str) -> None:
    class Clock:
        now = 0.0

        def __call__(self) -> float:
            self.now += 10.0
            return self.now

    ours, theirs = socket.socketpair()
    with ours, theirs:
        blocks = (BODY[:FIRST], BODY[FIRST:])
        if case == "little-left":
            blocks = (BODY[:-1000], BODY[-1000:])
        if case == "no-proof":
            blocks = (BODY[:1000], BODY[1000:])
        body = Body(*blocks)
        response = answer(
            body,
            object() if case == "no-socket" else ours,
            tls=object() if case == "tls-in-tls" else None,
            version=b"HTTP/2" if case == "http2" else b"HTTP/1.1",
            **({"transfer_encoding": "chunked"} if case == "chunked" else {}),
        )
        if case == "no-length":
            del response.headers["content-length"]
        clock = Clock() if case == "slow" else lambda: 0.0
        got = read_body(response, timeout_s=30, fast_bytes_per_s=1e6 if case == "slow" else 0, clock=clock)
        assert b"".join(got) == BODY
        assert body.asked == 2


def cut(end: socket.socket) -> None:
    end.sendall(BODY[FIRST : FIRST + 500_000])
    end.shutdown(socket.SHUT_WR)


def reset(end: socket.socket) -> None:
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()


@pytest.mark.parametrize("serve", [cut, reset])
def test_lost_connection_is_told_after_what_arrived(serve: Callable[[socket.socket], None]) -> None:
    got = bytearray()
    with server(serve) as connection, pytest.raises(TransferFailure) as caught:
        read_into(got, answer(Body(BODY[:FIRST]), connection))
    assert caught.value.reason == "the connection was cut"
    assert got == BODY[: FIRST + 500_000 if serve is cut else FIRST]


def test_silence_is_a_failure_and_a_trickle_is_passed_on() -> None:
    sent, heard = threading.Event(), threading.Event()

    def serve(end: socket.socket) -> None:
        end.sendall(BODY[FIRST : FIRST + 1000])
        sent.set()
        heard.wait()

    got = bytearray()
    with server(serve) as connection:
        assert sent.wait(30)
        with pytest.raises(TransferFailure) as caught:
            read_into(got, answer(Body(BODY[:FIRST]), connection), timeout_s=0.2)
        heard.set()
    assert caught.value.reason == "nothing arrived for 0.2 s"
    assert got == BODY[: FIRST + 1000]
