"""A fake GitHub on loopback: API, uploads and downloads on a port of their own each.

Imitates what a publisher meets, faults included. Every request, and every answer that is a success, is
compared with GitHub's own description (`shapes`). Say `GitHub(...)` and use it as a `with` block.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from types import TracebackType

from tests.fakes.github.faults import Call, Decide, Kind, Port, no_faults
from tests.fakes.github.handler import Handler, Logged
from tests.fakes.github.shapes import Shapes
from tests.fakes.github.state import FakeClock, Store

TOKEN = "ghs_" + "Zx9" * 12


@dataclass
class GitHub:
    """The three servers and what they share.

    Attributes:
        decide: which fault a call meets.
        prefix: path before everything of the API, `/api/v3` on Enterprise.
        on_call: told of each call: its number and `before`, `middle` (uploads) or `after`.
    """

    repo: str = "mann1x/opencoti"
    decide: Decide = no_faults
    prefix: str = ""
    upload_prefix: str = ""
    token: str = TOKEN
    clock: FakeClock = field(default_factory=FakeClock)
    on_call: Callable[[int, str], None] = lambda number, phase: None
    log: list[Logged] = field(default_factory=list)
    shapes: Shapes = field(default_factory=Shapes)
    store: Store = field(init=False)
    released: threading.Event = field(default_factory=threading.Event)
    calls: int = 0
    _servers: dict[Port, ThreadingHTTPServer] = field(default_factory=dict)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = Store(repo=self.repo, clock=self.clock)

    def __enter__(self) -> GitHub:
        ports: tuple[Port, ...] = ("api", "upload", "download")
        for port in ports:
            handler = type("Bound", (Handler,), {"github": self, "port": port})
            server = _Server(("127.0.0.1", 0), handler)
            self._servers[port] = server
            thread = threading.Thread(
                target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
            )
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.released.set()
        for server in self._servers.values():
            server.shutdown()
            server.server_close()
        for thread in self._threads:
            thread.join()

    def url(self, port: Port) -> str:
        return f"http://127.0.0.1:{self._servers[port].server_address[1]}"

    @property
    def api_url(self) -> str:
        return self.url("api") + self.prefix

    @property
    def upload_url(self) -> str:
        return self.url("upload") + self.upload_prefix

    @property
    def environ(self) -> dict[str, str]:
        """What a process needs to work with this GitHub."""
        return {
            "GITHUB_TOKEN": self.token,
            "GITHUB_API_URL": self.api_url,
            "GITHUB_SERVER_URL": self.url("download"),
        }

    @property
    def writes(self) -> list[Logged]:
        return [item for item in self.log if item.is_write]

    def next_call(self, port: Port, operation: str) -> tuple[int, Kind]:
        with self.store.lock:
            self.calls += 1
            number = self.calls
            return number, self.decide(Call(number=number, port=port, operation=operation))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: clients of these tests are killed in the middle of things."""
