"""A stand-in for the engine's HTTP side, in this process, over real sockets. Imitates llama-server's chat.

`ChatServer` counts tokens as words, keeps one prompt per slot and reports reuse from it, so that a session
can be tested without an engine. `raw_server` answers every request with given bytes, which need not be HTTP:
it stands for a server that lies.
"""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any, ClassVar


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that closes early is no news."""


@contextmanager
def _running(handler: type[socketserver.BaseRequestHandler]) -> Iterator[str]:
    with _Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def raw_server(answer: Callable[[], Iterable[bytes]]) -> Iterator[str]:
    """Answer every connection with the bytes of `answer()`, then close it."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1 << 20)
            try:
                for block in answer():
                    self.request.sendall(block)
            except OSError:
                return

    with _running(Handler) as url:
        yield url


@dataclass
class ChatServer:
    """State of the stand-in, and what it was asked."""

    total_slots: int = 2
    features: tuple[str, ...] = ()
    can_erase: bool = True
    status: int = 200
    render: Callable[[list[dict[str, Any]]], str] = lambda messages: "".join(
        f"<{item['role']}> {item['content']} " for item in messages
    )
    reply: str = "so it is"
    bodies: list[bytes] = field(default_factory=list)
    erased: list[int] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    slots: dict[int, list[str]] = field(default_factory=dict)

    def answer(self, body: dict[str, Any]) -> tuple[str, dict[str, int]]:
        """Return the reply and the counts, as an engine with a prompt cache would."""
        words = self.render(body["messages"]).split()
        slot = body.get("id_slot", 0)
        known = self.slots.get(slot, []) if body.get("cache_prompt", True) else []
        same = next((at for at, (a, b) in enumerate(zip(known, words, strict=False)) if a != b), None)
        cached = min(len(known), len(words) - 1) if same is None else same
        self.slots[slot] = words
        return self.reply, {"cache_n": cached, "prompt_n": len(words) - cached, "predicted_n": 3}

    @contextmanager
    def running(self) -> Iterator[str]:
        """Serve on a free port; yields the address."""

        class Handler(_ChatHandler):
            chat = self

        with _running(Handler) as url:
            yield url


class _ChatHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    chat: ClassVar[ChatServer]

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass

    def do_GET(self) -> None:
        if self.path == "/props":
            self._send({"total_slots": self.chat.total_slots, "opencoti": {"features": self.chat.features}})
        elif self.path == "/v1/models":
            self._send({"data": [{"id": "tiny"}]})
        else:
            self._send({"status": "ok"})

    def do_DELETE(self) -> None:
        self.chat.forgotten.append(self.path.removeprefix("/sessions/"))
        self._send({"error": {"message": "there is no such session"}}, status=404)

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.startswith("/slots/"):
            self._erase()
            return
        body = json.loads(raw)
        if self.path == "/apply-template":
            self._send({"prompt": self.chat.render(body["messages"])})
            return
        self.chat.bodies.append(raw)
        if self.chat.status != 200:
            self._send({"error": {"message": "as it was told"}}, status=self.chat.status)
            return
        text, timings = self.chat.answer(body)
        counts = {"timings": timings, **self._session(body, timings)}
        if body.get("stream"):
            self._stream(text, counts)
        else:
            choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            self._send({"choices": [choice], **counts})

    def _session(self, body: dict[str, Any], timings: dict[str, int]) -> dict[str, Any]:
        if "session_id" not in body or not self.chat.features:
            return {}
        counts = {"reused": timings["cache_n"], "reprocessed": timings["prompt_n"]}
        return {"session": {"id": body["session_id"], **counts, "restored_from": "slot"}}

    def _erase(self) -> None:
        if not self.chat.can_erase:
            self._send({"error": {"message": "start it with --slot-save-path"}}, status=501)
            return
        slot = int(self.path.split("/")[2].split("?")[0])
        self.chat.erased.append(slot)
        self.chat.slots.pop(slot, None)
        self._send({"id_slot": slot})

    def _stream(self, text: str, counts: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for word in text.split(" "):
            self._event({"choices": [{"delta": {"content": word + " "}}]})
        self._event({"choices": [{"delta": {}, "finish_reason": "stop"}]})
        self._event({"choices": [], **counts})
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def _event(self, document: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(document).encode() + b"\n\n")

    def _send(self, document: dict[str, Any], *, status: int = 200) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
