"""What an engine is: the small interface that runs stages, whatever they run in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ci.stages.model import Stage
from opencoti.console import Console


@dataclass(frozen=True, kw_only=True)
class PreparedToolchain:
    """A toolchain that is ready to run on one engine.

    Args:
        id: part of every stage key.
        tools: folder with `cmake`, `ninja`, `cc`, `c++`, `ar`, `ranlib`, as a stage sees it.
        description: what it is, for the user.
        record: what a manifest says about it.
    """

    name: str
    id: str
    tools: str
    description: str
    record: Mapping[str, str] = field(default_factory=dict)


class Engine(Protocol):
    """Runs stages. An engine starts nothing before `prepare` or `run` is called."""

    @property
    def name(self) -> str:
        """Name of the engine ("host", "docker")."""

    def toolchain_id(self, toolchain: str) -> str:
        """Return the id of a toolchain without preparing it: no download, no daemon.

        Raises:
            ConfigError: there is no such toolchain, or its lock is malformed.
            MissingError: a program of the system toolchain is not there.
        """

    def prepare(self, toolchain: str, console: Console) -> PreparedToolchain:
        """Make a toolchain ready, by downloading and unpacking it or building its image.

        Raises:
            OpencotiError: what is missing, unreachable or wrong.
        """

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
        """Run every step of a stage.

        Args:
            stage: what to run.
            source: read only.
            out: the one folder that the stage writes products to; it exists.
            tool_cache: home and caches of the tools; it exists and may be kept between runs.
            jobs: what `{jobs}` stands for.
            log: gets everything that the steps print.
            console: gets progress and notices.

        Raises:
            BuildError: a step failed; nothing of it runs any more.
        """
