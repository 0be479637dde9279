"""The folder of one release: what may lie in it, and what of an earlier staging is no longer true.

The index is written last and removed first, so a folder with an index is whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from opencoti.errors import ConfigError, OpencotiError, storage_error
from opencoti.index import ReleaseIndex, load_index
from opencoti.manifest import CHUNKS_SUFFIX
from opencoti.minisign import SIGNATURE_SUFFIX
from opencoti.trust.comment import INDEX_NAME
from release.notes.body import NOTES_NAME
from release.planning.model import PLAN_NAME
from release.planning.names import PROVENANCE_SUFFIX, SBOM_SUFFIX
from release.sums import SUMS_NAME

# What is added after staging, by `provenance`, `sums`, `sign`, and by an attestation of the CI service.
_ADDED: Final = (SIGNATURE_SUFFIX, PROVENANCE_SUFFIX, ".sigstore.json", ".sigstore.jsonl")


def read_index(folder: Path) -> ReleaseIndex:
    """Return the index of a staged release; its signature is not looked at.

    Raises:
        ConfigError: `not-staged`, there is none; as `load_index`.
        StorageError: it cannot be read.
    """
    path = folder / INDEX_NAME
    try:
        data = path.read_bytes()
    except FileNotFoundError as exc:
        raise ConfigError(
            "not-staged",
            f"there is no staged release in {folder}",
            why=f"it has no {INDEX_NAME}",
            hint="run `python -m release stage`, or name another folder",
        ) from exc
    except OSError as exc:
        raise storage_error(exc, f"cannot read {path}") from exc
    return load_index(data, str(path))


def asset_names(folder: Path) -> tuple[str, ...]:
    """Return the names of what would be published: everything but the text of the release."""
    return tuple(name for name in _present(folder) if name != NOTES_NAME)


def make_ready(folder: Path, index: bytes, wanted: Collection[str]) -> bool:
    """Remove what does not belong to the release that is about to be staged.

    A folder that holds this very index keeps its signatures; with another index they all go, since they are
    of another release.

    Args:
        folder: where it is staged; it exists.
        index: the bytes of the index that will be written.
        wanted: all files that will be written.

    Returns:
        Whether the folder held this release already.

    Raises:
        ConfigError: `stage-folder-foreign`, a file there was put by nobody of ours.
        StorageError: a file cannot be removed.
    """
    present = _present(folder)
    before = set(_names_of(folder))
    for name in present:
        if name not in wanted and name not in before and not _is_ours(name):
            raise ConfigError(
                "stage-folder-foreign",
                f"{folder / name} is no part of the release",
                why="everything in this folder would be published",
                hint="move it away",
            )
    is_same = INDEX_NAME in present and (folder / INDEX_NAME).read_bytes() == index
    if not is_same:
        _remove(folder, [INDEX_NAME])
        _remove(folder, [name for name in present if name == SUMS_NAME or name.endswith(_ADDED)])
    kept = {*wanted, NOTES_NAME, SUMS_NAME}
    _remove(folder, [name for name in present if name not in kept and not name.endswith(_ADDED)])
    return is_same


def _names_of(folder: Path) -> Iterator[str]:
    """Yield what an earlier staging put here; nothing where its index cannot be read."""
    try:
        index = read_index(folder)
    except OpencotiError:
        return
    for artifact in index.artifacts:
        yield artifact.name
        yield artifact.manifest.name
        yield artifact.name + CHUNKS_SUFFIX
        yield artifact.name + SBOM_SUFFIX
        yield from (part.name for part in artifact.parts)
    yield from (item.name for item in index.evidence)


def _is_ours(name: str) -> bool:
    is_rest = name.startswith(".") and name.endswith(".tmp")  # of a killed run
    return name in (INDEX_NAME, SUMS_NAME, PLAN_NAME, NOTES_NAME) or name.endswith(_ADDED) or is_rest


def _present(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError as exc:
        raise storage_error(exc, f"cannot read {folder}") from exc


def _remove(folder: Path, names: Collection[str]) -> None:
    for name in names:
        try:
            (folder / name).unlink(missing_ok=True)
        except OSError as exc:
            raise storage_error(exc, f"cannot remove {folder / name}") from exc
