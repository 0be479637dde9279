"""Texts to vectors on this machine: `start_embedder`, `Embedder`, `AsyncEmbedder`, `EmbedderOptions`.

Nothing is imported before one of these names is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opencoti.embedder.arguments import build_embedder_args
    from opencoti.embedder.asynchronous import AsyncEmbedder, start_embedder_async
    from opencoti.embedder.options import EmbedderOptions, embedder_launch_options
    from opencoti.embedder.sync import Embedder, start_embedder

__all__ = [
    "AsyncEmbedder",
    "Embedder",
    "EmbedderOptions",
    "build_embedder_args",
    "embedder_launch_options",
    "start_embedder",
    "start_embedder_async",
]
_HOMES = {
    "AsyncEmbedder": "asynchronous",
    "Embedder": "sync",
    "EmbedderOptions": "options",
    "build_embedder_args": "arguments",
    "embedder_launch_options": "options",
    "start_embedder": "sync",
    "start_embedder_async": "asynchronous",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
