"""The body of a fast answer, straight from its socket once the HTTP library has read the headers.

The library takes 64 KiB at a time through several layers, which on a fast network costs more than the rest of
the download together. So a body whose length is known, and of which enough is left, is read by ourselves as
soon as it has proven to be fast. The connection cannot be used again then; one slow enough that this would
matter stays with the library. Nothing about the bytes is believed here: who reads checks them.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, cast

from opencoti.fetch.answers import TransferFailure

if TYPE_CHECKING:
    import httpx

_PROOF_BYTES = 512 << 10
_WORTH_BYTES = 1 << 20
_BLOCK_BYTES = 1 << 20
_WAKE_BYTES = 256 << 10
_LOOK_S = 0.05
_TLS_RECORD_BYTES = 16 << 10


def read_body(
    response: httpx.Response,
    *,
    timeout_s: float,
    fast_bytes_per_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[bytes]:
    """Yield the raw bytes of a body, in blocks of any size.

    Args:
        response: an answer of which only the headers were read.
        timeout_s: no byte for this long is a failure.
        fast_bytes_per_s: from this speed on the socket is read directly.
        clock: in seconds.

    Raises:
        TransferFailure: the connection was cut, or nothing arrived for too long.
        httpx.TransportError: the same, seen by the library.
    """
    source, left, since, arrived = _source_of(response), _length_of(response), clock(), 0
    # Not `iter_raw`, which keeps empty blocks to itself: a server could send such without end.
    # A block of the library is all that it has taken from the socket so far (its parser holds nothing back),
    # so behind any of them the rest of the body is the next thing that the socket gives.
    for block in cast("Iterable[bytes]", response.stream):
        yield block
        arrived += len(block)
        is_proven = arrived >= _PROOF_BYTES and arrived >= fast_bytes_per_s * (clock() - since)
        if source is not None and is_proven and left - arrived >= _WORTH_BYTES:
            yield from _receive(source, left - arrived, timeout_s)
            return


def _length_of(response: httpx.Response) -> int:
    """Return the length of a body that is sent as it is, else 0."""
    text = response.headers.get("content-length", "")
    is_plain = "transfer-encoding" not in response.headers and text.isascii() and text.isdecimal()
    return int(text) if is_plain and len(text) < 20 else 0


def _source_of(response: httpx.Response) -> socket.socket | None:
    """Return the socket that carries this body and nothing else, if there is one.

    HTTP/2 carries several answers at once. With TLS inside the TLS of a proxy, the socket is the outer one.
    """
    stream = response.extensions.get("network_stream")
    if response.http_version not in ("HTTP/1.1", "HTTP/1.0") or stream is None:
        return None
    found, tls = stream.get_extra_info("socket"), stream.get_extra_info("ssl_object")
    return found if isinstance(found, socket.socket) and tls in (None, found) else None


def _receive(source: socket.socket, left: int, timeout_s: float) -> Iterator[bytes]:
    """Yield exactly `left` bytes. Raises `TransferFailure`."""
    tap = _Tap(source, timeout_s)
    while left:
        try:
            block = tap.draw(left)
        except TimeoutError as exc:
            raise TransferFailure(f"nothing arrived for {timeout_s:g} s") from exc
        except OSError as exc:
            raise TransferFailure("the connection was cut") from exc
        if not block:
            raise TransferFailure("the connection was cut")
        left -= len(block)
        yield block


class _Tap:
    """Takes big blocks from a socket: asks the system to wake us for a quarter of a MiB, not for each packet.

    A TLS socket gives one record at a time, whatever is asked for.
    """

    def __init__(self, source: socket.socket, timeout_s: float) -> None:
        self._source = source
        self._timeout_s = timeout_s
        self._is_plain = type(source) is socket.socket
        self._most = _BLOCK_BYTES if self._is_plain else _TLS_RECORD_BYTES
        self._least = 1
        self._may_wait_for_more = self._is_plain and hasattr(socket, "SO_RCVLOWAT")
        source.settimeout(timeout_s)

    def draw(self, left: int) -> bytes:
        """Return the next bytes, at most `left`, nothing at the end. Raises `OSError` and `TimeoutError`."""
        if self._may_wait_for_more:
            self._wait_for(min(left, _WAKE_BYTES))
        try:
            return self._source.recv(min(left, self._most))
        except TimeoutError:
            if self._least == 1:
                raise
            return self._draw_few(left)

    def _draw_few(self, left: int) -> bytes:
        """Return what is there although it is less than we waited for; from now on take what comes."""
        self._may_wait_for_more = False
        self._wait_for(1)
        self._source.settimeout(_LOOK_S)
        block = self._source.recv(min(left, self._most))
        self._source.settimeout(self._timeout_s)
        return block

    def _wait_for(self, least: int) -> None:
        if least != self._least:
            self._source.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)
            self._least = least
