"""Sending one file to GitHub: streamed, hashed on the way, ended when it stalls. Knows no retries.

The last block leaves only after everything sent so far has the right size and SHA-256, so a file that changed
since it was verified never becomes a whole asset.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from opencoti.errors import storage_error
from opencoti.fetch.addresses import LOOPBACK_HOSTS
from release.remote.failures import broken_off, json_of
from release.remote.limits import Clock
from release.remote.model import LocalFile, PassingError
from release.remote.refusals import file_changed
from release.remote.settings import GitHubSettings

if TYPE_CHECKING:
    import httpx

_BLOCK_BYTES = 256 << 10
_MIN_BYTES_PER_S = 1024
_CONNECT_S = 15.0


@dataclass(frozen=True, kw_only=True)
class UploadAnswer:
    """An answer to an upload: status, headers in lower case, body parsed if it is JSON."""

    status: int
    headers: dict[str, str]
    data: Any


class Uploader:
    """Sends files. Holds a connection pool until `close` (or the end of its `with` block)."""

    def __init__(self, settings: GitHubSettings, clock: Clock) -> None:
        import httpx

        from opencoti import __version__

        self._settings = settings
        self._clock = clock
        stall_s = settings.stall_s
        self._client = httpx.Client(
            headers={"user-agent": f"opencoti/{__version__}"},
            timeout=httpx.Timeout(stall_s, connect=min(stall_s, _CONNECT_S), read=settings.answer_s),
            mounts={f"all://{f'[{host}]' if ':' in host else host}": None for host in LOOPBACK_HOSTS},
            follow_redirects=False,
        )

    def __enter__(self) -> Uploader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def send(self, address: str, file: LocalFile, tell: Callable[[int], None]) -> UploadAnswer:
        """Send a file as an asset of its name.

        Args:
            address: of the assets of a release on the upload host.
            file: what to send.
            tell: given the bytes sent so far.

        Raises:
            PassingError: connection, stall or protocol trouble.
            VerificationError: `publish-file-changed`.
            StorageError: the file cannot be read.
        """
        import httpx

        headers = {
            "authorization": f"Bearer {self._settings.token}",
            "accept": "application/vnd.github+json",
            "content-type": "application/octet-stream",
            "content-length": str(file.size),
        }
        blocks = self._blocks(file, tell)
        try:
            with self._client.stream(
                "POST", f"{address}?name={quote(file.name, safe='')}", headers=headers, content=blocks
            ) as response:
                return _read(response)
        except httpx.TimeoutException as exc:
            raise PassingError("it stalled") from exc
        except (httpx.TransportError, httpx.DecodingError) as exc:
            raise broken_off(exc) from exc

    def _blocks(self, file: LocalFile, tell: Callable[[int], None]) -> Iterator[bytes]:
        digest, sent = hashlib.sha256(), 0
        pace = _Pace(self._settings.stall_s, self._clock.monotonic)
        try:
            with open(file.path, "rb", buffering=0) as source:
                held = b""
                while block := source.read(_BLOCK_BYTES):
                    if sent + len(held) + len(block) > file.size:
                        # Told before the last byte of the promised length goes out: that would make it whole.
                        raise file_changed(file)
                    if held:
                        yield held
                        sent += len(held)
                        tell(sent)
                        pace.check(sent)
                    digest.update(block)
                    held = block
        except OSError as exc:
            raise storage_error(exc, f"cannot read {file.path}") from exc
        if digest.hexdigest() != file.sha256 or sent + len(held) != file.size:
            raise file_changed(file)
        if held:
            yield held
        tell(file.size)


class _Pace:
    """Ends an upload that trickles: too few bytes over a whole stall time."""

    def __init__(self, window_s: float, now: Callable[[], float]) -> None:
        self._window_s = window_s
        self._now = now
        self._since = now()
        self._bytes = 0

    def check(self, sent: int) -> None:
        passed = self._now() - self._since
        if passed < self._window_s:
            return
        if sent - self._bytes < passed * _MIN_BYTES_PER_S:
            raise PassingError(f"it stalled: {sent - self._bytes} bytes in {passed:.0f} s")
        self._since, self._bytes = self._now(), sent


def _read(response: httpx.Response) -> UploadAnswer:
    data = json_of(response.iter_bytes())
    headers = {name.lower(): value for name, value in response.headers.items()}
    return UploadAnswer(status=response.status_code, headers=headers, data=data)
