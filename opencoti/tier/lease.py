"""The right to use a tier for a while: an address, what is served there, and how to give it back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from opencoti.client import AsyncClient, Client, Limits
    from opencoti.tier.provider import Capabilities


class Lease:
    """Use it in a `with` (or `async with`) block, or call `release`. While it is held, the engine stays.

    The kernel gives it back when this process dies, however.

    Args:
        url: base address, like `http://127.0.0.1:41234`.
        model: name of what is served.
        capabilities: what it can do, measured where that is possible.
        api_key: password that it wants, if any.
        release: called once, when the lease is given back.
        is_alive: tells whether what is behind it is still there.
    """

    def __init__(
        self,
        *,
        url: str,
        model: str,
        capabilities: Capabilities,
        api_key: str = "",
        release: Callable[[], None] = lambda: None,
        is_alive: Callable[[], bool] = lambda: True,
    ) -> None:
        self.url = url
        self.model = model
        self.capabilities = capabilities
        self._api_key = api_key
        self._release = release
        self._is_alive = is_alive
        self._guard = threading.Lock()
        self._is_released = False

    @property
    def is_alive(self) -> bool:
        """Whether the engine is still there. After it died, acquire a new lease: that starts another one."""
        return not self._is_released and self._is_alive()

    def client(self, *, limits: Limits | None = None) -> Client:
        """Return a client of this tier; close it before the lease is released."""
        from opencoti.client import Client

        return Client(self.url, api_key=self._api_key, limits=limits)

    def async_client(self, *, limits: Limits | None = None) -> AsyncClient:
        """Return a client for asyncio; close it before the lease is released."""
        from opencoti.client import AsyncClient

        return AsyncClient(self.url, api_key=self._api_key, limits=limits)

    def release(self) -> None:
        """Give it back. Does nothing the second time."""
        with self._guard:
            if self._is_released:
                return
            self._is_released = True
        self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
