"""Folders of the build cache that nobody has used for a month: they go when another one is made."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

UNUSED_DAYS: Final = 30.0
_MARK: Final = ".last-used"


def mark_used(folder: Path) -> None:
    """Record that a folder is used from now on. Failing to is no reason to stop.

    Call it before the folder is looked at or made: another command may be removing what is unused.
    """
    mark = folder.with_name(f"{_MARK}-{folder.name}")
    with suppress(OSError):
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
        os.utime(mark)


def remove_unused(parent: Path, *, now: float | None = None) -> list[str]:
    """Remove the folders below `parent` whose last use is more than a month ago; return their names."""
    limit = (time.time() if now is None else now) - UNUSED_DAYS * 86400
    removed = []
    for mark in parent.glob(f"{_MARK}-*"):
        with suppress(OSError):
            if mark.stat().st_mtime < limit:
                name = mark.name.removeprefix(f"{_MARK}-")
                mark.unlink()
                shutil.rmtree(parent / name, ignore_errors=True)
                removed.append(name)
    return removed
