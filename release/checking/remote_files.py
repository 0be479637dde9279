"""The files of a published release by their addresses: hashed while they arrive, never kept."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from opencoti.console import Console
from opencoti.fetch.addresses import release_url
from opencoti.fetch.answers import Ask, TransferFailure, judge
from opencoti.fetch.documents import Reader
from opencoti.fetch.download import Tools
from opencoti.fetch.pace import Patience, SpeedGuard, announcement, given_up, repeat
from opencoti.fetch.settings import Limits
from opencoti.fetch.source import HttpSource


@dataclass(frozen=True, kw_only=True)
class HashedFile:
    """What came from an address."""

    sha256: str
    size: int


class RemoteFiles:
    """The assets of one release.

    Args:
        base_url: where releases are.
        repo: `<owner>/<name>`.
        tag: tag of the release.
        tools: the outside.
        limits: when to lose patience.
        console: told about retries.
    """

    def __init__(
        self, base_url: str, repo: str, tag: str, *, tools: Tools, limits: Limits, console: Console
    ) -> None:
        self._base = (base_url, repo, tag)
        self._tools = tools
        self._limits = limits
        self._console = console
        self._reader = Reader(tools, limits, console)

    def url(self, name: str) -> str:
        """Return the address of an asset."""
        return release_url(*self._base, name)

    def read(self, name: str) -> bytes:
        """Return a small asset. Raises like `Reader.read`."""
        return self._reader.read(HttpSource(url=self.url(name)))

    def hash(self, name: str) -> HashedFile:
        """Read an asset of any size and hash it.

        Raises:
            NetworkError: `not-found`, `http-refused`, `download-failed`.
        """
        url, patience = self.url(name), Patience(self._limits, lambda: 0)
        try:
            return repeat(
                lambda: self._hash(url),
                patience,
                sleep=self._tools.sleep,
                announce=lambda failure, pause_s: self._console.info(
                    f"{name}: {announcement(failure, pause_s)}"
                ),
            )
        except TransferFailure as failure:
            raise given_up(url, failure, attempts=patience.attempts, kept="") from failure

    def size(self, name: str) -> int | None:
        """Return how long an asset is, by asking for its first byte; None where the server does not say."""
        url, patience = self.url(name), Patience(self._limits, lambda: 0)
        try:
            return repeat(
                lambda: self._size(url), patience, sleep=self._tools.sleep, announce=lambda *_: None
            )
        except TransferFailure as failure:
            raise given_up(url, failure, attempts=patience.attempts, kept="") from failure

    def _hash(self, url: str) -> HashedFile:
        digest, size, ask = hashlib.sha256(), 0, Ask()
        with self._tools.transport.get(url, ask.headers()) as answer:
            plan = judge(ask, answer.head, url)
            guard = SpeedGuard(self._limits, self._tools.clock)
            for block in answer.blocks:
                guard.feed(len(block))
                digest.update(block)
                size += len(block)
        if plan.total is not None and plan.total != size:
            raise TransferFailure(f"the body ended at byte {size} of {plan.total}")
        return HashedFile(sha256=digest.hexdigest(), size=size)

    def _size(self, url: str) -> int | None:
        ask = Ask(end=1)
        with self._tools.transport.get(url, ask.headers()) as answer:
            return judge(ask, answer.head, url).total
