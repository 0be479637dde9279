"""What came of applying a series: plain values that other modules pass on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ci.pins import SourcePin


@dataclass(frozen=True, kw_only=True)
class Offset:
    """A hunk that fitted exactly, but some lines away from where its patch says."""

    file: str
    hunk: int
    lines: int

    def __str__(self) -> str:
        return f"{self.file}, hunk {self.hunk}: {self.lines:+d} lines"


@dataclass(frozen=True, kw_only=True)
class AppliedPatch:
    """One patch as a commit. `tree` is the git tree id after it."""

    name: str
    sha256: str
    commit: str
    tree: str
    title: str
    offsets: tuple[Offset, ...]


@dataclass(frozen=True, kw_only=True)
class AppliedTree:
    """The working tree of a lane: what it was made of, and what it is."""

    lane: str
    pin: SourcePin
    folder: Path
    base_commit: str
    base_tree: str
    commit: str
    tree: str
    patches: tuple[AppliedPatch, ...]
    patch_set_hash: str
