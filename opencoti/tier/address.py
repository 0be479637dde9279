"""A tier that somebody else runs: an engine in the network, or any service that speaks the same interface."""

from __future__ import annotations

import asyncio
import threading
from typing import Final

from opencoti.errors import MissingError, OpencotiError, VerificationError
from opencoti.tier.lease import Lease
from opencoti.tier.provider import Capabilities, Health

_HEALTH_S: Final = 5.0


class AddressTier:
    """A `TierProvider` over an address. It starts and ends nothing.

    Args:
        url: address, with or without `/v1` at its end.
        name: of the tier.
        model: what must be served there; empty: the first one that is.
        api_key: password that it wants, if any.
        capabilities: what it can do, which only its operator knows.

    Raises:
        UsageError: `bad-engine-url`.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str,
        model: str = "",
        api_key: str = "",
        capabilities: Capabilities | None = None,
    ) -> None:
        from opencoti.client.requests import Base

        self._base = Base.parse(url)
        self._name = name
        self._model = model
        self._api_key = api_key
        self._capabilities = capabilities or Capabilities(is_local=self._base.is_loopback)

    @property
    def name(self) -> str:
        """Name of the tier."""
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        """What it was said to be able to do."""
        return self._capabilities

    def health(self) -> Health:
        """Ask for its models."""
        try:
            model = self._served()
        except OpencotiError as error:
            return Health(status="failed", url=self._base.url, model=self._model, detail=str(error))
        return Health(status="ready", url=self._base.url, model=model)

    def acquire(self, *, cancel: threading.Event | None = None) -> Lease:
        """Return a lease, which keeps nothing.

        Raises:
            MissingError: `tier-model-missing`, the wanted model is not served there.
            OpencotiError: as every method of `opencoti.client.Client`.
        """
        return Lease(
            url=self._base.url, model=self._served(), capabilities=self._capabilities, api_key=self._api_key
        )

    async def acquire_async(self) -> Lease:
        """Do the same without blocking the event loop."""
        return await asyncio.to_thread(self.acquire)

    def _served(self) -> str:
        from opencoti.client import Client, Limits

        limits = Limits(connect_s=_HEALTH_S, idle_s=_HEALTH_S, total_s=2 * _HEALTH_S, body_bytes=4 << 20)
        with Client(self._base.url, api_key=self._api_key, limits=limits) as client:
            names = client.models()
        if not names:
            raise VerificationError("tier-serves-nothing", f"{self._base.url} serves no model")
        if self._model and self._model not in names:
            raise MissingError(
                "tier-model-missing",
                f"{self._base.url} does not serve {self._model}",
                why=f"it serves {', '.join(names[:8])}",
            )
        return self._model or names[0]
