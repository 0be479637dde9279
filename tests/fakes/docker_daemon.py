"""A daemon that answers `GET /version` on a unix socket: imitates what a probe sees of Docker, Podman."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# What `curl --unix-socket /var/run/docker.sock http://d/version` printed, shortened.
DOCKER_20 = {
    "Platform": {"Name": ""},
    "Components": [{"Name": "Engine", "Version": "20.10.24+dfsg1", "Details": {"ApiVersion": "1.41"}}],
    "Version": "20.10.24+dfsg1",
    "ApiVersion": "1.41",
    "MinAPIVersion": "1.12",
    "Os": "linux",
    "Arch": "amd64",
}
# The form of Podman's answer, after its documentation of the compatible API.
PODMAN_4 = {
    "Components": [{"Name": "Podman Engine", "Version": "4.3.1"}],
    "Version": "4.3.1",
    "ApiVersion": "1.41",
}


@contextmanager
def version_daemon(path: Path, answer: Mapping[str, Any] | bytes) -> Iterator[str]:
    """Serve `answer` at `unix://path` while the block runs; bytes are sent as they are."""
    body = answer if isinstance(answer, bytes) else _http(json.dumps(answer).encode())

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline().strip():
                pass
            self.wfile.write(body)

    with socketserver.UnixStreamServer(str(path), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"unix://{path}"
        finally:
            server.shutdown()
            thread.join()


def _http(body: bytes) -> bytes:
    return b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
