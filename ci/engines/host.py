"""The engine `host`: stages run on this machine, with a minimal environment and, if allowed, no network."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Final

from ci import process
from ci.engines.caching import cache_session
from ci.engines.compiler_cache import CompilerCache, find_ccache, is_cache_wanted, write_prefix
from ci.engines.failures import StepExit
from ci.engines.jobs import pool_of
from ci.engines.model import PreparedToolchain
from ci.engines.steps import make_tool_folders, run_steps, stage_environment
from ci.paths import Layout
from ci.stages.model import Expansion, Stage
from ci.toolchains.host import HostToolchain, find_toolchain
from opencoti.console import Console

_ISOLATED: Final = Path(__file__).with_name("isolated.py")
_PYTHON: Final = (sys.executable, "-I", "-S", str(_ISOLATED))
_ISOLATION_TEXT: Final = {
    "root": "no network, own process namespace",
    "user": "no network, own user and process namespaces",
}


def isolation_mode() -> str:
    """Return how this machine lets stages be isolated: `root`, `user`, or an empty string for not at all."""
    mode = process.run((*_PYTHON, "probe")).text
    return mode if mode in _ISOLATION_TEXT else ""


class HostEngine:
    """Runs stages as processes of this machine. Keeps nothing running between calls.

    Args:
        find: looks a toolchain up.
        is_strict: use no compiler cache (releases).
    """

    name: Final = "host"

    def __init__(
        self,
        layout: Layout,
        *,
        find: Callable[[str, Layout], HostToolchain] = find_toolchain,
        is_strict: bool = False,
    ) -> None:
        self._layout = layout
        self._is_strict = is_strict
        self._find = find
        self._toolchains: dict[str, HostToolchain] = {}
        self._tools: dict[str, Path] = {}
        self._isolation = ""

    def toolchain_id(self, toolchain: str) -> str:
        """See `Engine.toolchain_id`."""
        return self._toolchain(toolchain).id

    def prepare(self, toolchain: str, console: Console) -> PreparedToolchain:
        """See `Engine.prepare`."""
        found = self._toolchain(toolchain)
        self._tools[toolchain] = found.prepare(console)
        return PreparedToolchain(
            name=toolchain,
            id=found.id,
            tools=str(self._tools[toolchain]),
            description=found.description,
            record={**found.record, "kind": "host", "id": found.id, "description": found.description},
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
        found = self._toolchain(stage.toolchain)
        tools = self._tools.get(stage.toolchain) or found.prepare(console)
        found.check(stage)
        expansion = Expansion(src=str(source), out=str(out), tools=str(tools), jobs=jobs)
        make_tool_folders(tool_cache)
        setup = self._compiler_cache(found.id, source=source, out=out, tool_cache=tool_cache)
        pool = pool_of(jobs)
        prefix = self._prefix(console)
        with (
            cache_session(setup, out=out, tool_cache=tool_cache, relay_place=str, console=console) as session,
            pool.slot() if pool else nullcontext(),
        ):
            environment = stage_environment(
                stage,
                expansion,
                tool_cache=str(tool_cache),
                path=os.pathsep.join((str(tools), *found.extra_path)),
                cache=session.setup,
                pool=str(pool.path) if pool else "",
            )

            def execute(argv: tuple[str, ...], on_line: Callable[[str], None]) -> StepExit:
                code = process.stream((*prefix, *argv), on_line, cwd=out, env=environment)
                return StepExit(code=code if code >= 0 else 128 - code)

            run_steps(stage, expansion, execute, out=out, log=log, console=console)
            session.report(stage, execute, out=out, tool_cache=tool_cache, log=log, console=console)

    def _compiler_cache(
        self, compiler_id: str, *, source: Path, out: Path, tool_cache: Path
    ) -> CompilerCache | None:
        is_wanted = is_cache_wanted(
            tool_cache=tool_cache, cache=self._layout.cache, is_strict=self._is_strict
        )
        program = find_ccache() if is_wanted else ""
        if not program:
            return None
        return CompilerCache(
            program=program,
            compiler_id=compiler_id,
            out=str(out),
            source=str(source),
            prefix=write_prefix(tool_cache),
            source_from_out=os.path.relpath(source, out),
        )

    def _toolchain(self, name: str) -> HostToolchain:
        if name not in self._toolchains:
            self._toolchains[name] = self._find(name, self._layout)
        return self._toolchains[name]

    def _prefix(self, console: Console) -> tuple[str, ...]:
        """The words that start a command isolated, as far as this machine allows (told once)."""
        if not self._isolation:
            self._isolation = isolation_mode() or "none"
            if text := _ISOLATION_TEXT.get(self._isolation):
                console.info(f"engine host: stages run isolated ({text})")
            else:
                console.warn(
                    "engine host: this machine allows no namespaces, so stages could reach the network; "
                    "the engine docker has none"
                )
        return (*_PYTHON, self._isolation, str(os.getpid()))
