"""Making room in the cache: what is pinned or among the newest stays, as does what somebody works on."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from opencoti.errors import ConfigError, storage_error
from opencoti.fetch.inventory import Entry, list_cache
from opencoti.fetch.lock import target_lock
from opencoti.fetch.store import Slot
from opencoti.pins import ArtifactPin

_KEY_DIGITS = 12


class _Held(Exception):  # noqa: N818 - an event
    """A process works on the file."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one file of the cache."""

    path: Path
    size: int
    is_removed: bool
    reason: str


@dataclass(frozen=True, kw_only=True)
class Cleaning:
    """What a cleaning did, or would do."""

    outcomes: tuple[Outcome, ...]
    is_dry_run: bool

    @property
    def freed_bytes(self) -> int:
        """How many bytes were, or would be, freed."""
        return sum(outcome.size for outcome in self.outcomes if outcome.is_removed)

    def as_text(self) -> str:
        """Return it as lines of text."""
        word = "would remove" if self.is_dry_run else "removed"
        lines = [
            f"{word if item.is_removed else 'kept'}: {item.path} ({item.size / 1e6:.1f} MB, {item.reason})"
            for item in self.outcomes
        ]
        freed = "would free" if self.is_dry_run else "freed"
        return "\n".join([*lines, f"{freed} {self.freed_bytes / 1e6:.1f} MB"])

    def as_dict(self) -> dict[str, object]:
        """Return it as data."""
        files = [{**vars(item), "path": str(item.path)} for item in self.outcomes]
        return {"files": files, "freed_bytes": self.freed_bytes, "is_dry_run": self.is_dry_run}


def pinned_hashes(pins: Iterable[Path]) -> frozenset[str]:
    """Return the SHA-256 that the shipped pin and these pin files name. Raises like `ArtifactPin.load`."""
    hashes = {ArtifactPin.load(path).sha256 for path in pins}
    try:
        hashes.add(ArtifactPin.load_shipped().sha256)
    except ConfigError as error:
        if error.error_id != "no-release":
            raise
    return frozenset(hashes)


def clean_cache(artifacts: Path, *, keep: int, pinned: Collection[str], is_dry_run: bool = False) -> Cleaning:
    """Remove what is neither pinned nor among the `keep` files that were asked for last.

    Unfinished downloads go too, unless a process works on them or they are of a pinned file. Locks stay,
    since another process may wait for one.

    Raises:
        StorageError: the cache cannot be read, or a file cannot be removed.
    """
    keys = {sha256[:_KEY_DIGITS] for sha256 in pinned}
    entries = list_cache(artifacts)
    finished = [entry for entry in entries if entry.is_complete and entry.path.parent.name not in keys]
    newest = {entry.path for entry in sorted(finished, key=_last_use, reverse=True)[:keep]}
    outcomes = [_settle(entry, keys, newest, is_dry_run=is_dry_run) for entry in entries]
    return Cleaning(outcomes=tuple(outcomes), is_dry_run=is_dry_run)


def _settle(entry: Entry, keys: Collection[str], newest: Collection[Path], *, is_dry_run: bool) -> Outcome:
    reason = _reason_to_stay(entry, keys, newest)
    if not reason and not is_dry_run:
        try:
            _remove(entry)
        except _Held:
            reason = "a process works on it"
        except OSError as exc:
            raise storage_error(exc, f"cannot remove {entry.path}") from exc
    gone = "old" if entry.is_complete else "unfinished"
    return Outcome(path=entry.path, size=entry.size, is_removed=not reason, reason=reason or gone)


def _reason_to_stay(entry: Entry, keys: Collection[str], newest: Collection[Path]) -> str:
    if entry.path.parent.name in keys:
        return "pinned"
    return "among the newest" if entry.path in newest else ""


def _remove(entry: Entry) -> None:
    def refuse(holder: str) -> None:
        raise _Held

    slot = Slot(folder=entry.path.parent, name=entry.path.name.removesuffix(".part"))
    with target_lock(slot.lock, refuse):
        files: Sequence[Path] = (slot.final, slot.stamp) if entry.is_complete else (slot.part, slot.note)
        for file in files:
            file.unlink(missing_ok=True)


def _last_use(entry: Entry) -> int:
    stamp = Slot(folder=entry.path.parent, name=entry.path.name).stamp
    for path in (stamp, entry.path):
        with suppress(OSError):
            return os.lstat(path).st_mtime_ns
    return 0
