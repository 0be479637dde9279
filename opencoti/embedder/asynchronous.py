"""The embedder for asyncio: batches go to the engine's slots at the same time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from opencoti.embedder.options import EmbedderOptions
from opencoti.embedder.sync import Embedder, start_embedder
from opencoti.embedder.vectors import batches_of, check_vectors
from opencoti.launch.asynchronous import made_in_thread

if TYPE_CHECKING:
    from opencoti.client import AsyncClient
    from opencoti.console import Console


class AsyncEmbedder:
    """Turns texts into vectors. Close it, or use it with `async with`.

    Make one with `start_embedder_async`, or with `over` an `Embedder`, which it then owns.

    Args:
        embedder: what it is over.
        client: asks the same engine.
        concurrency: requests at once.
    """

    def __init__(self, embedder: Embedder, client: AsyncClient, *, concurrency: int = 2) -> None:
        self._embedder = embedder
        self._client = client
        self._concurrency = concurrency

    @classmethod
    def over(cls, embedder: Embedder, *, concurrency: int = 2) -> Self:
        """Return an asynchronous embedder that uses, and at its end closes, another one."""
        return cls(embedder, embedder.async_client(), concurrency=concurrency)

    @property
    def dimension(self) -> int:
        """How many numbers a vector has."""
        return self._embedder.dimension

    @property
    def pooling(self) -> str | None:
        """How token vectors become one, as far as that is known."""
        return self._embedder.pooling

    @property
    def model(self) -> str:
        """What the engine calls its model."""
        return self._embedder.model

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return one vector per text, in their order; see `Embedder.embed`.

        The first failure cancels the batches that are still under way.
        """
        batches = list(batches_of(texts, self._embedder.batching))
        turns = asyncio.Semaphore(self._concurrency)

        async def ask(batch: list[str]) -> list[list[float]]:
            async with turns:
                return await self._client.embed(batch)

        tasks = [asyncio.ensure_future(ask(batch)) for batch in batches]
        try:
            answers = await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
        vectors = [vector for answer in answers for vector in answer]
        check_vectors(vectors, self.dimension)
        return vectors

    async def embed_text(self, text: str) -> list[float]:
        """Return the vector of one text."""
        return (await self.embed([text]))[0]

    async def close(self) -> None:
        """Close the connections, and end the engine if it was started for this embedder."""
        try:
            await self._client.close()
        finally:
            await asyncio.to_thread(self._embedder.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def start_embedder_async(
    options: EmbedderOptions, console: Console | None = None, *, environ: Mapping[str, str] | None = None
) -> AsyncEmbedder:
    """Start an embedding server without blocking the event loop; see `start_embedder`.

    When the task is cancelled meanwhile, the engine is ended before the cancellation goes on.
    """

    def start(cancel: threading.Event) -> Embedder:
        return start_embedder(options, console, environ=environ, cancel=cancel)

    embedder = await made_in_thread(start, Embedder.close)
    return AsyncEmbedder.over(embedder, concurrency=options.parallel)
