"""A file server on loopback that speaks HTTP/2 over TLS, one file for every path, with ranges.

Imitates what a CDN offers by ALPN. Answers to several requests of one connection are sent in turns, as far as
the client's flow control allows. Protocol by the `h2` package.
"""

from __future__ import annotations

import re
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, RequestReceived
from h2.exceptions import ProtocolError

_BLOCK_BYTES = 16_384


@dataclass
class H2Server:
    """State of the server: what it gives, and what it was asked for."""

    content: bytes
    port: int = 0
    connections: int = 0
    ranges: list[str] = field(default_factory=list)
    excess: list[int] = field(default_factory=list)
    """By how many bytes the next bodies are longer (or, below 0, shorter) than promised."""
    status: str = "200"
    empty: int = 0
    """How many of the next bodies are empty blocks without end."""

    @property
    def will_stall(self) -> bool:
        """Whether one of the next answers has no end."""
        return self.empty > 0

    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}/engine.bin"


@contextmanager
def serving_h2(content: bytes, certificate: str) -> Iterator[H2Server]:
    """Run a server in threads while the block runs; `certificate` holds the chain and the key."""
    state = H2Server(content=content)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    context.set_alpn_protocols(["h2"])

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError, ProtocolError), context.wrap_socket(self.request, server_side=True) as tls:
                state.connections += 1
                _Connection(tls, state).serve()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        state.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()


class _Connection:
    def __init__(self, link: socket.socket, state: H2Server) -> None:
        self._link = link
        self._state = state
        self._h2 = H2Connection(H2Configuration(client_side=False))
        self._bodies: dict[int, memoryview] = {}

    def serve(self) -> None:
        self._h2.initiate_connection()
        self._flush()
        while data := self._link.recv(65_536):
            for event in self._h2.receive_data(data):
                if isinstance(event, RequestReceived):
                    self._answer(event)
                elif isinstance(event, ConnectionTerminated):
                    return
            self._pump()

    def _answer(self, event: RequestReceived) -> None:
        asked = dict(event.headers).get(b"range", b"").decode()
        self._state.ranges.append(asked)
        content, headers = self._state.content, [(":status", self._state.status), ("etag", '"1"')]
        start, end = 0, len(content)
        if match := re.fullmatch(r"bytes=(\d+)-(\d*)", asked):
            start, end = int(match[1]), int(match[2]) + 1 if match[2] else end
            headers = [(":status", "206"), ("content-range", f"bytes {start}-{end - 1}/{len(content)}")]
        self._h2.send_headers(event.stream_id, [*headers, ("content-length", str(end - start))])
        if self._state.empty:
            self._state.empty -= 1
            self._send_nothing(event.stream_id)
            return
        excess = self._state.excess.pop(0) if self._state.excess else 0
        body = content[start:end] + bytes(max(0, excess))
        self._bodies[event.stream_id] = memoryview(body)[: len(body) + min(0, excess)]

    def _send_nothing(self, stream: int) -> None:
        """Send empty blocks until there is another request; the client need not say that it gave up."""
        self._link.settimeout(0.01)
        while True:
            self._h2.send_data(stream, b"")
            self._flush()
            with suppress(TimeoutError):
                if not (data := self._link.recv(65_536)):
                    raise ConnectionResetError
                for event in self._h2.receive_data(data):
                    if isinstance(event, RequestReceived):
                        self._link.settimeout(None)
                        self._answer(event)
                        return

    def _pump(self) -> None:
        """Send a block of each body in turn until the client takes no more."""
        is_moving = True
        while is_moving:
            is_moving = False
            for stream, body in list(self._bodies.items()):
                count = min(_BLOCK_BYTES, len(body), self._h2.local_flow_control_window(stream))
                if count:
                    self._h2.send_data(stream, bytes(body[:count]))
                    self._bodies[stream] = body[count:]
                    is_moving = True
                if not self._bodies[stream]:
                    self._h2.end_stream(stream)
                    del self._bodies[stream]
            self._flush()

    def _flush(self) -> None:
        self._link.sendall(self._h2.data_to_send())
