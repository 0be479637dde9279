"""The launcher for asyncio: the same steps in worker threads; a cancellation leaves nothing behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from opencoti.console import Console
from opencoti.launch.engine import DEFAULT_GRACE_S, Engine, launch
from opencoti.launch.options import LaunchOptions
from opencoti.launch.state import State

_POLL_S = 0.2


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
        task = asyncio.ensure_future(asyncio.to_thread(self.engine.stop, grace_s=grace_s))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await task
            raise

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
    cancel = threading.Event()
    task = asyncio.ensure_future(asyncio.to_thread(launch, options, console, environ=environ, cancel=cancel))
    try:
        return AsyncEngine(await asyncio.shield(task))
    except asyncio.CancelledError:
        cancel.set()
        await _end(task)
        raise


async def _end(task: asyncio.Future[Engine]) -> None:
    from opencoti.errors import OpencotiError
    from opencoti.launch.ready import Cancelled

    try:
        engine = await task
    except (Cancelled, OpencotiError):
        return
    await asyncio.to_thread(engine.stop)
