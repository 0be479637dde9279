"""Reading the release before this one, for comparison: a folder with its index and manifests."""

from __future__ import annotations

from pathlib import Path

from opencoti.errors import storage_error
from opencoti.manifest import load_manifest
from release.notes.make import Before
from release.staging.folder import read_index


def read_before(folder: Path) -> Before:
    """Return a release that lies in a folder, without its artifacts. Signatures are not looked at.

    Raises:
        ConfigError: `not-staged`; a document is malformed.
        StorageError: a file cannot be read.
    """
    index = read_index(folder)
    manifests = []
    for artifact in index.artifacts:
        path = folder / artifact.manifest.name
        try:
            manifests.append(load_manifest(path.read_bytes(), str(path)))
        except OSError as exc:
            raise storage_error(exc, f"cannot read {path}") from exc
    return Before(index=index, manifests=tuple(manifests))
