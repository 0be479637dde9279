"""Finding the artifact that a command means when none is named."""

from __future__ import annotations

import os

import pytest

from ci.artifacts import newest_artifact
from ci.paths import Layout
from opencoti.errors import MissingError


def test_the_newest_artifact_is_taken(layout: Layout) -> None:
    folder = layout.dist / "llamafile"
    with pytest.raises(MissingError):
        newest_artifact(layout)
    folder.mkdir(parents=True)
    names = (
        "opencoti-llamafile-b.llamafile",
        "opencoti-llamafile-a.llamafile",
        "opencoti-llamafile-c.llamafile.MANIFEST.json",
        "opencoti-embedder-d.llamafile",  # holds a model: only meant when it is named
    )
    for age, name in enumerate(names):
        (folder / name).touch()
        os.utime(folder / name, (1000 + age, 1000 + age))
    assert newest_artifact(layout).name == "opencoti-llamafile-a.llamafile"
