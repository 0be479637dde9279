"""The engine `none`: runs nothing. What images made elsewhere is taken from the cache of finished stages.

For a machine that puts together what others built: a stage that was not handed over is an error there, and
not hours of compiling.
"""

from __future__ import annotations

from pathlib import Path

from ci.engines.model import PreparedToolchain
from ci.paths import Layout
from ci.stages.model import Stage
from ci.toolchains.recipe import Recipe
from opencoti.console import Console
from opencoti.errors import BuildError


class NoEngine:
    """Knows toolchains by the ids of their images, and starts nothing."""

    name = "none"

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def toolchain_id(self, toolchain: str) -> str:
        """See `Engine.toolchain_id`; the hash of the image's recipe."""
        return Recipe.load(self._layout.containers / toolchain).image_id

    def prepare(self, toolchain: str, console: Console) -> PreparedToolchain:
        """Raise `BuildError` (`stage-not-cached`): whoever asks has not found a finished stage."""
        raise BuildError(
            "stage-not-cached",
            f"no finished stage of toolchain {toolchain} fits, and --engine none builds none",
            why=f"{self._layout.stages} has none of this source, these patches and this image",
            hint="hand over what was built from this very commit, or build it with another engine",
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
        """Raise as `prepare` does, which comes first."""
        self.prepare(stage.toolchain, console)
