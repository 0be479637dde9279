"""Finding artifacts of this checkout."""

from __future__ import annotations

from pathlib import Path

from ci.paths import Layout
from opencoti.errors import MissingError
from opencoti.fetch.trial import suits_this_host


def newest_artifact(layout: Layout) -> Path:
    """Return the engine artifact for this machine that was packaged last.

    Raises:
        MissingError: `artifact-missing`, nothing was packaged yet.
    """
    folder = layout.dist / "llamafile"
    found = sorted(
        (path for path in folder.glob("opencoti-llamafile-*.llamafile") if suits_this_host(path.name)),
        key=lambda path: (path.stat().st_mtime_ns, path.name),
    )
    if not found:
        raise MissingError(
            "artifact-missing",
            f"there is no artifact in {folder}",
            hint="run `./noxw -s package`, or name a file",
        )
    return found[-1]
