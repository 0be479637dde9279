"""Which files on this machine may hold parts of a wanted one: older artifacts, and what is in its place."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from opencoti.fetch.store import Slot

# Each one is read in full, which costs about a second per GB.
_MOST_FOUND = 2


@dataclass(frozen=True, kw_only=True)
class _Candidate:
    path: Path
    mtime_ns: int


def find_seeds(named: Sequence[Path], slot: Slot, artifacts: Path) -> list[Path]:
    """Return the files to look at, in this order: named ones, the one in the place, the newest of its kind.

    Of its kind are finished files with the same ending, in the cache and in the folder of the target.
    """
    found = sorted(_of_its_kind(slot, artifacts), key=lambda item: item.mtime_ns, reverse=True)
    newest = [item.path for item in found if item.path not in named]
    in_place = [slot.final] if os.path.lexists(slot.final) else []
    return [*named, *in_place, *newest[:_MOST_FOUND]]


def _of_its_kind(slot: Slot, artifacts: Path) -> Iterator[_Candidate]:
    ending = Path(slot.name).suffix
    if not ending:
        return
    for folder in {slot.folder, *_subfolders(artifacts)}:
        with suppress(OSError):
            for entry in os.scandir(folder):
                path = folder / entry.name
                if entry.name.endswith(ending) and not entry.name.startswith(".") and path != slot.final:
                    found = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(found.st_mode):
                        yield _Candidate(path=path, mtime_ns=found.st_mtime_ns)


def _subfolders(artifacts: Path) -> list[Path]:
    with suppress(OSError):
        return [artifacts / entry.name for entry in os.scandir(artifacts) if entry.is_dir()]
    return []
