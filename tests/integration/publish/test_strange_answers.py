"""What answers in place of GitHub at an address that was set wrongly: named, and never given the token."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from opencoti.errors import NetworkError
from release.remote.github import GitHubRemote
from release.remote.model import PassingError
from release.remote.settings import GitHubSettings
from tests.unit.release.samples import REPO


@contextmanager
def answering(status: int, body: bytes, location: str = "") -> Iterator[tuple[GitHubRemote, list[str]]]:
    """Serve one answer to everything; yield a remote that asks there, and the paths that were asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base's
            """Say nothing."""

        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            if location:
                self.send_header("Location", location)
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            with GitHubRemote(REPO, GitHubSettings(token="secret", api_url=url)) as remote:
                yield remote, asked
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("body", [b"[" * 100_000, b"<html>", b"7", b'[1, null, {"id": "x"}]'])
def test_an_answer_of_somebody_else_may_pass(body: bytes) -> None:
    with answering(200, body) as (remote, _), pytest.raises(PassingError):
        remote.releases()


@pytest.mark.parametrize("location", ["https://example.invalid/repos", "/elsewhere"])
def test_an_address_that_leads_to_another_host_is_not_followed(location: str) -> None:
    with answering(301, b"", location) as (remote, asked), pytest.raises(NetworkError) as caught:
        remote.releases()
    assert caught.value.error_id == "github-redirected"
    assert "GITHUB_API_URL" in caught.value.hint
    assert len(asked) == 1
