"""The embedder for ordinary programs. `opencoti.embedder.asynchronous` is the same for asyncio."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from opencoti.embedder.options import EmbedderOptions, embedder_launch_options
from opencoti.embedder.vectors import (
    PROBE_TEXT,
    Batching,
    batches_of,
    check_vectors,
    other_dimension,
    pooling_of,
    require_pooling,
)

if TYPE_CHECKING:
    from opencoti.client import AsyncClient, Client, Limits
    from opencoti.console import Console
    from opencoti.launch import Engine


class Embedder:
    """Turns texts into vectors. Close it, or use it in a `with` block. Safe between threads.

    Make one with `start_embedder`, which starts an engine, or with `connect`, for one that runs.

    Attributes:
        dimension: how many numbers a vector has.
        pooling: how token vectors become one, as far as that is known.
        model: what the engine calls its model.
    """

    def __init__(
        self, client: Client, *, dimension: int, model: str, batching: Batching | None = None
    ) -> None:
        self.dimension = dimension
        self.model = model
        self.pooling: str | None = None
        self.batching = batching or Batching()
        self._client = client
        self._engine: Engine | None = None

    @classmethod
    def connect(
        cls,
        url: str,
        *,
        api_key: str = "",
        dimension: int | None = None,
        batching: Batching | None = None,
        limits: Limits | None = None,
    ) -> Self:
        """Use an embedding server that runs; asks it for one vector.

        Raises:
            VerificationError: `embedder-other-dimension`, it is not the wanted one.
            OpencotiError: as every method of `opencoti.client.Client`.
        """
        from opencoti.client import Client

        client = Client(url, api_key=api_key, limits=limits)
        try:
            model = next(iter(client.models()), "")
            found = len(client.embed([PROBE_TEXT])[0])
            if dimension not in (None, found):
                raise other_dimension(found, dimension or 0)
        except BaseException:
            client.close()
            raise
        return cls(client, dimension=found, model=model, batching=batching)

    def own(self, engine: Engine, *, pooling: str | None) -> Self:
        """Let this embedder end an engine when it is closed; `pooling` is what the engine was told."""
        self._engine = engine
        self.pooling = pooling
        return self

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return one vector per text, in their order. Any number of texts: they go in batches.

        Raises:
            UsageError: `text-empty`; `request-refused`, a text is longer than the engine's context.
            VerificationError: `embedder-other-dimension`, `embedder-zero-vector`, `answer-malformed`.
            OpencotiError: as every method of `opencoti.client.Client`.
        """
        vectors: list[list[float]] = []
        for batch in list(batches_of(texts, self.batching)):
            vectors += self._client.embed(batch)
        check_vectors(vectors, self.dimension)
        return vectors

    def embed_text(self, text: str) -> list[float]:
        """Return the vector of one text. Raises as `embed`."""
        return self.embed([text])[0]

    def async_client(self) -> AsyncClient:
        """Return another client of the same engine, for asyncio."""
        return self._client.as_async()

    def close(self) -> None:
        """Close the connection, and end the engine if it was started for this embedder."""
        try:
            self._client.close()
        finally:
            if self._engine is not None:
                self._engine.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def start_embedder(
    options: EmbedderOptions,
    console: Console | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    cancel: threading.Event | None = None,
) -> Embedder:
    """Start an embedding server of this process, and return an embedder that ends it when it is closed.

    Args:
        options: what is wanted.
        console: told about progress; silent if None.
        environ: environment to read instead of this process's.
        cancel: set it from another thread to give up.

    Raises:
        MissingError: `embedder-not-found` and others.
        VerificationError: `embedder-other-pooling`, `embedder-other-dimension`, `hash-mismatch`.
        OpencotiError: as `opencoti.launch.launch`. Nothing is left behind.
    """
    from opencoti.console import Console as RealConsole
    from opencoti.launch import launch

    console = console or RealConsole(quiet=True)
    wanted = embedder_launch_options(options, console, environ=environ)
    engine = launch(wanted, console, environ=environ, cancel=cancel)
    try:
        pooling = pooling_of(engine.pid)
        require_pooling(options.pooling, pooling)
        batching = Batching(texts=options.batch_texts, bytes_=options.batch_bytes)
        embedder = Embedder.connect(engine.url, dimension=options.dimension, batching=batching)
        return embedder.own(engine, pooling=pooling)
    except BaseException:
        engine.stop()
        raise
