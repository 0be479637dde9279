"""The interface between a program that wants answers and whatever gives them: a *tier provider*.

A program that chooses between several sources of answers (an engine on this machine, one in the network, a
service) needs the same few things of each: its name, what it can do, how it is, and an address to talk to for
as long as it is needed. `LocalTier` and `AddressTier` are two implementations; any object with these members
is a third. This module owns the interface and starts nothing.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from opencoti.tier.lease import Lease

Status = Literal["stopped", "starting", "ready", "failed"]
Reuse = Literal["none", "slots", "session-id"]


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What a tier can do, as far as that is known.

    Attributes:
        has_chat: it answers chats and continues texts.
        has_embeddings: it turns texts into vectors.
        reuse: how a session keeps its computed prefix: not at all, pinned to a slot, or by its name.
        is_isolated: conversations share nothing, not even computed prefixes.
        is_local: what is sent stays on this machine.
        slots: how many requests it works on at once; None: not known before it runs.
        context_tokens: longest prompt and answer together, in tokens; None: not known before it runs.
    """

    has_chat: bool = True
    has_embeddings: bool = False
    reuse: Reuse = "none"
    is_isolated: bool = False
    is_local: bool = True
    slots: int | None = None
    context_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class Health:
    """How a tier is at this moment.

    `stopped` is healthy: it starts when somebody needs it. `failed` says why in `detail`.
    """

    status: Status
    url: str = ""
    model: str = ""
    detail: str = ""

    @property
    def is_usable(self) -> bool:
        """Whether asking for it is worth a try."""
        return self.status != "failed"


@runtime_checkable
class TierProvider(Protocol):
    """What a program may expect of a tier; every member may be used from any thread.

    A provider holds nothing while nobody has a lease: making one costs nothing and closing it is not needed.
    """

    @property
    def name(self) -> str:
        """Short name, for messages and configuration; the same in every process that means this tier."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What it can do, without starting anything; `Lease.capabilities` knows more."""
        ...

    def health(self) -> Health:
        """Say how it is within seconds. Starts nothing; what is wrong with the tier is told, not raised."""
        ...

    def acquire(self, *, cancel: threading.Event | None = None) -> Lease:
        """Return the right to use it, starting what has to be started.

        Args:
            cancel: set it from another thread to give up; `opencoti.launch.ready.Cancelled` is raised then.

        Raises:
            OpencotiError: it cannot be used; nothing is left behind.
        """
        ...

    async def acquire_async(self) -> Lease:
        """Do the same without blocking the event loop; a cancellation leaves nothing behind."""
        ...
