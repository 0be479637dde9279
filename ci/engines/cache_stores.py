"""The servers that a shared compiler cache can lie on: Redis, or an HTTP server with GET, PUT and DELETE."""

from __future__ import annotations

import base64
import http.client
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, Final, Protocol, cast
from urllib.parse import unquote, urlsplit

from opencoti.errors import ConfigError

REMOTE_VARIABLE: Final = "OPENCOTI_CCACHE_REMOTE"
_READ_ONLY: Final = "|read-only"
_TIMEOUT_S: Final = 10.0
_PORTS: Final = {"redis": 6379, "http": 80, "https": 443}


class StoreError(Exception):
    """A server did not do what it was asked to. The text holds no secret."""


@dataclass(frozen=True, kw_only=True)
class RemoteStorage:
    """Where a shared compiler cache lies. The password is in no text made from it."""

    scheme: str
    host: str
    port: int
    path: str = ""
    user: str = ""
    password: str = field(default="", repr=False)
    is_read_only: bool = False

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}{self.path}"

    @classmethod
    def from_environment(cls, env: Mapping[str, str] | None = None) -> RemoteStorage | None:
        """Read `OPENCOTI_CCACHE_REMOTE`: `redis://[[user:]password@]host[:port][/db]`, `http[s]://…`.

        `|read-only` at the end takes objects and leaves none.

        Raises:
            ConfigError: `ccache-remote`, it is none of these.
        """
        text = (os.environ if env is None else env).get(REMOTE_VARIABLE, "")
        if not text:
            return None
        address = text.removesuffix(_READ_ONLY)
        try:
            parts = urlsplit(address)
            port = parts.port or _PORTS[parts.scheme]
        except (ValueError, KeyError):
            raise _malformed() from None
        database = parts.path.strip("/")
        if not parts.hostname or (parts.scheme == "redis" and database and not database.isdecimal()):
            raise _malformed()
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        if parts.scheme == "redis" and user and parts.password is None:
            # As ccache reads it: a single word before the @ is the password.
            user, password = "", user
        return cls(
            scheme=parts.scheme,
            host=parts.hostname,
            port=port,
            path=parts.path.rstrip("/"),
            user=user,
            password=password,
            is_read_only=text.endswith(_READ_ONLY),
        )


class Store(Protocol):
    """One connection to a storage. Every method raises `StoreError`."""

    def get(self, key: str) -> bytes | None:
        """Return a value, None if there is none."""

    def has(self, key: str) -> bool:
        """Tell whether there is a value."""

    def put(self, key: str, value: bytes) -> None:
        """Store a value."""

    def remove(self, key: str) -> bool:
        """Remove a value; tell whether there was one."""

    def close(self) -> None:
        """Close the connection."""


def open_store(storage: RemoteStorage) -> Store:
    """Return a store that connects at the first call."""
    return RedisStore(storage) if storage.scheme == "redis" else HttpStore(storage)


class RedisStore:
    """Values under the keys that ccache itself uses on a Redis."""

    def __init__(self, storage: RemoteStorage) -> None:
        self._storage = storage
        self._file: IO[bytes] | None = None

    def get(self, key: str) -> bytes | None:
        """See `Store.get`."""
        answer = self._call(b"GET", f"ccache:{key}".encode())
        return answer if isinstance(answer, bytes) else None

    def has(self, key: str) -> bool:
        """See `Store.has`."""
        return self._call(b"EXISTS", f"ccache:{key}".encode()) == 1

    def put(self, key: str, value: bytes) -> None:
        """See `Store.put`."""
        self._call(b"SET", f"ccache:{key}".encode(), value)

    def remove(self, key: str) -> bool:
        """See `Store.remove`."""
        return self._call(b"DEL", f"ccache:{key}".encode()) == 1

    def close(self) -> None:
        """See `Store.close`."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _call(self, *words: bytes) -> bytes | int | None:
        try:
            file = self._file or self._connect()
            return _exchange(file, words)
        except (OSError, ValueError) as exc:
            self.close()
            raise StoreError(f"{self._storage}: {type(exc).__name__}") from exc

    def _connect(self) -> IO[bytes]:
        storage = self._storage
        with socket.create_connection((storage.host, storage.port), timeout=_TIMEOUT_S) as connection:
            # The file keeps the socket open when the block ends.
            file = self._file = cast("IO[bytes]", connection.makefile("rwb"))
        if storage.password:
            words = (storage.user, storage.password) if storage.user else (storage.password,)
            _exchange(file, (b"AUTH", *(word.encode() for word in words)))
        if database := storage.path.strip("/"):
            _exchange(file, (b"SELECT", database.encode()))
        return file


class HttpStore:
    """Values at `<address>/<2 digits>/<rest of the key>`, as ccache itself lays them out."""

    def __init__(self, storage: RemoteStorage) -> None:
        self._storage = storage
        made = http.client.HTTPSConnection if storage.scheme == "https" else http.client.HTTPConnection
        self._connection = made(storage.host, storage.port, timeout=_TIMEOUT_S)
        secret = base64.b64encode(f"{storage.user}:{storage.password}".encode()).decode("ascii")
        self._headers = {"Authorization": f"Basic {secret}"} if storage.user else {}

    def get(self, key: str) -> bytes | None:
        """See `Store.get`."""
        status, body = self._call("GET", key)
        return body if status == http.HTTPStatus.OK else None

    def has(self, key: str) -> bool:
        """See `Store.has`."""
        return self._call("HEAD", key)[0] == http.HTTPStatus.OK

    def put(self, key: str, value: bytes) -> None:
        """See `Store.put`."""
        self._call("PUT", key, value)

    def remove(self, key: str) -> bool:
        """See `Store.remove`."""
        return self._call("DELETE", key)[0] != http.HTTPStatus.NOT_FOUND

    def close(self) -> None:
        """See `Store.close`."""
        self._connection.close()

    def _call(self, method: str, key: str, body: bytes | None = None) -> tuple[int, bytes]:
        try:
            self._connection.request(
                method, f"{self._storage.path}/{key[:2]}/{key[2:]}", body=body, headers=self._headers
            )
            response = self._connection.getresponse()
            data = response.read()
        except (OSError, http.client.HTTPException) as exc:
            self._connection.close()
            raise StoreError(f"{self._storage}: {type(exc).__name__}") from exc
        if response.status >= http.HTTPStatus.BAD_REQUEST and response.status != http.HTTPStatus.NOT_FOUND:
            raise StoreError(f"{self._storage}: status {response.status}")
        return response.status, data


def _exchange(file: IO[bytes], words: tuple[bytes, ...]) -> bytes | int | None:
    """Send a command and read its answer. Raises `OSError`, `ValueError`."""
    file.write(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words))
    file.flush()
    line = file.readline()
    kind, text = line[:1], line[1:].rstrip(b"\r\n")
    if kind == b":":
        return int(text)
    if kind == b"$":
        size = int(text)
        data = None if size < 0 else file.read(size + 2)
        if data is not None and len(data) != size + 2:
            raise ValueError("the answer ended early")
        return None if data is None else data[:-2]
    if kind != b"+":
        raise ValueError("the server refused")
    return text


def _malformed() -> ConfigError:
    # Nothing of the value: it may hold a password.
    return ConfigError(
        "ccache-remote",
        f"{REMOTE_VARIABLE} is not the address of a shared compiler cache",
        hint="set it to redis://[password@]host[:port][/database] or http[s]://host[:port]/path",
    )
