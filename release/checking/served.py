"""A folder of releases given out on loopback while a block runs, since the client asks addresses only."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO, Final

from opencoti.errors import ConfigError
from opencoti.fetch.addresses import require_allowed
from opencoti.fetch.settings import Settings

_RANGE: Final = re.compile(r"bytes=([0-9]{1,18})-([0-9]{0,18})")
_BLOCK_BYTES: Final = 1 << 20


class _Handler(SimpleHTTPRequestHandler):
    """Gives out files and ranges of them, and no lists of folders; says nothing on standard error."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is that of the base
        """Say nothing."""

    def list_directory(self, path: Any) -> None:
        """Answer as for a file that is not there."""
        self.send_error(404)

    def do_GET(self) -> None:
        """Answer with the file, or with the range that was asked for."""
        match = _RANGE.fullmatch(self.headers.get("range", ""))
        path = Path(self.translate_path(self.path))
        if match is None or not path.is_file():
            super().do_GET()
            return
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            first = int(match[1])
            last = min(int(match[2] or size), size - 1)
            if first > last:
                self.send_error(416)
                return
            self._send_range(file, first, last, size)

    def _send_range(self, file: BinaryIO, first: int, last: int, size: int) -> None:
        self.send_response(206)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.send_header("Content-Length", str(last - first + 1))
        self.end_headers()
        file.seek(first)
        left = last - first + 1
        while left and (block := file.read(min(left, _BLOCK_BYTES))):
            self.wfile.write(block)
            left -= len(block)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client may go away before the end."""


@contextmanager
def base_address(words: str | None, settings: Settings) -> Iterator[str]:
    """Yield the base address that `--from` means: the one of the settings, an address, or a folder.

    Raises:
        ConfigError: `address-refused`, `release-folder-missing`.
    """
    if words is None or words == "github":
        yield settings.base_url
    elif words.startswith("dir:"):
        with serve_folder(Path(words.removeprefix("dir:"))) as url:
            yield url
    else:
        yield require_allowed(words, "--from")


@contextmanager
def serve_folder(folder: Path) -> Iterator[str]:
    """Serve a folder on a free port of 127.0.0.1 while the block runs; yield the address.

    Raises:
        ConfigError: `release-folder-missing`.
    """
    if not folder.is_dir():
        raise ConfigError(
            "release-folder-missing",
            f"there is no folder {folder}",
            hint="name the folder that was given to `publish --to dir:PATH`",
        )
    with _Server(("127.0.0.1", 0), partial(_Handler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
