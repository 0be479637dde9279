"""The engine `docker`: stages run in containers of a pinned image that see nothing of this machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Final

from ci.engines.client import EngineClient
from ci.engines.container import (
    CACHE,
    OUT,
    SRC,
    ContainerRequest,
    Mount,
    UserMapping,
    map_user,
    run_container,
    sweep,
)
from ci.engines.endpoint import Daemon
from ci.engines.failures import StepExit
from ci.engines.image import TOOLS, ToolchainImage
from ci.engines.model import PreparedToolchain
from ci.engines.steps import make_tool_folders, run_steps, stage_environment
from ci.paths import Layout
from ci.stages.model import Expansion, Stage
from ci.toolchains.host import SYSTEM
from ci.toolchains.recipe import Recipe
from opencoti.console import Console
from opencoti.errors import UsageError


class DockerEngine:
    """Runs each step of a stage in a container of its own.

    Args:
        daemon: a daemon that answered.
        is_strict: accept only images made from exactly what the locks name (releases).
    """

    name: Final = "docker"

    def __init__(self, layout: Layout, daemon: Daemon, *, is_strict: bool = False) -> None:
        self._layout = layout
        self._daemon = daemon
        self._is_strict = is_strict
        self._images: dict[str, ToolchainImage] = {}
        self._swept = False

    def toolchain_id(self, toolchain: str) -> str:
        """See `Engine.toolchain_id`; the hash of the image's recipe."""
        return self._image(toolchain).recipe_id

    def prepare(self, toolchain: str, console: Console) -> PreparedToolchain:
        """See `Engine.prepare`; also removes what killed commands left running."""
        image = self._image(toolchain)
        if not self._swept:
            sweep(self._client, console)
            self._swept = True
        record = image.ensure(self._client, console)
        return PreparedToolchain(
            name=toolchain,
            id=image.recipe_id,
            tools=TOOLS,
            description=f"image {record.tag} on {self._daemon.kind} {self._daemon.version}",
            record={
                "kind": "image",
                "tag": record.tag,
                "recipe": record.recipe_id,
                "image_id": record.id,
                "debs": record.debs,
            },
        )

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
        expansion = Expansion(src=SRC, out=OUT, tools=TOOLS, jobs=jobs)
        make_tool_folders(tool_cache)
        mounts = (
            Mount(source=str(source.resolve()), target=SRC, is_read_only=True),
            Mount(source=str(out.resolve()), target=OUT, is_read_only=False),
            Mount(source=str(tool_cache.resolve()), target=CACHE, is_read_only=False),
        )
        image = self._image(stage.toolchain)
        environment = stage_environment(stage, expansion, tool_cache=CACHE, path=TOOLS)

        def execute(argv: tuple[str, ...], on_line: Callable[[str], None]) -> StepExit:
            request = ContainerRequest(
                image=image.tag,
                argv=argv,
                env=environment,
                mounts=mounts,
                user=self._user,
                platform=image.platform,
                memory_limit_mb=stage.memory_limit_mb,
                pids_limit=stage.pids_limit,
            )
            return run_container(self._client, request, on_line, console)

        run_steps(stage, expansion, execute, out=out, log=log, console=console)

    def close(self) -> None:
        """Close the connection to the daemon, if one was made."""
        if "_client" in self.__dict__:
            self._client.close()
            del self.__dict__["_client"]

    @cached_property
    def _client(self) -> EngineClient:
        return EngineClient(self._daemon)

    @cached_property
    def _user(self) -> UserMapping:
        return map_user(self._daemon.kind, self._client.info(), uid=os.getuid(), gid=os.getgid())

    def _image(self, toolchain: str) -> ToolchainImage:
        if toolchain not in self._images:
            self._images[toolchain] = ToolchainImage(
                self._recipe(toolchain), self._layout, is_strict=self._is_strict
            )
        return self._images[toolchain]

    def _recipe(self, toolchain: str) -> Recipe:
        if toolchain == SYSTEM:
            raise UsageError(
                "toolchain-needs-host",
                "--toolchain system works with the host engine only",
                why="a container sees nothing of this machine",
                hint="add --engine host, or leave --toolchain out",
            )
        return Recipe.load(self._layout.containers / toolchain)
