"""A stage that nothing can run: for what is computed from stages alone."""

from __future__ import annotations

from typing import Final

from ci.stages.model import Stage, Step

STAGE: Final = Stage(
    name="cpu",
    toolchain="zig",
    steps=(Step(title="compile", argv=("{tools}/cc", "-j{jobs}", "{src}/a.c")),),
    env={"A": "{out}/x"},
    source_tree="1" * 40,
    inputs={"hook": "2" * 64},
    outputs=("bin/a",),
)
