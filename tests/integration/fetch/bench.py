"""One destination, one wanted file, and everything a fetch needs, with fake pauses and a real HTTP client."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from opencoti.chunks import ChunkHasher, ChunkTable
from opencoti.errors import OpencotiError
from opencoti.fetch.blueprint import Blueprint
from opencoti.fetch.download import Tools
from opencoti.fetch.get import Fetched, fetch, slot_for
from opencoti.fetch.partial import Partial
from opencoti.fetch.settings import Limits, Settings
from opencoti.fetch.source import Request, request_for_url
from opencoti.fetch.store import Slot
from opencoti.fetch.transport import HttpxTransport, Transport
from opencoti.fetch.workers import Piece
from tests.conftest import ROOT, RecordedConsole
from tests.fakes.http_faults import FaultServer

CONTENT = random.Random(7).randbytes(50_000)
SHA = hashlib.sha256(CONTENT).hexdigest()
NEVER = float("inf")
LIMITS = Limits(timeout_s=30.0, min_bytes_per_s=2000, tries=4, alone_bytes_per_s=NEVER)
STALL_S = 0.25
"""The time-out where a server is going to stall; elsewhere a busy machine would look like one."""


@dataclass
class Bench:
    """Runs fetches of `CONTENT` (or another hash) into `folder`."""

    folder: Path
    sha256: str = SHA
    transport: Transport | None = None
    transports: Mapping[float, Transport] = field(default_factory=dict)
    """By their time-outs, instead of one of its own for each fetch."""
    pauses: list[float] = field(default_factory=list)
    free: int | None = None
    open_partial: Callable[[Path], Partial] = Partial.open
    table: ChunkTable | None = None
    is_vouched: bool = False
    connections: int = 1
    fast_bytes_per_s: float = LIMITS.fast_bytes_per_s
    alone_bytes_per_s: float = LIMITS.alone_bytes_per_s
    seeds: tuple[Path, ...] = ()
    recorded: RecordedConsole = field(default_factory=RecordedConsole)

    @property
    def settings(self) -> Settings:
        limits = replace(
            LIMITS,
            connections=self.connections,
            fast_bytes_per_s=self.fast_bytes_per_s,
            alone_bytes_per_s=self.alone_bytes_per_s,
        )
        return Settings(artifacts=self.folder, limits=limits)

    def request(self, server: FaultServer) -> Request:
        return request_for_url(server.url(), self.sha256)

    def slot(self, server: FaultServer) -> Slot:
        return slot_for(self.request(server), self.settings, None)

    def fetch(self, server: FaultServer, *, is_offline: bool = False) -> Fetched:
        limits = replace(self.settings.limits, timeout_s=timeout_for(server))
        settings = replace(self.settings, is_offline=is_offline, limits=limits)
        return fetch(
            self.request(server),
            settings,
            self.recorded.console,
            seeds=self.seeds,
            find_chunks=None if self.table is None else lambda _: self._blueprint(server),
            open_tools=self._tools,
            open_partial=self.open_partial,
        )

    def outcome(self, server: FaultServer) -> OpencotiError | Fetched:
        """Fetch, and return the error as a value."""
        try:
            return self.fetch(server)
        except OpencotiError as error:
            return error

    def _blueprint(self, server: FaultServer) -> Blueprint:
        assert self.table is not None
        piece = Piece(url=server.url(), start=0, size=self.table.file_size)
        return Blueprint(table=self.table, pieces=(piece,), is_vouched=self.is_vouched)

    @contextmanager
    def _tools(self, limits: Limits) -> Iterator[Tools]:
        shared = self.transport or self.transports.get(limits.timeout_s)
        if shared is not None:
            yield self._with(shared)
            return
        with HttpxTransport(
            timeout_s=limits.timeout_s, fast_bytes_per_s=limits.fast_bytes_per_s
        ) as transport:
            yield self._with(transport)

    def _with(self, transport: Transport) -> Tools:
        tools = Tools(
            transport=transport,
            sleep=self.pauses.append,
            pause=lambda event, pause_s: self.pauses.append(pause_s),
        )
        return tools if self.free is None else replace(tools, free_bytes=lambda folder: self.free or 0)


def timeout_for(server: FaultServer) -> float:
    """Return the time-out of a fetch from this server, in seconds."""
    return STALL_S if server.will_stall else LIMITS.timeout_s


@contextmanager
def shared_transports(fast_bytes_per_s: float = LIMITS.fast_bytes_per_s) -> Iterator[dict[float, Transport]]:
    """Open a transport for each time-out, for many fetches."""
    with (
        HttpxTransport(timeout_s=STALL_S, fast_bytes_per_s=fast_bytes_per_s) as short,
        HttpxTransport(timeout_s=LIMITS.timeout_s, fast_bytes_per_s=fast_bytes_per_s) as long,
    ):
        yield {STALL_S: short, LIMITS.timeout_s: long}


def table_of(content: bytes, chunk_size: int = 4096) -> ChunkTable:
    hasher = ChunkHasher(chunk_size)
    hasher.update(memoryview(content))
    return hasher.finish()


def run_cli(
    *words: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `python -m opencoti.fetch` to its end."""
    return subprocess.run(
        cli_words(*words), cwd=cwd or ROOT, env=cli_env(env), capture_output=True, text=True, timeout=60
    )


def cli_words(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "opencoti.fetch", *map(str, words)]


def cli_env(extra: dict[str, str] | None = None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OPENCOTI_")}
    return {**kept, "PYTHONPATH": str(ROOT), **(extra or {})}
