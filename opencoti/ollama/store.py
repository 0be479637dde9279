"""A store of Ollama as it lies on disk. Reads only.

manifests/<host>/<namespace>/<model>/<tag>   one JSON file per model
blobs/sha256-<hex>                           what manifests name; `…-partial*` while it is downloaded
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from opencoti.errors import MissingError, OpencotiError, StorageError, UsageError, storage_error
from opencoti.ollama.manifest import Layer, Manifest, parse_manifest
from opencoti.ollama.reference import Reference

_MAX_MANIFEST_BYTES: Final = 1 << 20
_MAX_MODELS: Final = 20_000
_MAX_LISTED: Final = 50_000
_ABSENT: Final = (errno.ENOENT, errno.ENOTDIR)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A model that a store lists: its name, and where its manifest is."""

    reference: Reference
    path: Path


@dataclass(frozen=True, kw_only=True)
class Store:
    """A folder that may be a store; `reason` says what named it."""

    root: Path
    reason: str

    @property
    def manifests(self) -> Path:
        """The folder of manifests."""
        return self.root / "manifests"

    def is_there(self) -> bool:
        """Tell whether it looks like a store.

        Raises:
            StorageError: `ollama-store-unreadable`; it may be one, and cannot be looked into.
        """
        try:
            return stat.S_ISDIR(os.stat(self.manifests).st_mode)
        except OSError as exc:
            if exc.errno in _ABSENT:
                return False
            raise unreadable(self.manifests, exc) from exc

    def entries(self) -> Iterator[Entry]:
        """Return every model that is listed, in the order of their names.

        What is no manifest (hidden files, empty folders, files where a folder should be) is passed over.

        Raises:
            StorageError: `ollama-store-unreadable`.
        """
        count = 0
        for host in _names(self.manifests):
            for namespace in _names(self.manifests / host):
                for model in _names(self.manifests / host / namespace):
                    folder = self.manifests / host / namespace / model
                    for tag in _names(folder):
                        entry = _entry(folder / tag, host, namespace, model, tag)
                        if entry is None or count >= _MAX_MODELS:
                            continue
                        count += 1
                        yield entry

    def manifest(self, entry: Entry) -> Manifest:
        """Read the manifest of a model.

        Raises:
            ConfigError: `ollama-manifest-malformed`.
            StorageError: `ollama-store-unreadable`.
        """
        try:
            with open(entry.path, "rb") as file:
                data = file.read(_MAX_MANIFEST_BYTES + 1)
        except OSError as exc:
            raise unreadable(entry.path, exc) from exc
        return parse_manifest(data, f"the manifest of {entry.reference} ({entry.path})")

    def blob(self, layer: Layer) -> Path | None:
        """Return the file of a layer; None where it is missing. Older versions wrote `sha256:` there."""
        for separator in ("-", ":"):
            path = self.root / "blobs" / f"sha256{separator}{layer.sha256}"
            try:
                if stat.S_ISREG(os.stat(path).st_mode):
                    return path
            except OSError as exc:
                if exc.errno not in (*_ABSENT, errno.ELOOP):
                    raise unreadable(path, exc) from exc
        return None

    def is_partial(self, layer: Layer) -> bool:
        """Tell whether parts of an unfinished download of a layer are there."""
        prefix = f"sha256-{layer.sha256}-partial"
        with suppress(OSError):
            return any(name.startswith(prefix) for name in os.listdir(self.root / "blobs"))
        return False


def open_stores(stores: tuple[Store, ...]) -> tuple[Store, ...]:
    """Return the stores that are there and can be read.

    Raises:
        MissingError: `ollama-store-missing`, there is none; says where it was looked for.
        StorageError: `ollama-store-unreadable`, the only ones that are there cannot be read.
    """
    found, refused = [], []
    for store in stores:
        try:
            if store.is_there():
                next(store.entries(), None)  # is the folder readable?
                found.append(store)
        except StorageError as error:
            refused.append(error)
    if found:
        return tuple(found)
    if refused:
        raise refused[0]
    raise MissingError(
        "ollama-store-missing",
        "no Ollama store was found on this machine",
        why="looked for: " + "; ".join(f"{store.root} ({store.reason})" for store in stores),
        hint="name its folder with --store DIR, or set OLLAMA_MODELS as the service has it",
    )


def _entry(path: Path, host: str, namespace: str, model: str, tag: str) -> Entry | None:
    try:
        reference = Reference.checked(host, namespace, model, tag, origin=str(path))
        return Entry(reference=reference, path=path) if stat.S_ISREG(os.stat(path).st_mode) else None
    except (UsageError, OSError):
        return None


def _names(folder: Path) -> list[str]:
    """Return what a folder holds, without hidden names; nothing where there is no folder."""
    try:
        with os.scandir(folder) as found:
            names = [item.name for _, item in zip(range(_MAX_LISTED), found, strict=False)]
    except OSError as exc:
        if exc.errno in _ABSENT:
            return []
        raise unreadable(folder, exc) from exc
    return sorted(name for name in names if not name.startswith("."))


def unreadable(path: Path, exc: OSError) -> OpencotiError:
    """Say that a file of a store cannot be read, and what to do where it is a matter of rights."""
    if exc.errno not in (errno.EACCES, errno.EPERM):
        return storage_error(exc, f"cannot read {path}")
    return StorageError(
        "ollama-store-unreadable",
        f"this user may not read {path}",
        why="the folder belongs to the user that Ollama's service runs as",
        hint="join its group (`sudo usermod -aG ollama $USER`, then log in again), or make it readable",
    )
