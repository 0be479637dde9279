"""What is made in a thread for a task: handed over, or given back exactly once, whenever it is cancelled."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import pytest

from opencoti.embedder import Embedder, EmbedderOptions, start_embedder_async
from opencoti.errors import BusyError
from opencoti.launch import LaunchOptions, asynchronous, launch_async
from opencoti.launch.asynchronous import made_in_thread
from opencoti.launch.engine import Engine
from opencoti.launch.ready import Cancelled
from opencoti.tier.lease import Lease
from opencoti.tier.local import LocalTier

DEADLINE_S = 60.0
THING = "a thing"


class Bench:
    """A maker that is held until it is let go, and one worker thread, so that its work can be waited for."""

    def __init__(self, error: Exception | None = None, *, thing: object = THING) -> None:
        self._error = error
        self._thing = thing
        self._pool = ThreadPoolExecutor(max_workers=1)
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.returning, self.may_return = threading.Event(), threading.Event()
        self.may_return.set()
        self.given_back: list[object] = []
        self.return_error: Exception | None = None
        self.was_told_to_stop = False
        self.complaints: list[dict[str, Any]] = []

    def make(self, cancel: threading.Event) -> Any:
        self.begun.set()
        assert self.may_end.wait(DEADLINE_S)
        self.was_told_to_stop = cancel.is_set()
        if self._error is not None:
            raise self._error
        return self._thing

    def give_back(self, thing: object) -> None:
        self.returning.set()
        assert self.may_return.wait(DEADLINE_S)
        self.given_back.append(thing)
        if self.return_error is not None:
            raise self.return_error

    def start(self) -> asyncio.Task[Any]:
        return asyncio.create_task(made_in_thread(self.make, self.give_back))

    async def begin(self) -> asyncio.Task[Any]:
        """Start, and wait until the maker is at work."""
        task = self.start()
        await until(self.begun)
        return task

    def end_making(self) -> None:
        """Let it be made; the event loop, which stands meanwhile, does not know yet when this returns."""
        self.may_end.set()
        self._pool.submit(int).result(DEADLINE_S)

    def run(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `main`, and wait for everything that it left to the worker thread."""

        async def watched() -> None:
            loop = asyncio.get_running_loop()
            loop.set_default_executor(self._pool)
            loop.set_exception_handler(lambda _, context: self.complaints.append(context))
            await main()
            gc.collect()

        asyncio.run(watched())
        gc.collect()


async def until(event: threading.Event) -> None:
    """Wait for a thread without the event loop's own worker."""
    while not event.is_set():
        await asyncio.sleep(0)


async def cancelled(task: asyncio.Task[Any]) -> None:
    with pytest.raises(asyncio.CancelledError):
        await task


def test_what_is_made_is_handed_over_and_not_given_back() -> None:
    bench = Bench()

    async def main() -> None:
        bench.may_end.set()
        assert await bench.start() == THING

    bench.run(main)
    assert (bench.given_back, bench.was_told_to_stop) == ([], False)


def test_the_thread_sees_the_context_of_the_task() -> None:
    name = ContextVar("name", default="nobody")

    async def main() -> str:
        name.set("somebody")
        return await made_in_thread(lambda _: name.get(), lambda _: None)

    assert asyncio.run(main()) == "somebody"


def test_what_comes_although_the_task_was_cancelled_is_given_back_before_it_ends() -> None:
    bench = Bench()

    async def main() -> None:
        task = await bench.begin()
        task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not task.done()
        bench.may_end.set()
        await cancelled(task)
        assert bench.given_back == [THING]

    bench.run(main)
    assert (bench.given_back, bench.was_told_to_stop) == ([THING], True)


def test_a_cancellation_in_the_moment_when_it_has_been_made_gives_it_back_once() -> None:
    bench = Bench()

    async def main() -> None:
        task = await bench.begin()
        bench.end_making()
        task.cancel()
        await cancelled(task)
        assert bench.given_back == [THING]

    bench.run(main)
    assert (bench.given_back, bench.was_told_to_stop) == ([THING], False)


