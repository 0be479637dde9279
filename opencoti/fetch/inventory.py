"""What the cache holds, and what `get` would do: read-only views for people and programs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from opencoti.errors import storage_error
from opencoti.fetch import store
from opencoti.fetch.choose import Choice, Verdict
from opencoti.fetch.settings import Settings
from opencoti.fetch.source import HttpSource, Request
from opencoti.fetch.store import Slot


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One file of the cache. `is_complete` is false for what a stopped download left."""

    path: Path
    size: int
    is_complete: bool

    def as_dict(self) -> dict[str, object]:
        """Return it as data."""
        return {**vars(self), "path": str(self.path)}

    def as_line(self) -> str:
        """Return it as a line of a table."""
        return f"{self.size / 1e6:10.1f} MB  {'' if self.is_complete else '(unfinished) '}{self.path}"


def list_cache(artifacts: Path) -> list[Entry]:
    """List every file of the cache by path; an absent cache is an empty one. Raises `StorageError`."""
    try:
        folders = sorted(path for path in artifacts.iterdir() if path.is_dir()) if artifacts.exists() else []
        return [entry for folder in folders for entry in _list_folder(folder)]
    except OSError as exc:
        raise storage_error(exc, f"cannot list {artifacts}") from exc


def _list_folder(folder: Path) -> list[Entry]:
    return [
        Entry(path=Path(found.path), size=found.stat().st_size, is_complete=not found.name.endswith(".part"))
        for found in sorted(os.scandir(folder), key=lambda entry: entry.name)
        if found.is_file(follow_symlinks=False) and not found.name.startswith(".")
    ]


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What `get` would do for a request, and why."""

    name: str
    sha256: str
    source: str
    named_by: str
    target: Path
    state: str
    plan: str
    needs_network: bool
    proof: str = "hash"
    choice: Choice | None = None

    def as_dict(self) -> dict[str, object]:
        """Return it as data."""
        data = {**vars(self), "target": str(self.target)}
        del data["choice"]
        hardware = self.choice.hardware if self.choice else None
        return {
            **data,
            "candidates": [verdict.as_dict() for verdict in self._verdicts()],
            "hardware": hardware.as_dict() if hardware else None,
        }

    def as_text(self) -> str:
        """Return it as lines of text."""
        return "\n".join(
            (
                f"wanted:  {self.name}",
                f"sha256:  {self.sha256}",
                f"from:    {self.source} ({self.named_by})",
                f"to:      {self.target}",
                f"state:   {self.state}",
                f"plan:    {self.plan}",
                f"proof:   {self.proof}",
                *self._candidates(),
            )
        )

    def _verdicts(self) -> tuple[Verdict, ...]:
        return self.choice.verdicts if self.choice else ()

    def _candidates(self) -> Iterator[str]:
        for verdict in self._verdicts():
            yield f"{'taken:  ' if verdict.is_taken else 'dropped:'} {verdict.name}: {verdict.reason}"
            yield from (f"         {use.backend}: {use.reason}" for use in verdict.uses)
        if self.choice and self.choice.hardware:
            yield from (f"host:    {note}" for note in self.choice.hardware.notes)


def explain(
    request: Request,
    slot: Slot,
    settings: Settings,
    *,
    named_by: str,
    proof: str = "hash",
    choice: Choice | None = None,
) -> Explanation:
    """Say what `get` would do, without doing it and without the network. Raises `StorageError`."""
    found = store.inspect(slot)
    is_right = found.sha256 == request.sha256
    is_remote = isinstance(request.source, HttpSource)
    source_name = named_by if isinstance(request.source, HttpSource) else request.source.named_by
    return Explanation(
        name=request.name,
        sha256=request.sha256,
        source=str(request.source),
        named_by=source_name,
        target=slot.final,
        state=_state(slot, found.sha256, is_right=is_right),
        plan=_plan(is_right=is_right, is_remote=is_remote, is_offline=settings.is_offline),
        needs_network=is_remote and not is_right,
        proof=proof,
        choice=choice,
    )


def _state(slot: Slot, sha256: str | None, *, is_right: bool) -> str:
    if is_right:
        return "there, and its SHA-256 is right"
    left = slot.part.stat().st_size if slot.part.is_file() and not slot.part.is_symlink() else 0
    unfinished = f"; {left} bytes of an unfinished one in {slot.part.name}" if left else ""
    if sha256 is None:
        return f"absent{unfinished}"
    return f"another file of that name is there (sha256 {sha256}){unfinished}"


def _plan(*, is_right: bool, is_remote: bool, is_offline: bool) -> str:
    if is_right:
        return "nothing to do, no network needed"
    if is_remote and is_offline:
        return "fail: the network is needed, and OPENCOTI_OFFLINE forbids it"
    return "download, verify, put in place" if is_remote else "copy, verify, put in place"
