"""A file server on loopback that misbehaves on request. Imitates what download servers and middleboxes do.

Real sockets, HTTP/1.1, one file for every path, or `files` by path (404 for others). Without a fault it
answers like a good server: `Range` with `If-Range` against a strong ETag, 206 with `Content-Range`, 416
behind the end. Faults are taken from a list, one per request; when the list is empty the server is good.
"""

from __future__ import annotations

import gzip
import re
import socket
import socketserver
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal

Kind = Literal[
    "good",
    "reset",  # RST after `at` bytes of the body
    "close",  # clean end of the connection after `at` bytes
    "stall",  # the socket stays open after `at` bytes, silent
    "trickle",  # after `at` bytes one byte at a time, never done
    "ignore-range",  # 200 with the whole file whatever was asked
    "wrong-range",  # 206 that starts `at` bytes beside what was asked
    "wrong-total",  # 206 of a file of another size
    "bare-206",  # 206 without Content-Range
    "other-etag",  # 206 for a file that has another ETag by now
    "changed",  # a new ETag, so If-Range fails and the answer is 200
    "no-etag",
    "short",  # Content-Length announces the file less `at` bytes
    "long",  # `at` bytes of rubbish behind a chunked body of the file
    "status",  # an error status
    "garbage",  # byte `at` of the file is flipped
    "html",  # a web page, status 200
    "redirect",  # 302 to `location`
    "chunked",  # no Content-Length
    "chunked-cut",  # the chunked body ends at `at` bytes without the last chunk
    "gzip",  # compressed although not asked for
    "hints",  # status 103 again and again, never an answer
    "slow-head",  # a header that grows by a byte at a time, never done
]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """How one request is answered; `at` counts bytes, see `Kind`."""

    kind: Kind = "good"
    at: int = 0
    status: int = 503
    retry_after: str = ""
    location: str = ""


GOOD = Fault()
_STALLS: Final = ("stall", "trickle", "hints", "slow-head")


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A request as it came in."""

    path: str
    headers: dict[str, str]


@dataclass
class FaultServer:
    """State of the server; `content` and `script` may be changed between requests."""

    content: bytes
    files: dict[str, bytes] = field(default_factory=dict)
    script: list[Fault] = field(default_factory=list)
    etag: str = '"v1"'
    seen: list[Seen] = field(default_factory=list)
    port: int = 0
    scheme: str = "http"
    on_block: Callable[[int], None] = lambda sent: None
    block_bytes: int = 1024
    released: threading.Event = field(default_factory=threading.Event)
    stalling: threading.Event = field(default_factory=threading.Event)

    def url(self, name: str = "engine.bin") -> str:
        """Address of the file; every path gives it."""
        return f"{self.scheme}://127.0.0.1:{self.port}/{name}"

    @property
    def will_stall(self) -> bool:
        """Whether one of the next answers has no end."""
        return any(fault.kind in _STALLS for fault in self.script)

    @property
    def ranges(self) -> list[str]:
        """The Range header of each request, in order, empty where there was none."""
        return [request.headers.get("range", "") for request in self.seen]


@contextmanager
def serving(content: bytes, *script: Fault, tls: ssl.SSLContext | None = None) -> Iterator[FaultServer]:
    """Run a server in threads of this process while the block runs, with https where `tls` is given."""
    state = FaultServer(content=content, script=list(script))

    class Handler(_Handler):
        server_state = state

    with _Server(("127.0.0.1", 0), Handler) as server:
        state.port = server.server_address[1]
        if tls is not None:
            state.scheme = "https"
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield state
        finally:
            state.released.set()
            server.shutdown()
            thread.join()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: clients of these tests go away in the middle of things."""


