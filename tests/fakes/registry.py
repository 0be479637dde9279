"""A container registry on loopback. Imitates what the OCI distribution API answers to somebody who looks.

Manifests and blobs by digest, an anonymous token where `needs_token` is set, and redirects of blobs where
`redirects` is set, as large registries do.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opencoti.hashing import sha256_bytes

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
TOKEN = "an-anonymous-token"


def digest(data: bytes) -> str:
    return f"sha256:{sha256_bytes(data)}"


@dataclass
class FakeRegistry:
    """State of the registry; may be changed between requests."""

    manifests: dict[str, bytes] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    needs_token: bool = False
    redirects: bool = False
    status: int = 0
    port: int = 0
    seen: list[str] = field(default_factory=list)

    @property
    def reference(self) -> str:
        return f"127.0.0.1:{self.port}/owner/zig"

    def push(self, *layers: bytes) -> str:
        """Put an image of one platform there; return the digest of its manifest."""
        config = b"{}"
        for blob in (config, *layers):
            self.blobs[digest(blob)] = blob
        return self._put(
            {
                "schemaVersion": 2,
                "mediaType": OCI_MANIFEST,
                "config": {"digest": digest(config), "size": len(config)},
                "layers": [{"digest": digest(layer), "size": len(layer)} for layer in layers],
            }
        )

    def push_index(self, *manifests: str) -> str:
        """Put an index over images there; return its digest."""
        return self._put(
            {
                "schemaVersion": 2,
                "mediaType": OCI_INDEX,
                "manifests": [{"digest": name} for name in manifests],
            }
        )

    def _put(self, document: dict[str, Any]) -> str:
        data = json.dumps(document).encode()
        self.manifests[digest(data)] = data
        return digest(data)


@contextmanager
def serving_registry() -> Iterator[FakeRegistry]:
    """Run a registry in threads of this process while the block runs."""
    state = FakeRegistry()

    class Handler(_Handler):
        registry = state

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        state.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    registry: FakeRegistry
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        registry = self.registry
        registry.seen.append(f"{self.command} {self.path}")
        path = self.path.partition("?")[0]
        if path == "/token":
            self._send(200, json.dumps({"token": TOKEN}).encode())
        elif registry.status:
            self._send(registry.status, b"")
        elif registry.needs_token and self.headers.get("authorization") != f"Bearer {TOKEN}":
            realm = f'Bearer realm="http://127.0.0.1:{registry.port}/token",service="x",scope="pull"'
            self._send(401, b"{}", {"WWW-Authenticate": realm})
        elif path.startswith("/cdn/"):
            self._found(registry.blobs, path.removeprefix("/cdn/"))
        elif path.startswith("/v2/owner/zig/blobs/") and registry.redirects:
            name = path.rpartition("/")[2]
            self._send(307, b"", {"Location": f"/cdn/{name}"})
        elif path.startswith("/v2/owner/zig/blobs/"):
            self._found(registry.blobs, path.rpartition("/")[2])
        else:
            self._found(registry.manifests, path.removeprefix("/v2/owner/zig/manifests/"))

    def _found(self, store: dict[str, bytes], name: str) -> None:
        if name in store:
            self._send(200, store[name])
        else:
            self._send(404, b'{"errors": []}')

    def _send(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)
