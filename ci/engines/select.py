"""Choosing an engine: `host`, `docker`, `auto` (docker where it works and host elsewhere), or `none`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, assert_never

from ci.engines.docker import DockerEngine
from ci.engines.endpoint import find_endpoint, probe, uses_tls
from ci.engines.host import HostEngine
from ci.engines.model import Engine, PreparedToolchain
from ci.engines.none import NoEngine
from ci.engines.tunnel import open_tunnel
from ci.paths import Layout
from ci.stages.model import Stage
from ci.toolchains.host import SYSTEM
from opencoti.console import Console
from opencoti.errors import MissingError, NetworkError, OpencotiError, StorageError

EngineName = Literal["auto", "host", "docker", "none"]


def select_engine(name: EngineName, layout: Layout, console: Console, *, is_strict: bool = False) -> Engine:
    """Return the engine `name`.

    With `is_strict` (releases) only images made from exactly what the locks name are accepted, and no
    compiler cache is used.

    Raises:
        MissingError: `docker` was asked for and no daemon answers; the text says what exactly is wrong.
        NetworkError: ssh does not reach the machine of the daemon.
    """
    if name == "host":
        return HostEngine(layout, is_strict=is_strict)
    if name == "none":
        return NoEngine(layout)
    if name == "docker":
        return _docker(layout, console, is_strict=is_strict)
    if name == "auto":
        try:
            docker = _docker(layout, console, is_strict=is_strict)
        except (MissingError, NetworkError) as error:
            console.info(f"engine host is used: {error}")
            return HostEngine(layout, is_strict=is_strict)
        return AutoEngine(docker, HostEngine(layout, is_strict=is_strict), console)
    assert_never(name)


class AutoEngine:
    """docker until its image cannot be had, then host for the rest of the run."""

    def __init__(self, docker: Engine, host: Engine, console: Console) -> None:
        self._engine = docker
        self._host = host
        self._console = console

    @property
    def name(self) -> str:
        """Name of the engine that is used now."""
        return self._engine.name

    def toolchain_id(self, toolchain: str) -> str:
        """See `Engine.toolchain_id`."""
        if toolchain == SYSTEM:
            self._engine = self._host
        return self._engine.toolchain_id(toolchain)

    def prepare(self, toolchain: str, console: Console) -> PreparedToolchain:
        """See `Engine.prepare`; the id is another one when the host engine had to take over."""
        if self._engine is self._host:
            return self._host.prepare(toolchain, console)
        try:
            return self._engine.prepare(toolchain, console)
        except (MissingError, NetworkError, StorageError) as error:
            self._fall_back(error)
            return self._host.prepare(toolchain, console)

    def run(
        self,
        stage: Stage,
        *,
        source: Path,
        out: Path,
        tool_cache: Path,
        jobs: int,
        log: Path,
        console: Console,
    ) -> None:
        """See `Engine.run`."""
        self._engine.run(
            stage, source=source, out=out, tool_cache=tool_cache, jobs=jobs, log=log, console=console
        )

    def _fall_back(self, error: OpencotiError) -> None:
        self._console.warn(f"engine docker does not work here ({error}): engine host is used")
        self._engine = self._host


def _docker(layout: Layout, console: Console, *, is_strict: bool) -> DockerEngine:
    endpoint = find_endpoint()
    if endpoint.is_open_to_others and not uses_tls():
        console.warn(
            f"the container engine at {endpoint} is used without TLS: whoever reaches that port owns the "
            "machine, and whoever is in between can change a build; ssh:// is safe"
        )
    tunnel = open_tunnel(endpoint) if endpoint.url.startswith("ssh:") else None
    near = tunnel.endpoint if tunnel else endpoint
    return DockerEngine(layout, probe(near, with_tls=uses_tls()), is_strict=is_strict, tunnel=tunnel)
