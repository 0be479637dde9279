"""Vectors over real sockets from servers that behave and that do not, and from the real engine."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from ci.paths import Layout
from ci.smoke.model import VOCABULARY, cached_model
from opencoti.embedder import AsyncEmbedder, Embedder, EmbedderOptions, start_embedder, start_embedder_async
from opencoti.embedder.vectors import Batching
from opencoti.errors import NetworkError, OpencotiError, UsageError, VerificationError
from opencoti.hashing import sha256_file
from tests.integration.embedder.composite import make_composite, pin_for
from tests.integration.launch.conftest import Bench, bench
from tests.integration.launch.real import real_options

__all__ = ["bench"]
Vector = Callable[[str, int], list[float]]


class EmbeddingServer:
    """A stand-in for the engine's embedding side: a vector is made from the text, by a rule of the test."""

    def __init__(self, vector: Vector = lambda text, _: [float(len(text)), 1.0, 0.5]) -> None:
        self.vector = vector
        self.batches: list[list[str]] = []
        self.fails_from = 1 << 30

    @contextmanager
    def running(self) -> Iterator[str]:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer({"data": [{"id": "tiny"}]})

            def do_POST(self) -> None:
                texts = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["input"]
                owner.batches.append(texts)
                if len(owner.batches) > owner.fails_from:
                    self.answer({"error": {"message": "compute failed"}}, status=500)
                    return
                number = len(owner.batches)
                data = [{"index": i, "embedding": owner.vector(t, number)} for i, t in enumerate(texts)]
                self.answer({"data": data})

            def answer(self, document: dict[str, Any], *, status: int = 200) -> None:
                body = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_port}"
            finally:
                server.shutdown()
                thread.join()


def test_texts_go_in_batches_and_come_back_in_order() -> None:
    server = EmbeddingServer()
    texts = ["x" * (1 + n % 17) for n in range(50)]
    with server.running() as url, Embedder.connect(url, batching=Batching(texts=8)) as embedder:
        assert (embedder.dimension, embedder.model) == (3, "tiny")
        assert [vector[0] for vector in embedder.embed(texts)] == [float(len(text)) for text in texts]
        assert embedder.embed([]) == []
    assert [len(batch) for batch in server.batches] == [1, *[8] * 6, 2]


def test_asynchronous_batches_come_back_in_order() -> None:
    texts = ["x" * (1 + n % 17) for n in range(50)]

    async def main(url: str) -> list[list[float]]:
        async with AsyncEmbedder.over(
            Embedder.connect(url, batching=Batching(texts=4)), concurrency=3
        ) as one:
            assert one.dimension == 3
            return await one.embed(texts)

    with EmbeddingServer().running() as url:
        assert [vector[0] for vector in asyncio.run(main(url))] == [float(len(text)) for text in texts]


def test_first_failure_ends_the_batches_that_are_under_way() -> None:
    server = EmbeddingServer()
    server.fails_from = 3

    async def main(url: str) -> None:
        embedder = Embedder.connect(url, batching=Batching(texts=1))
        async with AsyncEmbedder.over(embedder, concurrency=2) as one:
            with pytest.raises(NetworkError):
                await one.embed(["a"] * 40)

    with server.running() as url:
        asyncio.run(main(url))
    assert len(server.batches) < 10


@pytest.mark.parametrize(
    ("vector", "error_id"),
    [
        (lambda _, number: [1.0] * (3 if number == 1 else 4), "embedder-other-dimension"),
        (lambda _, number: [1.0 if number == 1 else 0.0] * 3, "embedder-zero-vector"),
    ],
    ids=["other width", "zeros"],
)
def test_vectors_that_change_their_kind_are_refused(vector: Vector, error_id: str) -> None:
    with EmbeddingServer(vector).running() as url, Embedder.connect(url) as embedder:
        with pytest.raises(VerificationError) as caught:
            embedder.embed(["a", "b"])
        assert caught.value.error_id == error_id


def test_server_of_another_width_is_refused_at_once() -> None:
    with EmbeddingServer().running() as url, pytest.raises(VerificationError) as caught:
        Embedder.connect(url, dimension=1024)
    assert caught.value.error_id == "embedder-other-dimension"
    assert "3 numbers, not 1024" in caught.value.what


class Real:
    """The real engine with the tiny model, in one file or two."""

    def __init__(self, layout: Layout, bench: Bench) -> None:
        self.bench = bench
        self.model = cached_model(layout, layout.sources / "llama.cpp" / VOCABULARY)
        binary = real_options(layout).binary
        assert binary is not None
        self.engine = binary

    def start(self, **words: Any) -> Embedder:
        return start_embedder(EmbedderOptions(**words), environ=self.bench.environ)

    def fail(self, **words: Any) -> OpencotiError:
        with pytest.raises(OpencotiError) as caught:
            self.start(**words)
        self.bench.require_nothing_left()
        return caught.value


@pytest.fixture
def real(real_layout: Layout, bench: Bench) -> Real:
    return Real(real_layout, bench)


@pytest.mark.engine
def test_model_and_engine_make_vectors(real: Real) -> None:
    texts = [f"text number {number}" for number in range(70)]
    with real.start(model=real.model, binary=real.engine, batch_texts=16) as embedder:
        assert (embedder.dimension, embedder.pooling) == (64, "last")
        vectors = embedder.embed(texts)
        assert len({tuple(vector) for vector in vectors}) == 70
        assert all(math.isclose(sum(n * n for n in vector), 1, rel_tol=1e-3) for vector in vectors)
        assert embedder.embed_text(texts[69]) == pytest.approx(vectors[69], abs=1e-3)
        assert len(embedder.embed_text("word " * 900)) == 64
        with pytest.raises(UsageError) as caught:
            embedder.embed(["word " * 3000])
        assert caught.value.error_id == "request-refused"
    real.bench.require_nothing_left()


@pytest.mark.engine
def test_long_texts_fit_with_every_pooling(real: Real) -> None:
    with real.start(model=real.model, binary=real.engine, pooling="mean") as embedder:
        assert embedder.pooling == "mean"
        assert len(embedder.embed_text("word " * 900)) == 64


@pytest.mark.engine
def test_one_file_holds_engine_and_model_and_the_variable_names_it(real: Real, tmp_path: Path) -> None:
    artifact = make_composite(real.engine, real.model, tmp_path)
    real.bench.environ["OPENCOTI_EMBEDDER_LOCAL"] = str(artifact)
    pin = pin_for(artifact, tmp_path, sha256=sha256_file(artifact))
    with real.start(pin=pin, pooling="last", dimension=64) as embedder:
        assert (embedder.dimension, embedder.pooling) == (64, "last")
        one, other = embedder.embed(["the sea", "a mountain of iron"])
        assert one != other
    assert real.fail(pin=pin, dimension=1024).error_id == "embedder-other-dimension"
    assert real.fail(pin=pin, pooling="mean").error_id == "embedder-other-pooling"
    wrong = pin_for(artifact, tmp_path, sha256="0" * 64)
    assert real.fail(pin=wrong).error_id == "hash-mismatch"


@pytest.mark.engine
def test_asynchronous_start_and_its_cancellation(real: Real) -> None:
    options = EmbedderOptions(model=real.model, binary=real.engine)

    async def main() -> None:
        async with await start_embedder_async(options, environ=real.bench.environ) as embedder:
            assert len(await embedder.embed(["a", "b"])) == 2
        task = asyncio.create_task(start_embedder_async(options, environ=real.bench.environ))
        while not real.bench.processes():
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    real.bench.require_nothing_left()
