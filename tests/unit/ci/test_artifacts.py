"""Finding the artifact that a command means when none is named."""

from __future__ import annotations

import os
import platform

import pytest

from ci.artifacts import newest_artifact
from ci.paths import Layout
from opencoti.errors import MissingError


def test_the_newest_artifact_is_taken(layout: Layout) -> None:
    folder = layout.dist / "llamafile"
    with pytest.raises(MissingError):
        newest_artifact(layout)
    folder.mkdir(parents=True)
    ours = platform.machine()
    other = "x86_64" if ours == "aarch64" else "aarch64"
    names = (
        f"opencoti-llamafile-b-linux-{ours}.llamafile",
        f"opencoti-llamafile-a-linux-{ours}.llamafile",
        f"opencoti-llamafile-c-linux-{ours}.llamafile.MANIFEST.json",
        f"opencoti-llamafile-e-linux-{other}.llamafile",  # cannot run here
        f"opencoti-embedder-d-linux-{ours}.llamafile",  # holds a model: only meant when it is named
    )
    for age, name in enumerate(names):
        (folder / name).touch()
        os.utime(folder / name, (1000 + age, 1000 + age))
    assert newest_artifact(layout).name == f"opencoti-llamafile-a-linux-{ours}.llamafile"
