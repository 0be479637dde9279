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
    for age, name in enumerate(("b.llamafile", "a.llamafile", "c.llamafile.MANIFEST.json")):
        (folder / name).touch()
        os.utime(folder / name, (1000 + age, 1000 + age))
    assert newest_artifact(layout).name == "a.llamafile"