class _Handler(socketserver.StreamRequestHandler):
    server_state: FaultServer

    def handle(self) -> None:
        try:
            while request := self._read_request():
                state = self.server_state
                state.seen.append(request)
                fault = state.script.pop(0) if state.script else GOOD
                if not self._answer(request, fault):
                    return
        except OSError:
            return  # the client went away

    def _read_request(self) -> Seen | None:
        line = self.rfile.readline().decode("latin-1").split()
        if len(line) != 3:
            return None
        headers: dict[str, str] = {}
        while (row := self.rfile.readline().decode("latin-1").strip()) != "":
            name, _, value = row.partition(":")
            headers[name.strip().lower()] = value.strip()
        return Seen(path=line[1], headers=headers)

    def _answer(self, request: Seen, fault: Fault) -> bool:
        """Answer one request; return whether the connection goes on."""
        state = self.server_state
        if fault.kind == "changed":
            state.etag = f'"{len(state.seen)}"'
        if fault.kind == "status":
            extra = {"Retry-After": fault.retry_after} if fault.retry_after else {}
            return self._whole(fault.status, b"sorry", extra)
        if fault.kind == "redirect":
            return self._whole(302, b"", {"Location": fault.location})
        if fault.kind in ("hints", "slow-head"):
            return self._endless_head(fault.kind)
        if fault.kind == "html":
            page = b"<!DOCTYPE html><title>Please log in</title>"
            return self._whole(200, page, {"Content-Type": "text/html; charset=utf-8"})
        if fault.kind == "gzip":
            return self._whole(200, gzip.compress(state.content), {"Content-Encoding": "gzip"})
        return self._file(request, fault)

    def _whole(self, status: int, body: bytes, extra: dict[str, str]) -> bool:
        self._head(status, {"Content-Length": str(len(body)), **extra})
        self.wfile.write(body)
        return True

    def _endless_head(self, kind: Kind) -> bool:
        piece = b"HTTP/1.1 103 X\r\nLink: <x>\r\n\r\n" if kind == "hints" else b"y"
        self.wfile.write(b"" if kind == "hints" else b"HTTP/1.1 200 X\r\nSlow: ")
        while not self.server_state.released.wait(0.02):
            self.wfile.write(piece)
        return False

    def _file(self, request: Seen, fault: Fault) -> bool:
        state = self.server_state
        content, start, status = state.content, 0, 200
        if state.files:
            if request.path not in state.files:
                return self._whole(404, b"no such file", {})
            content = state.files[request.path]
        end = len(content)
        if fault.kind == "garbage" and content:
            at = fault.at % len(content)
            content = content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :]
        if fault.kind != "ignore-range" and (asked := self._asked(request)) is not None:
            if asked.start >= len(content):
                return self._whole(416, b"", {"Content-Range": f"bytes */{len(content)}"})
            start, end, status = asked.start, min(asked.stop, len(content)), 206
        return self._body(content, range(start, end), status, fault)

    def _asked(self, request: Seen) -> range | None:
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("range", ""))
        condition = request.headers.get("if-range", self.server_state.etag)
        if match is None or condition != self.server_state.etag:
            return None
        return range(int(match[1]), int(match[2]) + 1 if match[2] else 1 << 62)

    def _body(self, content: bytes, span: range, status: int, fault: Fault) -> bool:
        body = content[span.start : span.stop]
        headers = {"ETag": self.server_state.etag, "Accept-Ranges": "bytes"}
        if fault.kind == "no-etag":
            del headers["ETag"]
        if fault.kind == "other-etag":
            headers["ETag"] = '"other"'
        if status == 206 and fault.kind != "bare-206":
            headers["Content-Range"] = _content_range(content, span, fault)
        if fault.kind in ("chunked", "chunked-cut", "long"):
            self._head(status, {**headers, "Transfer-Encoding": "chunked"})
            return self._chunked(body, fault)
        if fault.kind == "short":
            body = body[: max(0, len(body) - fault.at)]
        self._head(status, {**headers, "Content-Length": str(len(body))})
        return self._plain(body, fault)

    def _plain(self, body: bytes, fault: Fault) -> bool:
        is_cut = fault.kind in ("reset", "close", "stall", "trickle")
        self._send(body[: fault.at] if is_cut else body)
        if fault.kind == "reset":
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.connection.close()
        elif fault.kind == "stall":
            self.server_state.stalling.set()
            self.server_state.released.wait()
        elif fault.kind == "trickle":
            for byte in body[fault.at :]:
                self.wfile.write(bytes([byte]))
                if self.server_state.released.wait(0.02):
                    break
        return not is_cut

    def _chunked(self, body: bytes, fault: Fault) -> bool:
        if fault.kind == "chunked-cut":
            body = body[: fault.at]
        if fault.kind == "long":
            body += b"?" * fault.at
        for at in range(0, len(body), self.server_state.block_bytes):
            block = body[at : at + self.server_state.block_bytes]
            self.wfile.write(b"%x\r\n%b\r\n" % (len(block), block))
        if fault.kind == "chunked-cut":
            return False
        self.wfile.write(b"0\r\n\r\n")
        return True

    def _send(self, body: bytes) -> None:
        for at in range(0, len(body), self.server_state.block_bytes):
            self.wfile.write(body[at : at + self.server_state.block_bytes])
            self.server_state.on_block(at)

    def _head(self, status: int, headers: dict[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        self.wfile.write("\r\n".join(lines).encode("latin-1"))


def _content_range(content: bytes, span: range, fault: Fault) -> str:
    shown = span.start + fault.at if fault.kind == "wrong-range" else span.start
    more = 7 if fault.kind == "wrong-total" else 0
    return f"bytes {shown}-{span.stop + more - 1}/{len(content) + more}"
