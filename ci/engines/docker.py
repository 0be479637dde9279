"""The engine `docker`: stages run in containers of a pinned image that see nothing of this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Final, Protocol

from ci.engines.caching import CacheSession, cache_session
from ci.engines.client import EngineClient
from ci.engines.compiler_cache import CompilerCache, is_cache_wanted
from ci.engines.container import (
    CACHE,
    OUT,
    SRC,
    ContainerRequest,
    Mount,
    UserMapping,
    map_user,
    new_run_id,
    run_container,
    sweep,
)
from ci.engines.endpoint import Daemon
from ci.engines.failures import StepExit
from ci.engines.image import TOOLS, ToolchainImage
from ci.engines.jobs import JobPool, fitting_jobs, is_default, pool_of
from ci.engines.model import PreparedToolchain
from ci.engines.reach import sees_folders
from ci.engines.remote import RemotePlan, leave_remote, remote_folders
from ci.engines.steps import Execute, make_tool_folders, run_steps, stage_environment
from ci.engines.tunnel import Tunnel
from ci.engines.volumes import client_id, sweep_volumes
from ci.engines.workplace import BoundFolders, StageFolders, Workplace
from ci.paths import Layout
from ci.stages.model import Expansion, Stage
from ci.toolchains.host import SYSTEM
from ci.toolchains.recipe import Recipe
from opencoti.console import Console
from opencoti.errors import UsageError

# Where a container finds the socket of a shared compiler cache, and the pipe of a job pool.
STORAGE: Final = "/ccache-storage"
POOL: Final = "/jobs"


class Reach(Protocol):
    """Tells whether a daemon can mount folders of this machine; see `sees_folders`."""

    def __call__(
        self, client: EngineClient, image: str, folders: StageFolders, *, platform: str, console: Console
    ) -> bool:
        """Tell it."""


class DockerEngine:
    """Runs each step of a stage in a container of its own.

    Args:
        daemon: a daemon that answered.
        is_strict: accept only images made from exactly what the locks name (releases).
        sees: tells whether the daemon can mount folders of this machine.
        tunnel: what the daemon is reached through; it lives as long as this engine.
    """

    name: Final = "docker"

    def __init__(
        self,
        layout: Layout,
        daemon: Daemon,
        *,
        is_strict: bool = False,
        sees: Reach = sees_folders,
        tunnel: Tunnel | None = None,
    ) -> None:
        self._tunnel = tunnel
        self._layout = layout
        self._daemon = daemon
        self._is_strict = is_strict
        self._sees = sees
        self._is_bound: bool | None = None
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
            sweep_volumes(self._client, console, owner=client_id(self._layout.cache))
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
        image = self._image(stage.toolchain)
        folders = StageFolders(source=source, out=out, tool_cache=tool_cache)
        is_bound = self._can_mount(image, folders, console)
        # A pool is a pipe of this machine: a daemon elsewhere has its processors for itself.
        count = self._jobs(jobs) if is_bound else int(self._jobs(jobs))
        pool = pool_of(count)
        expansion = Expansion(src=SRC, out=OUT, tools=TOOLS, jobs=count)
        setup = CompilerCache(program=f"{TOOLS}/ccache", compiler_id=image.recipe_id, out=OUT)
        is_cached = is_cache_wanted(
            tool_cache=tool_cache, cache=self._layout.cache, is_strict=self._is_strict
        )
        with (
            cache_session(
                setup if is_cached else None,
                out=out,
                tool_cache=tool_cache,
                relay_place=(lambda _: STORAGE) if is_bound else None,
                console=console,
            ) as session,
            pool.slot() if pool else nullcontext(),
        ):
            environment = stage_environment(
                stage,
                expansion,
                tool_cache=CACHE,
                path=TOOLS,
                cache=session.setup,
                pool=POOL if pool else "",
            )
            template = ContainerRequest(
                image=image.tag,
                argv=(),
                env=environment,
                mounts=_extra_mounts(session, pool),
                user=UserMapping(user=f"{os.getuid()}:{os.getgid()}"),
                platform=image.platform,
                memory_limit_mb=stage.memory_limit_mb,
                pids_limit=stage.pids_limit,
            )
            with self._workplace(template, folders, console) as place:
                execute = self._executor(template, place, console)
                run_steps(stage, expansion, execute, out=out, log=log, console=console)
                place.finish(stage)
                session.report(stage, execute, out=out, tool_cache=tool_cache, log=log, console=console)

    def _executor(self, template: ContainerRequest, place: Workplace, console: Console) -> Execute:
        mounts = (*place.mounts, *template.mounts)

        def execute(argv: tuple[str, ...], on_line: Callable[[str], None]) -> StepExit:
            request = replace(template, argv=argv, mounts=mounts, user=place.user, run_id=new_run_id())
            ended = run_container(self._client, request, on_line, console)
            if ended.code != 0:
                place.explain_failure()
            place.after_step()
            return ended

        return execute

    def _can_mount(self, image: ToolchainImage, folders: StageFolders, console: Console) -> bool:
        """Tell whether the daemon sees the folders of this machine; asked once."""
        if self._is_bound is None:
            self._is_bound = self._sees(
                self._client, image.tag, folders, platform=image.platform, console=console
            )
            if not self._is_bound:
                console.info(
                    f"{self._daemon.endpoint} does not see the folders of this machine: "
                    "files are sent there and back"
                )
        return self._is_bound

    @contextmanager
    def _workplace(
        self, template: ContainerRequest, folders: StageFolders, console: Console
    ) -> Iterator[Workplace]:
        """Provide the folders: mounted where the daemon sees them, else carried there and back."""
        if self._is_bound:
            leave_remote(folders.out)
            make_tool_folders(folders.tool_cache)
            yield BoundFolders(folders, self._user)
            return
        plan = RemotePlan(
            template=template,
            folders=folders,
            owner=client_id(self._layout.cache),
            is_cache_kept=folders.tool_cache.is_relative_to(self._layout.cache),
        )
        with remote_folders(self._client, plan, console) as remote:
            yield remote

    def _jobs(self, jobs: int) -> int:
        """As many as were asked for, else as many as the daemon's machine can run."""
        if not is_default(jobs):
            return jobs
        info = self._client.info()
        return fitting_jobs(int(info.get("NCPU") or jobs), int(info.get("MemTotal") or 1 << 40))

    def close(self) -> None:
        """Close what was opened to reach the daemon."""
        if "_client" in self.__dict__:
            self._client.close()
            del self.__dict__["_client"]
        if self._tunnel is not None:
            self._tunnel.close()

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


def _extra_mounts(session: CacheSession, pool: JobPool | None) -> tuple[Mount, ...]:
    mounts = []
    if session.relay_folder is not None:
        mounts.append(Mount(source=str(session.relay_folder), target=STORAGE, is_read_only=True))
    if pool is not None:
        mounts.append(Mount(source=str(pool.path), target=POOL, is_read_only=False))
    return tuple(mounts)
