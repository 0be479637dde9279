"""The compiler cache around one run of a stage, the same for every engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ci.engines.cache_relay import SOCKET_NAME, CacheRelay, cache_relay
from ci.engines.cache_stores import RemoteStorage
from ci.engines.compiler_cache import (
    STATS_FILE,
    CompilerCache,
    is_writable,
    mark_seen,
    read_size,
    read_use,
    report_use,
    size_gib,
)
from ci.engines.steps import Execute
from ci.stages.model import Stage
from opencoti.console import Console


class CacheSession:
    """The compiler cache of one run; `setup` is None when there is none. Made by `cache_session`."""

    def __init__(
        self, setup: CompilerCache | None, relay_folder: Path | None, relay: CacheRelay | None
    ) -> None:
        self.setup = setup
        self.relay_folder = relay_folder
        self._relay = relay

    def report(
        self, stage: Stage, execute: Execute, *, out: Path, tool_cache: Path, log: Path, console: Console
    ) -> None:
        """Say what the cache did, from the statistics that the calls left in the local build folder."""
        if self.setup is None:
            return
        path = out / STATS_FILE
        try:
            use = read_use(path.read_text(encoding="utf-8", errors="replace"))
            path.unlink()
        except OSError:
            return
        lines: list[str] = []
        if use.misses and execute((self.setup.program, "--print-stats"), lines.append).code == 0:
            use = replace(use, size_bytes=read_size(lines))
        with open(log, "a", encoding="utf-8") as file:
            report_use(
                use,
                limit_gib=self.setup.size_gib,
                console=console,
                log=lambda line: file.write(f"{line}\n"),
                is_known=mark_seen(tool_cache, stage, self.setup.compiler_id),
            )
        if self._relay is not None and self._relay.failures:
            console.warn(
                f"the shared compiler cache {self._relay.storage} failed {self._relay.failures} times: "
                "this build went on without it"
            )


@contextmanager
def cache_session(
    setup: CompilerCache | None,
    *,
    out: Path,
    tool_cache: Path,
    relay_place: Callable[[Path], str] | None,
    console: Console,
) -> Iterator[CacheSession]:
    """Provide the compiler cache of one run while the block runs.

    Args:
        setup: how it is used, without size and shared storage, which are filled in; None for no cache.
        out: the local build folder.
        tool_cache: the local tool cache.
        relay_place: where a stage sees a folder of this machine; None if it cannot see any.
        console: gets warnings.

    Raises:
        ConfigError: `ccache-size`, `ccache-remote`.
    """
    if setup is None or not is_writable(tool_cache, console):
        yield CacheSession(None, None, None)
        return
    (out / STATS_FILE).unlink(missing_ok=True)
    setup = replace(setup, size_gib=size_gib())
    storage = RemoteStorage.from_environment()
    if storage is None or relay_place is None:
        if storage is not None:
            console.warn("the shared compiler cache is not used: the stages run on another machine")
        yield CacheSession(setup, None, None)
        return
    with cache_relay(storage) as (relay, folder):
        address = f"redis+unix:{relay_place(folder)}/{SOCKET_NAME}"
        yield CacheSession(replace(setup, remote=address), folder, relay)
