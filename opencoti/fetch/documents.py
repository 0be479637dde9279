"""Small documents (manifest, chunk table, index, signature) as bytes in memory, bounded, with patience."""

from __future__ import annotations

from opencoti.console import Console
from opencoti.errors import ConfigError, NetworkError, storage_error
from opencoti.fetch.answers import Ask, TransferFailure, judge
from opencoti.fetch.download import Tools
from opencoti.fetch.pace import Patience, SpeedGuard, announcement, given_up, repeat
from opencoti.fetch.settings import Limits
from opencoti.fetch.source import HttpSource, LocalSource

MAX_DOCUMENT_BYTES = 8 << 20


class Reader:
    """Reads documents from addresses and from disk.

    Args:
        tools: the outside.
        limits: when to lose patience.
        console: told about retries.
    """

    def __init__(self, tools: Tools, limits: Limits, console: Console) -> None:
        self._tools = tools
        self._limits = limits
        self._console = console

    def read(self, source: HttpSource | LocalSource, *, max_bytes: int = MAX_DOCUMENT_BYTES) -> bytes:
        """Return the bytes of a document; nothing about them is checked but their number.

        Raises:
            ConfigError: `document-missing` (a path), `document-too-long`.
            NetworkError: `not-found`, `download-failed`, …
            StorageError: a path that cannot be read.
        """
        if isinstance(source, LocalSource):
            return _read_local(source, max_bytes)
        patience = Patience(self._limits, lambda: 0)
        try:
            return repeat(
                lambda: self._attempt(source.url, max_bytes),
                patience,
                sleep=self._tools.sleep,
                announce=lambda failure, pause_s: self._console.info(
                    f"{source.url}: {announcement(failure, pause_s)}"
                ),
            )
        except TransferFailure as failure:
            raise given_up(source.url, failure, attempts=patience.attempts, kept="") from failure

    def read_if_there(
        self, source: HttpSource | LocalSource, *, max_bytes: int = MAX_DOCUMENT_BYTES
    ) -> bytes | None:
        """Return the bytes like `read`, or None where there is no such document."""
        try:
            return self.read(source, max_bytes=max_bytes)
        except NetworkError as error:
            if error.error_id == "not-found":
                return None
            raise
        except ConfigError as error:
            if error.error_id == "document-missing":
                return None
            raise

    def _attempt(self, url: str, max_bytes: int) -> bytes:
        with self._tools.transport.get(url, Ask().headers()) as answer:
            plan = judge(Ask(), answer.head, url)
            if plan.total is not None and plan.total > max_bytes:
                raise _too_long(url, max_bytes)
            guard, data = SpeedGuard(self._limits, self._tools.clock), bytearray()
            for block in answer.blocks:
                guard.feed(len(block))
                data += block
                if len(data) > max_bytes:
                    raise _too_long(url, max_bytes)
        if plan.total is not None and plan.total != len(data):
            raise TransferFailure(f"the body ended at byte {len(data)} of {plan.total}")
        return bytes(data)


def _read_local(source: LocalSource, max_bytes: int) -> bytes:
    try:
        with open(source.path, "rb") as file:
            data = file.read(max_bytes + 1)
    except FileNotFoundError as exc:
        raise ConfigError(
            "document-missing",
            f"there is no {source.path}, named by {source.named_by}",
            hint="correct the path",
        ) from exc
    except OSError as exc:
        raise storage_error(exc, f"cannot read {source.path}") from exc
    if len(data) > max_bytes:
        raise _too_long(str(source.path), max_bytes)
    return data


def _too_long(where: str, max_bytes: int) -> ConfigError:
    return ConfigError(
        "document-too-long",
        f"cannot read {where}",
        why=f"it has more than the {max_bytes} bytes that such a document may have",
        hint="check the address: this is hardly what was meant",
    )
