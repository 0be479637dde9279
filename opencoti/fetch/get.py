"""From a request to a finished file: look, lock, look again, fill the partial, try it, put it in place."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from opencoti.console import Console
from opencoti.errors import NetworkError, VerificationError, storage_error
from opencoti.fetch import store
from opencoti.fetch.blueprint import Blueprint, find_blueprint
from opencoti.fetch.credential import Credential
from opencoti.fetch.documents import Reader
from opencoti.fetch.download import Download, Tools, Transfer
from opencoti.fetch.local_copy import copy_into
from opencoti.fetch.lock import HeldLock, target_lock
from opencoti.fetch.partial import Partial
from opencoti.fetch.ranged import RangedDownload, TableUnfit
from opencoti.fetch.seeds import find_seeds
from opencoti.fetch.settings import Limits, Settings
from opencoti.fetch.source import HttpSource, Request
from opencoti.fetch.store import Slot
from opencoti.fetch.transport import HttpxTransport
from opencoti.fetch.trial import suits_this_host, try_engine

OpenTools = Callable[[Limits], AbstractContextManager[Tools]]
FindChunks = Callable[[Tools], Blueprint]
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
    seeded_bytes: int
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
    seeds: Sequence[Path] = (),
    find_chunks: FindChunks | None = None,
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
        seeds: older files that may hold parts of the wanted one; used where its chunk table is known. What
            stands in the place and the newest artifacts of the cache are looked at in any case.
        find_chunks: returns the chunks of the file, from a verified release; else the manifest of the request
            is tried. Called only if there is something to fetch.
        open_tools: another outside (network, clock, disk space) than the real one.
        open_partial: another kind of unfinished file.

    Raises:
        VerificationError, NetworkError, StorageError, ConfigError, MissingError, BusyError: as documented
            in `download`, `local_copy`, `trial`, `store` and `lock`.
    """
    started = time.monotonic()
    slot = slot_for(request, settings, dest)
    mode = _EXECUTABLE if request.is_executable else _PLAIN
    job = _Job(
        request=request,
        settings=settings,
        console=console,
        slot=slot,
        mode=mode,
        allow_trial=allow_trial,
        seeds=seeds,
        find_chunks=find_chunks,
        open_tools=open_tools or partial(open_real, credential=settings.credential),
        open_partial=open_partial,
    )
    transfer = None
    if not job.is_done():
        if settings.is_offline and isinstance(request.source, HttpSource):
            raise _offline(request, request.source)
        store.prepare(slot)
        with target_lock(slot.lock, job.announce_wait) as held:
            if not job.is_done():
                transfer = job.work(held)
    store.set_mode(slot, mode)
    store.note_use(slot)
    return _fetched(request, slot, transfer, time.monotonic() - started)


@dataclass(frozen=True, kw_only=True)
class _Job:
    """The steps of one fetch."""

    request: Request
    settings: Settings
    console: Console
    slot: Slot
    mode: int
    allow_trial: bool
    seeds: Sequence[Path]
    find_chunks: FindChunks | None
    open_tools: OpenTools
    open_partial: OpenPartial

    def is_done(self) -> bool:
        """Tell whether the right file is in its place."""
        return store.inspect(self.slot).sha256 == self.request.sha256

    def announce_wait(self, holder: str) -> None:
        """Say why nothing happens."""
        self.console.info(f"{self.slot.name}: process {holder or '?'} is fetching it; waiting")

    def work(self, held: HeldLock) -> Transfer:
        """Fill, try and place, under the lock."""
        with self.open_partial(self.slot.part) as part:
            with self._tidy(part):
                transfer = self._fill(part)
            try:
                part.finish(self.mode)
                part.reopen_for_reading()
            except OSError as exc:
                free = store.free_bytes(self.slot.folder)
                raise store.write_failure(exc, self.slot, needed=None, free=free) from exc
            if self.allow_trial and self.request.is_executable and suits_this_host(self.request.name):
                self.console.info(f"{self.slot.name}: verified; trying whether it starts here")
                try_engine(self.slot.part)
            held.require_held()
            store.place(self.slot, part, self.request.sha256)
        return transfer

    @contextmanager
    def _tidy(self, part: Partial) -> Iterator[None]:
        """Leave no partial behind that holds nothing."""
        try:
            yield
        except BaseException:
            if part.stored_bytes == 0:
                store.discard(self.slot)
            raise

    def _fill(self, part: Partial) -> Transfer:
        request, source = self.request, self.request.source
        self.console.info(f"{request.name}: from {source}")
        if not isinstance(source, HttpSource):
            size = copy_into(source, request.sha256, slot=self.slot, part=part, console=self.console)
            return Transfer(transferred_bytes=size, resumed_from=0)
        with self.open_tools(self.settings.limits) as tools:
            return self._download(source.url, part, tools)

    def _download(self, url: str, part: Partial, tools: Tools) -> Transfer:
        limits = self.settings.limits
        blueprint = self._find_chunks(tools)
        wasted = 0
        if blueprint is not None:
            ranged = self._ranged(blueprint, part, tools)
            try:
                return ranged.run()
            except TableUnfit as unfit:
                self._judge_unfit(unfit, blueprint, url)
                wasted = ranged.transferred_bytes
        elif self.seeds:
            self.console.warn(f"{self.request.name}: without a chunk table older files are of no use")
        whole = Download(
            url,
            self.request.sha256,
            slot=self.slot,
            part=part,
            limits=limits,
            tools=tools,
            console=self.console,
        ).run()
        return replace(whole, transferred_bytes=whole.transferred_bytes + wasted)

    def _find_chunks(self, tools: Tools) -> Blueprint | None:
        if self.find_chunks is not None:
            return self.find_chunks(tools)
        reader = Reader(tools, self.settings.limits, self.console)
        return find_blueprint(self.request, reader, self.console)

    def _ranged(self, blueprint: Blueprint, part: Partial, tools: Tools) -> RangedDownload:
        return RangedDownload(
            blueprint.pieces,
            self.request.sha256,
            blueprint.table,
            slot=self.slot,
            part=part,
            limits=self.settings.limits,
            tools=tools,
            console=self.console,
            seeds=find_seeds(self.seeds, self.slot, self.settings.artifacts),
        )

    def _judge_unfit(self, unfit: TableUnfit, blueprint: Blueprint, url: str) -> None:
        """End here if the table is beyond doubt, else go on without it."""
        if blueprint.is_vouched:
            store.discard(self.slot)
            raise VerificationError(
                "hash-mismatch",
                f"what {url} gave is not the wanted file, and was removed",
                why=unfit.reason,
                hint="check whether a proxy or mirror in between changes files",
            )
        self.console.warn(f"{self.request.name}: {unfit.reason}; going on without the chunk table")


@contextmanager
def open_real(limits: Limits, credential: Credential | None = None) -> Iterator[Tools]:
    """Open the real outside; `credential` is for one server (`Settings.credential`)."""
    with HttpxTransport(
        timeout_s=limits.timeout_s, fast_bytes_per_s=limits.fast_bytes_per_s, credential=credential
    ) as transport:
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
        seeded_bytes=transfer.seeded_bytes if transfer else 0,
        seconds=seconds,
    )


def _offline(request: Request, source: HttpSource) -> NetworkError:
    return NetworkError(
        "offline",
        f"{request.name} is not here, and OPENCOTI_OFFLINE forbids to get it from {source.url}",
        hint="unset OPENCOTI_OFFLINE, or use a copy on disk: a `file:` pin, or OPENCOTI_LLAMAFILE_LOCAL",
    )
