"""The launcher for asyncio: the same steps in worker threads; a cancellation leaves nothing behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import copy_context
from types import TracebackType
from typing import Any, Self, TypeVar

from opencoti.console import Console
from opencoti.launch.engine import DEFAULT_GRACE_S, Engine, launch
from opencoti.launch.options import LaunchOptions
from opencoti.launch.state import State

_POLL_S = 0.2
T = TypeVar("T")


class AsyncEngine:
    """A ready engine, owned by this process; use it with `async with`, or await `stop`."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @property
    def url(self) -> str:
        """Base address, like `http://127.0.0.1:41234`."""
        return self.engine.url

    @property
    def state(self) -> State:
        """What is known about it."""
        return self.engine.state

    async def stop(self, *, grace_s: float = DEFAULT_GRACE_S) -> int | None:
        """End it; see `Engine.stop`. A cancellation is passed on after the engine is gone."""
        stopping = _in_thread(lambda: self.engine.stop(grace_s=grace_s))
        try:
            await asyncio.wait([stopping])
        except asyncio.CancelledError:
            await asyncio.wait([stopping])
            raise
        return stopping.result()

    async def wait(self) -> int | None:
        """Wait until it ends by itself; return its exit code."""
        while not self.engine.wait(0):
            await asyncio.sleep(_POLL_S)
        return self.engine.exit_code

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


async def launch_async(
    options: LaunchOptions, console: Console | None = None, *, environ: Mapping[str, str] | None = None
) -> AsyncEngine:
    """Start an engine and wait until it is ready, without blocking the event loop.

    When the task is cancelled meanwhile, the engine is ended before the cancellation goes on.

    Raises:
        OpencotiError: as `opencoti.launch.launch`.
    """

    def start(cancel: threading.Event) -> Engine:
        return launch(options, console, environ=environ, cancel=cancel)

    return AsyncEngine(await made_in_thread(start, Engine.stop))


async def made_in_thread(make: Callable[[threading.Event], T], give_back: Callable[[T], object]) -> T:
    """Make something that must be given back, in a worker thread.

    When the task is cancelled, the event that `make` was called with is set, and what it makes all the same
    is given back, in a thread too, before the cancellation goes on. Another cancellation ends that wait only.

    Raises:
        Exception: what `make` raises; after a cancellation no `OpencotiError` and no `Cancelled`.
    """
    cancel, handing_over = threading.Event(), threading.Lock()
    made: list[T] = []

    def work() -> None:
        thing = make(cancel)
        with handing_over:
            if not cancel.is_set():
                made.append(thing)
                return
        give_back(thing)

    making = _in_thread(work)
    try:
        await asyncio.wait([making])
    except asyncio.CancelledError:
        with handing_over:
            cancel.set()
        await _wait_quietly(_in_thread(lambda: give_back(made[0])) if made else making)
        raise
    making.result()
    return made[0]


def _in_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Begin it now. Unlike a task, it is not found and cancelled by a loop that ends all its tasks."""
    return asyncio.get_running_loop().run_in_executor(None, copy_context().run, work)


async def _wait_quietly(work: asyncio.Future[Any]) -> None:
    """Wait for what goes on if this wait is cancelled, and whose failure nobody wants to know."""
    from opencoti.errors import OpencotiError
    from opencoti.launch.ready import Cancelled

    work.add_done_callback(lambda done: done.cancelled() or done.exception())
    await asyncio.wait([work])
    with suppress(Cancelled, OpencotiError):
        work.result()
