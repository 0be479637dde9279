"""Talking to an engine: `Client` and `AsyncClient` (OpenAI-compatible HTTP), and sessions over them.

Nothing is imported before one of these names is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opencoti.client.asynchronous import AsyncClient, AsyncSession
    from opencoti.client.limits import Limits
    from opencoti.client.payloads import SessionReport
    from opencoti.client.requests import Sampling
    from opencoti.client.session import PrefixBreak, Reuse, Turn
    from opencoti.client.sync import Client, Session

__all__ = [
    "AsyncClient",
    "AsyncSession",
    "Client",
    "Limits",
    "PrefixBreak",
    "Reuse",
    "Sampling",
    "Session",
    "SessionReport",
    "Turn",
]
_HOMES = {
    "AsyncClient": "asynchronous",
    "AsyncSession": "asynchronous",
    "Limits": "limits",
    "Sampling": "requests",
    "PrefixBreak": "session",
    "SessionReport": "payloads",
    "Reuse": "session",
    "Turn": "session",
    "Client": "sync",
    "Session": "sync",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
