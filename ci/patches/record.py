"""What is written down about an applied series.

Two files. `<tree>/.git/opencoti-applied.json` is a cache of ours: with it, an `apply` that has nothing to do
is fast. `vendors/patches/<series>/series.lock` is committed, and says which tree each patch gave when it was
captured, so that the same patches giving another tree is noticed:

    base <pin name> <git tree id of the pristine source>
    <patch file> <SHA-256 of it> <git tree id after it>
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from ci.patches.model import AppliedPatch, AppliedTree, Offset
from ci.patches.series import Series
from ci.patches.worktree import WorkTree
from ci.pins import SourcePin
from ci.sources.vendoring import origin_text
from opencoti.console import Console
from opencoti.errors import BuildError, ConfigError, MissingError, VerificationError
from opencoti.files import write_atomic
from opencoti.hashing import sha256_bytes

LOCK_NAME: Final = "series.lock"
_FORMAT: Final = 1
_BASE: Final = "base"


def write_record(tree: WorkTree, applied: AppliedTree) -> None:
    """Note what was applied."""
    data = {
        "format": _FORMAT,
        "pin": _pin_key(applied.pin),
        "base_commit": applied.base_commit,
        "base_tree": applied.base_tree,
        "patch_set_hash": applied.patch_set_hash,
        "patches": [asdict(patch) for patch in applied.patches],
    }
    write_atomic(tree.record, json.dumps(data, indent=1).encode())


def read_record(tree: WorkTree, pin: SourcePin) -> AppliedTree | None:
    """Return what was applied last, `None` when that is not known.

    Raises:
        BuildError: `tree-drifted`, it was made from another pin.
    """
    try:
        data = json.loads(tree.record.read_text(encoding="utf-8"))
        if data["format"] != _FORMAT:
            return None
        found = _from_record(tree, pin, data)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if data["pin"] != _pin_key(pin):
        raise BuildError(
            "tree-drifted",
            f"the working tree {tree.folder} was made from another pin than {pin.path.name} is now",
            hint="run `python -m ci apply`; capture first what is not captured",
        )
    return found


def _from_record(tree: WorkTree, pin: SourcePin, data: dict[str, Any]) -> AppliedTree:
    patches = tuple(
        AppliedPatch(**{**patch, "offsets": tuple(Offset(**offset) for offset in patch["offsets"])})
        for patch in data["patches"]
    )
    return AppliedTree(
        lane=tree.lane.name,
        pin=pin,
        folder=tree.folder,
        base_commit=data["base_commit"],
        base_tree=data["base_tree"],
        commit=patches[-1].commit if patches else data["base_commit"],
        tree=patches[-1].tree if patches else data["base_tree"],
        patches=patches,
        patch_set_hash=data["patch_set_hash"],
    )


def require_record(tree: WorkTree, pin: SourcePin) -> AppliedTree:
    """Return what was applied last. Raises `MissingError` `tree-unrecorded`, and like `read_record`."""
    record = read_record(tree, pin)
    if record is None:
        raise MissingError(
            "tree-unrecorded",
            f"it is not known what was applied to {tree.folder}",
            hint="run `python -m ci apply`",
        )
    return record


def _pin_key(pin: SourcePin) -> str:
    return sha256_bytes(f"{origin_text(pin)}\n{pin.commit}\n{pin.tag}\n{pin.name}\n".encode())


@dataclass(frozen=True, kw_only=True)
class SeriesLock:
    """The content of a `series.lock`."""

    path: Path
    base_tree: str
    entries: tuple[tuple[str, str, str], ...]
    """Per patch: file name, SHA-256, git tree id after it."""


def read_lock(folder: Path) -> SeriesLock | None:
    """Read the lock of a series, `None` if it has none.

    Raises:
        ConfigError: `series-lock-malformed`.
    """
    path = folder / LOCK_NAME
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    rows = [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if not rows or rows[0][0] != _BASE or any(len(row) != 3 for row in rows):
        raise ConfigError(
            "series-lock-malformed",
            f"cannot read {path}",
            why="each line has three fields, and the first line starts with `base`",
            hint="restore it from git, or write it anew with `python -m ci apply --record`",
        )
    return SeriesLock(
        path=path, base_tree=rows[0][2], entries=tuple((row[0], row[1], row[2]) for row in rows[1:])
    )


def write_lock(folder: Path, pin: SourcePin, base_tree: str, patches: tuple[AppliedPatch, ...]) -> Path:
    """Write down which tree each patch gives; return the path of the lock."""
    lines = [f"{_BASE} {pin.name} {base_tree}", *(f"{p.name} {p.sha256} {p.tree}" for p in patches)]
    path = folder / LOCK_NAME
    write_atomic(path, ("\n".join(lines) + "\n").encode())
    return path


def check_lock(
    lock: SeriesLock | None,
    series: Series,
    base_tree: str,
    patches: tuple[AppliedPatch, ...],
    console: Console,
) -> None:
    """Compare what a series gave with what it gave when it was recorded.

    Only as far as base and patches are those of the lock; where they differ, nothing can be compared, and a
    warning says so.

    Raises:
        VerificationError: `series-tree`, the same patches on the same base gave another tree.
    """
    if lock is not None and lock.base_tree != base_tree:
        console.warn(
            f"{lock.path.name} was recorded for another source: the trees of this series are not compared"
        )
        return
    recorded = lock.entries if lock else ()
    for at, patch in enumerate(patches):
        if at >= len(recorded) or recorded[at][:2] != (patch.name, patch.sha256):
            rest = len(patches) - at
            console.warn(
                f"patch {patch.name}{f' and {rest - 1} after it' if rest > 1 else ''}: not recorded in "
                f"{series.folder.name}/{LOCK_NAME} in this form (`python -m ci apply --record` records it)"
            )
            return
        if recorded[at][2] != patch.tree:
            raise VerificationError(
                "series-tree",
                f"patch {patch.name} gave another tree than when it was recorded",
                why=f"expected tree {recorded[at][2]}, found {patch.tree}",
                hint="the patch is the same, so git put it elsewhere: look at the result before recording it",
            )


def recorded_tree(tree: WorkTree, pin: SourcePin, *, commit: str, tree_id: str) -> AppliedTree:
    """Return what was applied last, with the commit and the tree that are there now."""
    record = require_record(tree, pin)
    return AppliedTree(**{**_fields(record), "commit": commit, "tree": tree_id})


def _fields(applied: AppliedTree) -> dict[str, Any]:
    return {name: getattr(applied, name) for name in AppliedTree.__dataclass_fields__}
