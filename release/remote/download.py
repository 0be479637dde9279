"""Reading one asset of GitHub, a draft's too: the API names an address that gives it. Knows no retries."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from opencoti.fetch.addresses import LOOPBACK_HOSTS, follow_redirect
from release.remote.failures import broken_off, failure_of, json_of
from release.remote.limits import Clock
from release.remote.model import PassingError
from release.remote.settings import GitHubSettings

if TYPE_CHECKING:
    import httpx

_MAX_REDIRECTS = 5
_REDIRECTS = {301, 302, 303, 307, 308}
_BLOCK_BYTES = 1 << 20


class Downloader:
    """Reads assets. Holds a connection pool until `close` (or the end of its `with` block)."""

    def __init__(self, settings: GitHubSettings, clock: Clock) -> None:
        import httpx

        from opencoti import __version__

        self._settings = settings
        self._clock = clock
        self._client = httpx.Client(
            headers={"user-agent": f"opencoti/{__version__}", "accept": "application/octet-stream"},
            timeout=httpx.Timeout(settings.stall_s),
            mounts={f"all://{f'[{host}]' if ':' in host else host}": None for host in LOOPBACK_HOSTS},
            follow_redirects=False,
        )

    def __enter__(self) -> Downloader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def sha256(self, address: str, what: str, size: int) -> str:
        """Return the SHA-256 of an asset of `size` bytes, given its address in the API. Raises as `read`."""
        digest, count = hashlib.sha256(), 0
        with self._open(address, what) as blocks:
            for block in blocks:
                digest.update(block)
                count += len(block)
        _require_size(count, size)
        return digest.hexdigest()

    def read(self, address: str, what: str, size: int, max_bytes: int) -> bytes:
        """Return an asset of `size` bytes, or the first `max_bytes` of it and one more.

        Raises:
            PassingError, NotThereError, NetworkError: as `failures.failure_of`; `redirect-refused`.
        """
        data = bytearray()
        with self._open(address, what) as blocks:
            for block in blocks:
                data += block
                if len(data) > max_bytes:
                    return bytes(data[: max_bytes + 1])
        _require_size(len(data), size)
        return bytes(data)

    @contextmanager
    def _open(self, address: str, what: str) -> Iterator[Iterator[bytes]]:
        import httpx

        try:
            response = self._follow(address, what)
            try:
                yield response.iter_bytes(_BLOCK_BYTES)
            finally:
                response.close()
        except httpx.TimeoutException as exc:
            raise PassingError("nothing arrived") from exc
        except (httpx.TransportError, httpx.DecodingError) as exc:
            raise broken_off(exc) from exc

    def _follow(self, address: str, what: str) -> httpx.Response:
        current = address
        for _ in range(_MAX_REDIRECTS + 1):
            # The token stays with the service that it is for: where files come from does not get it.
            is_home = urlsplit(current)[:2] == urlsplit(self._settings.api_url)[:2]
            headers = {"authorization": f"Bearer {self._settings.token}"} if is_home else {}
            request = self._client.build_request("GET", current, headers=headers)
            response = self._client.send(request, stream=True)
            location = response.headers.get("location")
            if response.status_code == 200:
                return response
            try:
                if response.status_code not in _REDIRECTS or not location:
                    raise self._failure(response, what)
            finally:
                response.close()
            current = follow_redirect(current, location)
        raise PassingError("it redirects again and again")

    def _failure(self, response: httpx.Response, what: str) -> Exception:
        headers = {name.lower(): value for name, value in response.headers.items()}
        data = json_of(response.iter_bytes())
        return failure_of(response.status_code, headers, data, what=what, now=self._clock.now())


def _require_size(found: int, size: int) -> None:
    """Tell the file from what a proxy says in its place."""
    if found != size:
        raise PassingError(f"{found} bytes came, not {size}")
