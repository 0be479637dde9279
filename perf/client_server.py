"""Replays one recorded answer on loopback, event by event, so that two clients read the very same bytes.

Runs as a process of its own (`python -m perf.client_server FILE`), prints its port, and ends when its
standard input does, so that it never outlives the bench. The path's first part is the pause between events
in microseconds: 0 sends them in one go, more lets each arrive alone, as an engine's tokens do.
"""

from __future__ import annotations

import argparse
import socket
import socketserver
import sys
import threading
import time
from pathlib import Path

_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    events: list[bytes]

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: clients go away in the middle of things."""


class _Handler(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while line := self.rfile.readline():
            length = 0
            while header := self.rfile.readline().strip():
                name, _, value = header.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            self.rfile.read(length)
            self._replay(int(line.split()[1].split(b"/")[1]))

    def _replay(self, pause_us: int) -> None:
        chunks = [b"%x\r\n%s\r\n" % (len(event), event) for event in self.server.events]
        if not pause_us:
            self.connection.sendall(_HEAD + b"".join(chunks) + b"0\r\n\r\n")
            return
        self.connection.sendall(_HEAD)
        for chunk in chunks:
            self.connection.sendall(chunk)
            time.sleep(pause_us / 1e6)
        self.connection.sendall(b"0\r\n\r\n")


def events_of(stream: bytes) -> list[bytes]:
    """Cut a recorded stream into its events."""
    return [event + b"\n\n" for event in stream.split(b"\n\n") if event]


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recording", type=Path)
    args = parser.parse_args()
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.events = events_of(args.recording.read_bytes())
        threading.Thread(target=server.serve_forever, daemon=True).start()
        sys.stdout.write(f"{server.server_address[1]}\n")
        sys.stdout.flush()
        sys.stdin.read()
        server.shutdown()


if __name__ == "__main__":
    main()
