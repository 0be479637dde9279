"""How the three folders of a stage (source, build folder, tool cache) get into its containers.

Bound: the daemon sees this machine's folders and mounts them. Remote (`ci.engines.remote`): it does not, and
they lie in volumes of the daemon. Either way a stage finds them at `/src`, `/out` and `/cache`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from ci.engines.container import CACHE, OUT, SRC, Mount, UserMapping
from ci.stages.model import Stage

# A build folder with this file in it is the local end of a remote one: it holds copies, not a build.
REMOTE_STATE: Final = ".opencoti-remote.json"


@dataclass(frozen=True, kw_only=True)
class StageFolders:
    """The local folders of one run of a stage."""

    source: Path
    out: Path
    tool_cache: Path


class Workplace(Protocol):
    """The folders of one run of a stage."""

    @property
    def mounts(self) -> tuple[Mount, ...]:
        """What every container of the stage mounts."""

    @property
    def user(self) -> UserMapping:
        """Under which user they run, so that the files belong to the caller (case B08)."""

    def explain_failure(self) -> None:
        """Raise what made a command fail, if that was not the command itself: `StorageError`."""

    def after_step(self) -> None:
        """Make what the checks between steps read visible in the local build folder."""

    def finish(self, stage: Stage) -> None:
        """Make the outputs of the stage visible in the local build folder."""


class BoundFolders:
    """Folders of this machine, mounted: there is nothing to carry."""

    def __init__(self, folders: StageFolders, user: UserMapping) -> None:
        self.user = user
        self.mounts = (
            Mount(source=str(folders.source.resolve()), target=SRC, is_read_only=True),
            Mount(source=str(folders.out.resolve()), target=OUT, is_read_only=False),
            Mount(source=str(folders.tool_cache.resolve()), target=CACHE, is_read_only=False),
        )

    def explain_failure(self) -> None:
        """See `Workplace.explain_failure`: the disk is ours, and looked at by whoever reports the failure."""

    def after_step(self) -> None:
        """See `Workplace.after_step`."""

    def finish(self, stage: Stage) -> None:
        """See `Workplace.finish`."""
