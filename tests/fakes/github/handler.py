"""One connection of the fake GitHub: reads requests, answers them, and fails as it is told to."""

from __future__ import annotations

import hashlib
import json
import socket
import struct
from dataclasses import dataclass
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.fakes.github.answers import Answers
from tests.fakes.github.faults import Kind, Port
from tests.fakes.github.shapes import Match
from tests.fakes.github.state import RefusalError, Release

if TYPE_CHECKING:
    from tests.fakes.github.server import GitHub

_DOCS = "https://docs.github.com/rest"
_LIMITS = _DOCS + "/using-the-rest-api/rate-limits-for-the-rest-api"


@dataclass(frozen=True, kw_only=True)
class Logged:
    """A request that was answered, or broken off (status 0)."""

    port: Port
    method: str
    path: str
    operation: str
    status: int
    fault: Kind

    @property
    def is_write(self) -> bool:
        return self.method != "GET"


class _BrokenError(Exception):
    """The connection ends here."""


class Handler(BaseHTTPRequestHandler):
    github: GitHub
    port: Port
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is that of the base
        """Say nothing."""

    def do_GET(self) -> None:
        self._handle()

    do_POST = do_PATCH = do_DELETE = do_GET  # noqa: N815 - names that the base calls

    def _handle(self) -> None:
        self._is_read = False
        try:
            if self.port == "download":
                self._download()
            else:
                self._described()
        except (_BrokenError, OSError):
            self.close_connection = True

    # -- API and uploads -------------------------------------------------------------------------------

    def _described(self) -> None:
        parts = urlsplit(self.path)
        prefix = self.github.prefix if self.port == "api" else self.github.upload_prefix
        path = unquote(parts.path.removeprefix(prefix))
        match = self.github.shapes.match(self.command, path)
        if match is None or not parts.path.startswith(prefix):
            self.github.shapes.breaches.append(f"{self.command} {path} is not described, or not extracted")
            self._answer(404, {"message": "Not Found"}, "unknown", "none")
            return
        number, fault = self.github.next_call(self.port, match.id)
        self.github.on_call(number, "before")
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        if self.port == "upload":
            self._upload(match, query, fault, number)
        else:
            self._api(match, query, fault, number)
        self.github.on_call(number, "after")

    def _api(self, match: Match, query: dict[str, str], fault: Kind, number: int) -> None:
        body = self._json_body()
        self.github.shapes.check_request(match, query, self._kind(), body)
        if self._failed_before(match, fault):
            return
        with self.github.store.lock:
            status, data, headers = self._outcome(match, query, body or {})
        self._after(match, status, data, headers, fault)

    def _outcome(
        self, match: Match, query: dict[str, str], body: dict[str, Any]
    ) -> tuple[int, Any, dict[str, str]]:
        try:
            self._authorize(match)
            status, data, headers = Answers(self.github).answer(match, query, body, self.headers)
        except RefusalError as refusal:
            return _refused(refusal)
        if status < 300:
            self.github.shapes.check_answer(match, status, data)
        return status, data, headers

    def _authorize(self, match: Match) -> None:
        if self.headers.get("authorization", "").partition(" ")[2] != self.github.token:
            raise RefusalError(401, "Bad credentials")
        if match.values["owner"] + "/" + match.values["repo"] != self.github.repo:
            raise RefusalError(404, "Not Found")
        if self.command != "GET" and not self.github.store.can_write:
            raise RefusalError(403, "Resource not accessible by integration")

    def _upload(self, match: Match, query: dict[str, str], fault: Kind, number: int) -> None:
        self.github.shapes.check_request(match, query, self._kind(), None)
        if self._failed_before(match, fault):
            return
        store, length = self.github.store, int(self.headers.get("content-length", "-1"))
        if length < 0:
            self.github.shapes.breaches.append("an upload without Content-Length")
        with store.lock:
            try:
                self._authorize(match)
                release = store.release(int(match.values["release_id"]))
                self._require_free(release, query["name"])
            except RefusalError as refusal:
                self._drain(length)
                status, data, headers = _refused(refusal)
                self._after(match, status, data, headers, "none")
                return
        data_sent, digest, done = self._body(length, fault, number)
        with store.lock:
            self._store(match, release, query["name"], fault, (data_sent, digest, done, length))

    def _require_free(self, release: Release, name: str) -> None:
        probe = self.github.store.add_asset(release, name, b"", 1, "")
        del release.assets[probe.asset_id]

    def _body(self, length: int, fault: Kind, number: int) -> tuple[bytes, str, int]:
        """Read the body, or a part of it; return bytes, SHA-256 and count."""
        digest, kept, done = hashlib.sha256(), bytearray(), 0
        stop = length // 2 if fault in ("middle", "middle-clean") else length
        if fault == "slow":
            self.github.released.wait()
            raise _BrokenError
        told = False
        while done < stop:
            block = self.rfile.read(min(1 << 20, stop - done))
            if not block:
                break
            done += len(block)
            digest.update(block)
            if self.github.store.keep_bytes:
                kept += block
            if not told:
                told = True
                self.github.on_call(number, "middle")
        self._is_read = done == length
        return bytes(kept), digest.hexdigest(), done

    def _store(
        self, match: Match, release: Release, name: str, fault: Kind, body: tuple[bytes, str, int, int]
    ) -> None:
        data, sha256, done, length = body
        store = self.github.store
        if fault == "middle-clean":
            self._note(match, 0, fault)
            raise _BrokenError
        if done < length:  # a client that died, or a fault: what stays is a placeholder
            asset = store.add_asset(release, name, b"", max(length, 1), "")
            self._note(match, 0, fault)
            raise _BrokenError
        try:
            asset = store.add_asset(release, name, data, length, sha256)
        except RefusalError as refusal:
            status, answer, headers = _refused(refusal)
            self._after(match, status, answer, headers, "none")
            return
        if fault == "starter":
            self._answer(502, None, match.id, fault)
        elif fault == "late":
            asset.whole_at = self.github.clock.at + store.late_s
            self._answer(502, None, match.id, fault)
        else:
            asset.state = "uploaded"
            if fault == "short" and length > 1:
                asset.size, asset.data = length // 2, data[: length // 2]
                asset.sha256 = hashlib.sha256(asset.data).hexdigest()
                fault = "502-done"
            described = Answers(self.github).asset(release, asset)
            self.github.shapes.check_answer(match, 201, described)
            self._after(match, 201, described, {}, fault)

    # -- downloads -------------------------------------------------------------------------------------

    def _download(self) -> None:
        number, fault = self.github.next_call("download", "download")
        self.github.on_call(number, "before")
        if self.headers.get("authorization"):
            self.github.shapes.breaches.append("the token went to the host of downloads")
        with self.github.store.lock:
            data = Answers(self.github).file(unquote(urlsplit(self.path).path))
        if fault == "reset":
            self._note(None, 0, fault)
            self._reset()
        status = 404 if data is None else 502 if fault == "500" else 200
        body = data if status == 200 and data is not None else b"no such file"
        self._note(None, status, fault)
        self._send(status, body, {"Content-Type": "application/octet-stream"}, is_cut=fault == "cut")
        self.github.on_call(number, "after")

    # -- faults ----------------------------------------------------------------------------------------

    def _failed_before(self, match: Match, fault: Kind) -> bool:
        """Fail as a call that has no effect; tell whether that was the fault."""
        clock = self.github.clock
        if fault == "reset":
            self._note(match, 0, fault)
            self._reset()
        if fault == "stall":
            self._note(match, 0, fault)
            self.github.released.wait()
            raise _BrokenError
        secondary = {"message": "You have exceeded a secondary rate limit.", "documentation_url": _LIMITS}
        answers: dict[Kind, tuple[int, Any, dict[str, str]]] = {
            "500": (500, None, {}),
            "secondary-403": (403, secondary, {"Retry-After": "7"}),
            "secondary-429": (429, secondary, {"Retry-After": "11"}),
            "secondary-silent": (403, secondary, {}),
            "primary": (
                403,
                {"message": "API rate limit exceeded", "documentation_url": _DOCS},
                {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(int(clock.now()) + 90)},
            ),
        }
        if fault not in answers:
            return False
        status, data, headers = answers[fault]
        self._drain(int(self.headers.get("content-length", "0")))
        self._answer(status, data, match.id, fault, headers)
        return True

    def _after(self, match: Match, status: int, data: Any, headers: dict[str, str], fault: Kind) -> None:
        """Answer, or lose the answer."""
        if fault == "502-done":
            self._answer(502, None, match.id, fault)
        elif fault == "reset-done":
            self._note(match, 0, fault)
            self._reset()
        elif fault == "html":
            self._note(match, 200, fault)
            self._send(200, b"<html>please log in</html>", {"Content-Type": "text/html"})
        else:
            self._answer(status, data, match.id, fault, headers, is_cut=fault == "cut")

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        raise _BrokenError

    # -- bytes -----------------------------------------------------------------------------------------

    def _kind(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0]

    def _json_body(self) -> dict[str, Any] | None:
        length = int(self.headers.get("content-length", "0"))
        data = self.rfile.read(length)
        if len(data) < length:
            raise _BrokenError  # the client died while it sent this
        self._is_read = True
        return json.loads(data) if data else None

    def _drain(self, left: int) -> None:
        while not self._is_read and left > 0 and (block := self.rfile.read(min(1 << 20, left))):
            left -= len(block)
        self._is_read = True

    def _answer(
        self,
        status: int,
        data: Any,
        operation: str,
        fault: Kind,
        headers: dict[str, str] | None = None,
        *,
        is_cut: bool = False,
    ) -> None:
        self._note_as(operation, status, fault)
        body = (
            b""
            if status in (204, 302)
            else b"<html>oops</html>"
            if data is None
            else json.dumps(data).encode()
        )
        kind = "text/html" if data is None else "application/json; charset=utf-8"
        self._send(status, body, {"Content-Type": kind, **(headers or {})}, is_cut=is_cut)

    def _send(self, status: int, body: bytes, headers: dict[str, str], *, is_cut: bool = False) -> None:
        self.send_response_only(status)
        self.send_header("Date", formatdate(self.github.clock.now(), usegmt=True))
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if is_cut else body)
        if is_cut and len(body) > 1:
            self.wfile.flush()
            raise _BrokenError

    def _note(self, match: Match | None, status: int, fault: Kind) -> None:
        self._note_as("download" if match is None else match.id, status, fault)

    def _note_as(self, operation: str, status: int, fault: Kind) -> None:
        self.github.log.append(
            Logged(
                port=self.port,
                method=self.command,
                path=self.path,
                operation=operation,
                status=status,
                fault=fault,
            )
        )


def _refused(refusal: RefusalError) -> tuple[int, Any, dict[str, str]]:
    data: dict[str, Any] = {"message": refusal.message, "documentation_url": _DOCS}
    if refusal.errors:
        data["errors"] = list(refusal.errors)
    headers = {"X-RateLimit-Remaining": "4999"}
    if refusal.status == 403:
        headers |= {"X-Accepted-GitHub-Permissions": "contents=write", "X-OAuth-Scopes": "read:org"}
    return refusal.status, data, headers
