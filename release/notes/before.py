"""Reading the release before this one, for comparison: from a folder, or from where it is published."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from opencoti.console import Console
from opencoti.errors import VerificationError, storage_error
from opencoti.fetch.documents import Reader
from opencoti.fetch.get import open_real
from opencoti.fetch.settings import Settings
from opencoti.hashing import sha256_bytes
from opencoti.manifest import Manifest, load_manifest
from opencoti.trust.keys import TrustedKeys
from release.notes.make import Before
from release.planning.remote_readers import open_remote
from release.planning.remote_view import RemoteView, Surveyed, survey
from release.staging.folder import read_index

_MAX_MANIFEST_BYTES = 8 << 20
_REMOTES = ("dir:", "https://", "http://")


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


def read_previous(
    where: str, *, repo: str, tag: str, keys: Callable[[], TrustedKeys], now: datetime, console: Console
) -> Before | None:
    """Return the release before that of `tag`, None where nothing was published yet.

    Args:
        where: a folder with a release, or as `--remote` of `plan`: `github`, `dir:PATH`, an address.
        repo: whose release it must be.
        tag: the release that is compared with it.
        keys: who may have signed what is published.
        now: the current time.
        console: gets progress.

    Raises:
        VerificationError: it is published and cannot be verified; `previous-manifest-differs`.
        NetworkError: the remote cannot be read.
        ConfigError, StorageError: as `read_before`.
    """
    if where != "github" and not where.startswith(_REMOTES):
        return read_before(Path(where))
    limits = Settings.from_environ(os.environ).limits
    with open_real(limits) as tools:
        reader = Reader(tools, limits, console)
        with open_remote(where, repo=repo, tag=tag, reader=reader) as view:
            facts = survey(view, repo=repo, tag=tag, keys=keys(), now=now)
            others = [item for item in facts.surveyed if item.index.tag != tag]
            return _published(view, others[-1]) if others else None


def _published(view: RemoteView, release: Surveyed) -> Before:
    index = release.index
    manifests = [_manifest(view, release, a.manifest.name, a.manifest.sha256) for a in index.artifacts]
    return Before(index=index, manifests=tuple(manifests))


def _manifest(view: RemoteView, release: Surveyed, name: str, sha256: str) -> Manifest:
    """Read a manifest that a verified index vouches for."""
    data = view.read(release.release, name, _MAX_MANIFEST_BYTES)
    if data is None or sha256_bytes(data) != sha256:
        raise VerificationError(
            "previous-manifest-differs",
            f"{name} of release {release.index.tag} on {view.where} is not what its index says",
            why="it is missing" if data is None else f"expected sha256 {sha256}, found {sha256_bytes(data)}",
            hint="look what happened to that release; without --previous the notes compare with none",
        )
    return load_manifest(data, name)