@pytest.mark.parametrize("is_made", [True, False], ids=["made before", "made after"])
def test_a_second_cancellation_ends_the_wait_and_it_is_given_back_all_the_same(is_made: bool) -> None:
    bench = Bench()
    bench.may_return.clear()

    async def main() -> None:
        task = await bench.begin()
        if is_made:
            bench.end_making()
        task.cancel()
        if not is_made:
            await asyncio.sleep(0)
            bench.may_end.set()
        await until(bench.returning)
        task.cancel()
        await cancelled(task)
        assert bench.given_back == []
        bench.may_return.set()

    bench.run(main)
    assert bench.given_back == [THING]


@pytest.mark.parametrize("turns", range(5))
@pytest.mark.parametrize("is_made", [True, False], ids=["made before", "made after"])
def test_nothing_is_lost_when_every_task_of_the_loop_is_cancelled_again_and_again(
    is_made: bool, turns: int
) -> None:
    """As a program does that ends: the cancellation may meet what is about to give it back."""
    bench = Bench()

    async def main() -> None:
        task = await bench.begin()
        if is_made:
            bench.end_making()
        task.cancel()
        for _ in range(turns):
            await asyncio.sleep(0)
        for each in asyncio.all_tasks() - {asyncio.current_task()}:
            each.cancel()
        bench.may_end.set()
        await cancelled(task)

    bench.run(main)
    assert bench.given_back == [THING]


@pytest.mark.parametrize("error", [BusyError("lock-held", "it is in use"), Cancelled(), ValueError("wrong")])
def test_without_a_cancellation_the_error_of_the_maker_is_raised(error: Exception) -> None:
    bench = Bench(error)

    async def main() -> None:
        bench.may_end.set()
        with pytest.raises(type(error)) as caught:
            await bench.start()
        assert caught.value is error

    bench.run(main)
    assert (bench.given_back, bench.complaints) == ([], [])


@pytest.mark.parametrize("error", [BusyError("lock-held", "it is in use"), Cancelled()])
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("is_over", [True, False], ids=["failed before", "failed after"])
def test_after_a_cancellation_the_error_of_the_maker_is_nobodys_concern(
    error: Exception, times: int, is_over: bool
) -> None:
    bench = Bench(error)

    async def main() -> None:
        task = await bench.begin()
        if is_over:
            bench.end_making()
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        bench.may_end.set()
        await cancelled(task)
        bench.end_making()
        await asyncio.sleep(0)

    bench.run(main)
    assert (bench.given_back, bench.complaints) == ([], [])


@pytest.mark.parametrize("times", [1, 2])
def test_a_failure_to_give_it_back_does_not_replace_the_cancellation(times: int) -> None:
    bench = Bench()
    bench.return_error = BusyError("lock-held", "it is in use")
    bench.may_return.clear()

    async def main() -> None:
        task = await bench.begin()
        bench.end_making()
        task.cancel()
        await until(bench.returning)
        if times == 2:
            task.cancel()
            await cancelled(task)
        bench.may_return.set()
        await cancelled(task)

    bench.run(main)
    assert (bench.given_back, bench.complaints) == ([THING], [])


Starter = Callable[[], Coroutine[Any, Any, object]]


def launching(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Starter:
    monkeypatch.setattr(asynchronous, "launch", lambda *_, cancel, **__: bench.make(cancel))
    monkeypatch.setattr(Engine, "stop", lambda thing: bench.give_back(thing))
    return lambda: launch_async(LaunchOptions())


def embedding(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Starter:
    from opencoti.embedder import asynchronous as embedder

    monkeypatch.setattr(embedder, "start_embedder", lambda *_, cancel, **__: bench.make(cancel))
    monkeypatch.setattr(Embedder, "close", lambda thing: bench.give_back(thing))
    return lambda: start_embedder_async(EmbedderOptions())


def leasing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Starter:
    monkeypatch.setattr(LocalTier, "acquire", lambda _, *, cancel: bench.make(cancel))
    monkeypatch.setattr(Lease, "release", lambda thing: bench.give_back(thing))
    return lambda: LocalTier.__new__(LocalTier).acquire_async()


@pytest.mark.parametrize("way", [launching, embedding, leasing])
def test_engines_embedders_and_leases_survive_no_second_cancellation(
    way: Callable[[Bench, pytest.MonkeyPatch], Starter], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench()
    start = way(bench, monkeypatch)

    async def main() -> None:
        task = asyncio.create_task(start())
        await until(bench.begun)
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        bench.may_end.set()
        await cancelled(task)

    bench.run(main)
    assert (bench.given_back, bench.was_told_to_stop) == ([THING], True)
