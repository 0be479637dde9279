"""HTTP: one GET with redirects under our rules, its body in blocks. Knows no files, ranges or retries.

`Transport` is the seam: mirrors, parallel readers and the tests plug in here.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from opencoti.errors import ConfigError, NetworkError
from opencoti.fetch.addresses import LOOPBACK_HOSTS, follow_redirect
from opencoti.fetch.answers import Head, TransferFailure
from opencoti.fetch.credential import Credential
from opencoti.fetch.deadline import run_within
from opencoti.fetch.settings import FAST_BYTES_PER_S

if TYPE_CHECKING:
    import httpx

_MAX_REDIRECTS = 10
_REDIRECTS = {301, 302, 303, 307, 308}
_CONNECT_TIMEOUT_S = 15.0
_HEADERS_TIMEOUTS = 3


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An answer whose body is still to be read: `blocks` may be consumed once, while it is open.

    `url` is where the redirects ended.
    """

    head: Head
    blocks: Iterator[bytes]
    url: str = ""


class Transport(Protocol):
    """Something that answers GET requests."""

    def get(self, url: str, headers: Mapping[str, str]) -> AbstractContextManager[Answer]:
        """Ask for `url`; both this and reading the blocks raise `TransferFailure` and `NetworkError`."""


class HttpxTransport:
    """The real one. Holds a connection pool until `close` (or the end of its `with` block).

    HTTP/2 is spoken over TLS where the server offers it and the extra `opencoti[http2]` is installed.

    Args:
        timeout_s: no byte for this long is a failure.
        fast_bytes_per_s: from this speed on a body is read from its socket, see `direct`.
        credential: sent to its own server only, redirects included.

    Raises:
        ConfigError: `network-variable-unusable`.
    """

    def __init__(
        self,
        *,
        timeout_s: float,
        fast_bytes_per_s: float = FAST_BYTES_PER_S,
        credential: Credential | None = None,
    ) -> None:
        import httpx

        from opencoti import __version__

        self._timeout_s = timeout_s
        self._fast_bytes_per_s = fast_bytes_per_s
        self._credential = credential
        # What the libraries below let through when an answer is odd, such as a status that is no number.
        self._odd: tuple[type[Exception], ...] = (ValueError, LookupError, *_http2_errors())
        # Plain http is allowed to this machine only, so it must not travel to a proxy: no mount for loopback.
        try:
            self._client = httpx.Client(
                headers={"user-agent": f"opencoti/{__version__}"},
                timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, _CONNECT_TIMEOUT_S)),
                mounts={f"all://{f'[{host}]' if ':' in host else host}": None for host in LOOPBACK_HOSTS},
                follow_redirects=False,
                http2=find_spec("h2") is not None,
            )
        except (OSError, ImportError, ValueError, httpx.InvalidURL) as exc:
            raise _unfit_environment(exc) from exc

    def __enter__(self) -> HttpxTransport:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    @contextmanager
    def get(self, url: str, headers: Mapping[str, str]) -> Iterator[Answer]:
        """Ask for `url`, following redirects to allowed addresses.

        Raises:
            TransferFailure: connection, time-out or protocol trouble, here or while blocks are read.
            NetworkError: `redirect-refused`, `redirect-loop`, `tls-untrusted`, `address-unusable`.
        """
        response = self._follow(url, headers)
        try:
            head = Head(
                status=response.status_code,
                headers={name.lower(): value for name, value in response.headers.items()},
            )
            blocks = self._blocks(response, is_encoded=head.is_encoded)
            yield Answer(head=head, blocks=blocks, url=str(response.url))
        finally:
            response.close()

    def _follow(self, url: str, headers: Mapping[str, str]) -> httpx.Response:
        current = url
        for _ in range(_MAX_REDIRECTS + 1):
            response = self._send(current, headers)
            location = response.headers.get("location")
            if response.status_code not in _REDIRECTS or not location:
                return response
            response.close()
            current = follow_redirect(current, location)
        raise NetworkError(
            "redirect-loop",
            f"{url} redirects more than {_MAX_REDIRECTS} times",
            hint="check the address, or a proxy or mirror in between",
        )

    def _send(self, url: str, headers: Mapping[str, str]) -> httpx.Response:
        import httpx

        secret = self._credential.headers_for(url) if self._credential else {}
        try:
            request = self._client.build_request("GET", url, headers={**headers, **secret})
            return self._send_in_time(request)
        except httpx.TransportError as exc:
            raise self._failure(exc, url) from exc
        except (httpx.InvalidURL, UnicodeError) as exc:
            # Of the address itself, or of one in `Location`, which the library takes apart too.
            raise NetworkError(
                "address-unusable",
                f"cannot ask {url}",
                why="it, or the address that it redirects to, is not valid",
                hint="check the address, or a proxy or mirror in between",
            ) from exc
        except self._odd as exc:
            raise TransferFailure("the server broke the rules of HTTP") from exc

    def _send_in_time(self, request: httpx.Request) -> httpx.Response:
        """Send, and read the headers. The library limits each step; a server can make steps without end."""
        limit_s = _HEADERS_TIMEOUTS * self._timeout_s
        try:
            return run_within(
                limit_s, lambda: self._client.send(request, stream=True), lambda response: response.close()
            )
        except TimeoutError as exc:
            raise TransferFailure(f"no answer that is complete within {limit_s:g} s") from exc

    def _blocks(self, response: httpx.Response, *, is_encoded: bool) -> Iterator[bytes]:
        import httpx

        blocks = response.iter_bytes() if is_encoded else self._raw_blocks(response)
        try:
            yield from blocks
        except (httpx.TransportError, httpx.DecodingError) as exc:
            raise self._failure(exc, str(response.url)) from exc
        except self._odd as exc:
            raise TransferFailure("the server broke the rules of HTTP") from exc

    def _raw_blocks(self, response: httpx.Response) -> Iterator[bytes]:
        from opencoti.fetch.direct import read_body

        return read_body(response, timeout_s=self._timeout_s, fast_bytes_per_s=self._fast_bytes_per_s)

    def _failure(self, exc: Exception, url: str) -> Exception:
        import httpx

        if untrusted := _certificate_problem(exc):
            return NetworkError(
                "tls-untrusted",
                f"the certificate of {httpx.URL(url).host} is not trusted",
                why=untrusted.verify_message,
                hint="behind a proxy with a CA of its own, name that in SSL_CERT_FILE; check the clock too",
            )
        if isinstance(exc, httpx.ConnectTimeout):
            return TransferFailure("no connection in time")
        if isinstance(exc, httpx.TimeoutException):
            return TransferFailure(f"nothing arrived for {self._timeout_s:g} s")
        if isinstance(exc, httpx.ConnectError):
            return TransferFailure(f"cannot connect ({exc})")
        if isinstance(exc, httpx.RemoteProtocolError | httpx.ReadError):
            return TransferFailure("the connection was cut")
        return TransferFailure(f"{type(exc).__name__}: {exc}")


def _http2_errors() -> tuple[type[Exception], ...]:
    """Return what the protocol library of HTTP/2 raises, which the HTTP library lets through."""
    if find_spec("h2") is None:
        return ()
    from h2.exceptions import H2Error

    return (H2Error,)


def _unfit_environment(exc: Exception) -> ConfigError:
    """Describe variables that the HTTP library cannot use; their values may hold passwords."""
    what, expected = "a proxy variable", "HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY must be valid"
    if isinstance(exc, OSError):
        what, expected = "SSL_CERT_FILE or SSL_CERT_DIR", "it must name certificates that can be read"
    elif isinstance(exc, ImportError):
        what, expected = "a SOCKS proxy", "that needs the Python package `socksio`"
    return ConfigError(
        "network-variable-unusable",
        f"cannot use {what} of the environment",
        why=expected,
        hint="correct or unset it; a proxy is named like http://host:port",
    )


def _certificate_problem(exc: BaseException) -> ssl.SSLCertVerificationError | None:
    """Find the failed check of a certificate behind an error of the HTTP library."""
    seen: BaseException | None = exc
    while seen is not None:
        if isinstance(seen, ssl.SSLCertVerificationError):
            return seen
        seen = seen.__cause__ or seen.__context__
    return None
