"""From a request to a finished file: look, lock, look again, fill the partial, try it, put it in place."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from opencoti.console import Console
from opencoti.errors import NetworkError, storage_error
from opencoti.fetch import store
from opencoti.fetch.download import Download, Tools, Transfer
from opencoti.fetch.local_copy import copy_into
from opencoti.fetch.lock import HeldLock, target_lock
from opencoti.fetch.partial import Partial
from opencoti.fetch.settings import Limits, Settings
from opencoti.fetch.source import HttpSource, Request
from opencoti.fetch.store import Slot
from opencoti.fetch.transport import HttpxTransport
from opencoti.fetch.trial import suits_this_host, try_engine

OpenTools = Callable[[Limits], AbstractContextManager[Tools]]
OpenPartial = Callable[[Path], Partial]
_EXECUTABLE, _PLAIN = 0o755, 0o644


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """A verified file in its place, and how it came there."""

    path: Path
    sha256: str
    size: int
    action: Literal["already-there", "copied", "downloaded"]
    source: str
    transferred_bytes: int
    resumed_from: int
    seconds: float

    def as_dict(self) -> dict[str, object]:
        """Return it as data, the form that `--json` prints."""
        return {**vars(self), "path": str(self.path), "seconds": round(self.seconds, 3)}


def slot_for(request: Request, settings: Settings, dest: Path | None) -> Slot:
    """Return where a request's file belongs: in `dest`, else in the cache under its hash."""
    folder = settings.artifacts / request.sha256[:12] if dest is None else Path(os.path.abspath(dest))
    return Slot(folder=folder, name=request.name)


def fetch(
    request: Request,
    settings: Settings,
    console: Console,
    *,
    dest: Path | None = None,
    allow_trial: bool = True,
    open_tools: OpenTools | None = None,
    open_partial: OpenPartial = Partial.open,
) -> Fetched:
    """Make sure that the wanted file is in its place, and return it.

    Does nothing where it already is (no network; its bytes are read only if they changed since the last
    time). Several processes may ask for the same file at once: one works, the others wait for it. A killed
    run leaves a partial that the next one goes on with. Whatever stood in the place before stays until the
    new file is verified.

    Args:
        request: what, and from where.
        settings: cache folder, limits and switches.
        console: told about progress.
        dest: folder to put it in, instead of the cache.
        allow_trial: start an engine of this platform once (`--version`) before it is handed over.
        open_tools: another outside (network, clock, disk space) than the real one.
        open_partial: another kind of unfinished file.

    Raises:
        VerificationError, NetworkError, StorageError, ConfigError, MissingError, BusyError: as documented
            in `download`, `local_copy`, `trial`, `store` and `lock`.
    """
    started = time.monotonic()
    slot = slot_for(request, settings, dest)
    mode = _EXECUTABLE if request.is_executable else _PLAIN
    job = _Job(request, settings, console, slot, mode, allow_trial, open_tools or _open_real, open_partial)
    transfer = None
    if not job.is_done():
        if settings.is_offline and isinstance(request.source, HttpSource):
            raise _offline(request, request.source)
        store.prepare(slot)
        with target_lock(slot.lock, job.announce_wait) as held:
            if not job.is_done():
                transfer = job.work(held)
    store.set_mode(slot, mode)
    return _fetched(request, slot, transfer, time.monotonic() - started)


class _Job:
    """The steps of one fetch."""

    def __init__(
        self,
        request: Request,
        settings: Settings,
        console: Console,
        slot: Slot,
        mode: int,
        allow_trial: bool,
        open_tools: OpenTools,
        open_partial: OpenPartial,
    ) -> None:
        self._request = request
        self._settings = settings
        self._console = console
        self._slot = slot
        self._mode = mode
        self._allow_trial = allow_trial
        self._open_tools = open_tools
        self._open_partial = open_partial

    def is_done(self) -> bool:
        """Tell whether the right file is in its place."""
        return store.inspect(self._slot).sha256 == self._request.sha256

    def announce_wait(self, holder: str) -> None:
        """Say why nothing happens."""
        self._console.info(f"{self._slot.name}: process {holder or '?'} is fetching it; waiting")

    def work(self, held: HeldLock) -> Transfer:
        """Fill, try and place, under the lock."""
        with self._open_partial(self._slot.part) as part:
            with self._tidy(part):
                transfer = self._fill(part)
            try:
                part.finish(self._mode)
                part.reopen_for_reading()
            except OSError as exc:
                free = store.free_bytes(self._slot.folder)
                raise store.write_failure(exc, self._slot, needed=None, free=free) from exc
            if self._allow_trial and self._request.is_executable and suits_this_host(self._request.name):
                self._console.info(f"{self._slot.name}: verified; trying whether it starts here")
                try_engine(self._slot.part)
            held.require_held()
            store.place(self._slot, part, self._request.sha256)
        return transfer

    @contextmanager
    def _tidy(self, part: Partial) -> Iterator[None]:
        """Leave no partial behind that holds nothing."""
        try:
            yield
        except BaseException:
            if part.stored_bytes == 0:
                store.discard(self._slot)
            raise

    def _fill(self, part: Partial) -> Transfer:
        request, source = self._request, self._request.source
        self._console.info(f"{request.name}: from {source}")
        if not isinstance(source, HttpSource):
            size = copy_into(source, request.sha256, slot=self._slot, part=part, console=self._console)
            return Transfer(transferred_bytes=size, resumed_from=0)
        with self._open_tools(self._settings.limits) as tools:
            return Download(
                source.url,
                request.sha256,
                slot=self._slot,
                part=part,
                limits=self._settings.limits,
                tools=tools,
                console=self._console,
            ).run()


@contextmanager
def _open_real(limits: Limits) -> Iterator[Tools]:
    with HttpxTransport(timeout_s=limits.timeout_s) as transport:
        yield Tools(transport=transport)


def _fetched(request: Request, slot: Slot, transfer: Transfer | None, seconds: float) -> Fetched:
    try:
        size = slot.final.stat().st_size
    except OSError as exc:
        raise storage_error(exc, f"cannot read {slot.final}") from exc
    action: Literal["already-there", "copied", "downloaded"] = "already-there"
    if transfer is not None:
        action = "downloaded" if isinstance(request.source, HttpSource) else "copied"
    return Fetched(
        path=slot.final,
        sha256=request.sha256,
        size=size,
        action=action,
        source=str(request.source),
        transferred_bytes=transfer.transferred_bytes if transfer else 0,
        resumed_from=transfer.resumed_from if transfer else 0,
        seconds=seconds,
    )


def _offline(request: Request, source: HttpSource) -> NetworkError:
    return NetworkError(
        "offline",
        f"{request.name} is not here, and OPENCOTI_OFFLINE forbids to get it from {source.url}",
        hint="unset OPENCOTI_OFFLINE, or use a copy on disk: a `file:` pin, or OPENCOTI_LLAMAFILE_LOCAL",
    )
