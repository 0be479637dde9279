"""A file server on loopback for benches: `sendfile`, ranges, keep-alive; latency and a speed limit if wanted.

Runs as a process of its own (`python -m perf.file_server FOLDER`), prints its port, and ends when its
standard input does, so that it never outlives the bench.
"""

from __future__ import annotations

import argparse
import os
import re
import socketserver
import sys
import threading
import time
from pathlib import Path

_RANGE = re.compile(rb"(?i)range: *bytes=(\d+)-(\d*)")
_SLICE_BYTES = 1 << 20


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 64
    folder: Path
    delay_s: float
    bytes_per_s: float

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: clients go away in the middle of things."""


class _Handler(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        while line := self.rfile.readline():
            asked: re.Match[bytes] | None = None
            while header := self.rfile.readline().strip():
                asked = asked or _RANGE.match(header)
            self._answer(line.split()[1].decode("latin-1"), asked)

    def _answer(self, path: str, asked: re.Match[bytes] | None) -> None:
        time.sleep(self.server.delay_s)
        try:
            handle = os.open(self.server.folder / Path(path).name, os.O_RDONLY)
        except OSError:
            self.wfile.write(b"HTTP/1.1 404 Absent\r\nContent-Length: 0\r\n\r\n")
            return
        try:
            size = os.fstat(handle).st_size
            start = int(asked[1]) if asked else 0
            end = min(int(asked[2]) + 1, size) if asked and asked[2] else size
            place = f"Content-Range: bytes {start}-{end - 1}/{size}\r\n" if asked else ""
            status = "206 Partial Content" if asked else "200 OK"
            head = f'HTTP/1.1 {status}\r\nETag: "1"\r\nAccept-Ranges: bytes\r\n{place}'
            self.wfile.write(f"{head}Content-Length: {end - start}\r\n\r\n".encode())
            self._send(handle, start, end)
        finally:
            os.close(handle)

    def _send(self, handle: int, start: int, end: int) -> None:
        rate = self.server.bytes_per_s
        most = min(_SLICE_BYTES, max(1, int(rate / 20))) if rate else _SLICE_BYTES
        while start < end:
            sent = os.sendfile(self.connection.fileno(), handle, start, min(most, end - start))
            start += sent
            if rate:
                time.sleep(sent / rate)


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--delay-s", type=float, default=0.0, help="before each answer")
    parser.add_argument("--bytes-per-s", type=float, default=0.0, help="limit of each connection")
    args = parser.parse_args()
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.folder, server.delay_s, server.bytes_per_s = args.folder, args.delay_s, args.bytes_per_s
        threading.Thread(target=server.serve_forever, daemon=True).start()
        sys.stdout.write(f"{server.server_address[1]}\n")
        sys.stdout.flush()
        sys.stdin.read()
        server.shutdown()


if __name__ == "__main__":
    main()
