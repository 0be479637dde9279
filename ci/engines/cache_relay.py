"""The shared storage of the compiler cache, for stages that have no network.

A stage sees one unix socket and nothing else. Behind it stands this process, which speaks the part of the
Redis protocol that ccache uses (GET, EXISTS, SET, DEL on its own keys) and passes it on to a Redis or an HTTP
server. So a build step reaches neither the network nor anything else on that server, and never sees its
password. The price is one more copy of each object in this process.

A storage that fails slows nothing down: after a few failures in a row it is not asked any more.
"""

from __future__ import annotations

import re
import socketserver
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final, cast

from ci.engines.cache_stores import RemoteStorage, Store, StoreError, open_store

SOCKET_NAME: Final = "storage.sock"
_KEY: Final = re.compile(rb"ccache:[0-9A-Za-z_-]{8,120}")
_MAX_VALUE_BYTES: Final = 1 << 30
_MAX_WORDS: Final = 16
_FAILURES_IN_A_ROW: Final = 3
_OK: Final = b"+OK\r\n"


class CacheRelay:
    """A running relay; `cache_relay` starts and ends it."""

    def __init__(self, storage: RemoteStorage) -> None:
        self.storage = storage
        self.failures = 0
        self._in_a_row = 0
        self._lock = threading.Lock()

    @property
    def is_given_up(self) -> bool:
        """Whether the storage failed so often that it is not asked any more."""
        return self._in_a_row >= _FAILURES_IN_A_ROW

    def count(self, *, is_failure: bool) -> None:
        """Take note of how a request ended."""
        with self._lock:
            self.failures += is_failure
            self._in_a_row = self._in_a_row + 1 if is_failure else 0


@contextmanager
def cache_relay(storage: RemoteStorage) -> Iterator[tuple[CacheRelay, Path]]:
    """Serve a storage at `SOCKET_NAME` in a folder of its own while the block runs."""
    relay = CacheRelay(storage)

    class Handler(_Connection):
        owner = relay

    # Short, since the path of a socket may have some hundred characters only.
    with tempfile.TemporaryDirectory(prefix="opencoti-cc-") as name:
        folder = Path(name)
        with _Server(str(folder / SOCKET_NAME), Handler) as server:
            thread = threading.Thread(
                target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
            )
            thread.start()
            try:
                yield relay, folder
            finally:
                server.shutdown()
                thread.join()


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128


class _Connection(socketserver.StreamRequestHandler):
    """One connection of one ccache process."""

    owner: CacheRelay

    def handle(self) -> None:
        """Answer commands until the other side ends or says something that is no command."""
        store: Store | None = None
        try:
            while (words := read_command(cast("IO[bytes]", self.rfile))) is not None:
                if store is None and not self.owner.is_given_up:
                    store = open_store(self.owner.storage)
                self.wfile.write(self._answer(words, store))
        except (ValueError, OSError):
            return
        finally:
            if store is not None:
                store.close()

    def _answer(self, words: list[bytes], store: Store | None) -> bytes:
        name, arguments = words[0].upper(), words[1:]
        # The start of a conversation; what is chosen here is ours to choose.
        if name in {b"AUTH", b"SELECT", b"PING", b"CLIENT"}:
            return _OK
        if not arguments or not _KEY.fullmatch(arguments[0]):
            return b"-ERR not a key of the compiler cache\r\n"
        if store is None or self.owner.is_given_up:
            return b"-ERR the storage does not work\r\n"
        try:
            answer = _ask(store, name, arguments, is_read_only=self.owner.storage.is_read_only)
        except StoreError as exc:
            self.owner.count(is_failure=True)
            return f"-ERR {exc}\r\n".encode()
        self.owner.count(is_failure=False)
        return answer


def _ask(store: Store, name: bytes, arguments: list[bytes], *, is_read_only: bool) -> bytes:
    key = arguments[0].decode("ascii").removeprefix("ccache:")
    if name == b"GET" and len(arguments) == 1:
        value = store.get(key)
        return b"$-1\r\n" if value is None else b"$%d\r\n%b\r\n" % (len(value), value)
    if name == b"EXISTS" and len(arguments) == 1:
        return b":%d\r\n" % store.has(key)
    if name == b"SET" and len(arguments) == 2:
        if not is_read_only:
            store.put(key, arguments[1])
        return _OK
    if name == b"DEL" and len(arguments) == 1:
        return b":%d\r\n" % (0 if is_read_only else store.remove(key))
    return b"-ERR not a command of the compiler cache\r\n"


def read_command(file: IO[bytes]) -> list[bytes] | None:
    """Read one command, a list of byte strings; None at the end.

    Raises:
        ValueError: it is no command, or too large.
    """
    line = file.readline(64)
    if not line:
        return None
    count = _number(line, b"*")
    if not 1 <= count <= _MAX_WORDS:
        raise ValueError("a command of no length")
    words = []
    for _ in range(count):
        size = _number(file.readline(64), b"$")
        if not 0 <= size <= _MAX_VALUE_BYTES:
            raise ValueError("a word of no length")
        word = file.read(size + 2)
        if len(word) != size + 2 or not word.endswith(b"\r\n"):
            raise ValueError("a word without its end")
        words.append(word[:-2])
    return words


def _number(line: bytes, kind: bytes) -> int:
    if not line.startswith(kind) or not line.endswith(b"\r\n"):
        raise ValueError("not the start of a command")
    return int(line[1:-2])
