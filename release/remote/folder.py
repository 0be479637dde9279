"""A folder as a remote, with the layout of the addresses that clients ask. Any web server can give it out.

    <owner>/<name>/releases/download/<tag>/<asset>
    <owner>/<name>/releases/latest/download         link to download/<tag> of the newest release
    <owner>/<name>/releases/.drafts/<tag>/<asset>   not yet public
    <owner>/<name>/releases/.about/<tag>.json       commit, title and text of a release

Publishing renames the draft's folder, and then replaces the link: each is there before or after, never half.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from ci.locks import exclusive_lock
from opencoti.errors import StorageError, storage_error
from opencoti.files import atomic_file, fsync_folder, is_safe_name, write_atomic
from opencoti.hashing import READ_SIZE_BYTES, sha256_file
from opencoti.index import MAX_INDEX_BYTES, load_index
from opencoti.trust.comment import INDEX_NAME
from release.remote.model import (
    LocalFile,
    MakeLatest,
    NewRelease,
    NotThereError,
    RemoteAsset,
    RemoteRelease,
)
from release.remote.refusals import file_changed

_MODE: Final = 0o644


class FolderRemote:
    """The releases of one repository below `root`. While its `with` block runs it holds the lock of them."""

    def __init__(self, root: Path, repo: str) -> None:
        self._root = root
        self._base = root / repo / "releases"
        self._public = self._base / "download"
        self._drafts = self._base / ".drafts"
        self._about = self._base / ".about"

    @contextmanager
    def held(self) -> Iterator[FolderRemote]:
        """Keep other publishers out. Raises `BusyError` and `StorageError`."""
        with exclusive_lock(self._base / ".lock", f"the release folder {self._base}"):
            yield self

    @property
    def where(self) -> str:
        """What it is called in messages."""
        return f"dir:{self._root}"

    def releases(self) -> tuple[RemoteRelease, ...]:
        """Return all releases, drafts among them (`Remote.releases`)."""
        with _storing(self._base):
            public = [self._read(folder, is_draft=False) for folder in _folders(self._public)]
            return (*public, *(self._read(folder, is_draft=True) for folder in _folders(self._drafts)))

    def tag_commit(self, tag: str) -> str | None:
        """Return the commit of a public release, None where there is none (`Remote.tag_commit`)."""
        with _storing(self._public):
            folder = self._public / tag
            target = self._read(folder, is_draft=False).target if folder.is_dir() else ""
        return target or None

    def has_commit(self, commit: str) -> bool:
        """Return True: a folder has no commits that could be missing (`Remote.has_commit`)."""
        return True

    def create(self, new: NewRelease) -> RemoteRelease:
        """Make a draft (`Remote.create`)."""
        folder = self._drafts / new.tag
        with _storing(folder):
            self._describe(new)
            folder.mkdir(parents=True, exist_ok=True)
            return self._read(folder, is_draft=True)

    def find(self, release: RemoteRelease) -> RemoteRelease:
        """Return the present state of a release (`Remote.find`)."""
        for found in self.releases():
            if found.tag == release.tag:
                return found
        raise NotThereError(release.tag)

    def assets(self, release: RemoteRelease) -> tuple[RemoteAsset, ...]:
        """Return the files of a release (`Remote.assets`)."""
        return self.find(release).assets

    def asset(self, release: RemoteRelease, asset: RemoteAsset) -> RemoteAsset:
        """Return the present state of one file (`Remote.asset`)."""
        for found in self.assets(release):
            if found.name == asset.name:
                return found
        raise NotThereError(asset.name)

    def delete_asset(self, release: RemoteRelease, asset: RemoteAsset) -> None:
        """Remove one file of a draft (`Remote.delete_asset`)."""
        with _storing(self._drafts):
            (self._folder_of(release) / asset.name).unlink(missing_ok=True)

    def delete_draft(self, release: RemoteRelease) -> None:
        """Remove a draft without files (`Remote.delete_draft`)."""
        folder = self._drafts / release.tag
        with _storing(folder):
            folder.rmdir()

    def send(self, release: RemoteRelease, file: LocalFile, tell: Callable[[int], None]) -> RemoteAsset:
        """Copy one file (`Remote.send`). It gets its name after its hash was found right."""
        target, digest, done = self._folder_of(release) / file.name, hashlib.sha256(), 0
        with (
            _storing(target),
            open(file.path, "rb", buffering=0) as source,
            atomic_file(target, mode=_MODE) as copy,
        ):
            while block := source.read(READ_SIZE_BYTES):
                digest.update(block)
                copy.write(block)
                tell(done := done + len(block))
            if digest.hexdigest() != file.sha256:
                raise file_changed(file)
        return self.asset(release, _asset_of(target))

    def sha256_of(self, release: RemoteRelease, asset: RemoteAsset) -> str:
        """Hash a file (`Remote.sha256_of`)."""
        path = self._folder_of(release) / asset.name
        with _storing(path):
            return sha256_file(path)

    def read(self, release: RemoteRelease, asset: RemoteAsset, max_bytes: int) -> bytes:
        """Read a small file (`Remote.read`)."""
        path = self._folder_of(release) / asset.name
        with _storing(path), open(path, "rb") as file:
            return file.read(max_bytes + 1)

    def publish(self, release: RemoteRelease, new: NewRelease, make_latest: MakeLatest) -> RemoteRelease:
        """Rename the draft to its public place (`Remote.publish`)."""
        draft, target = self._drafts / release.tag, self._public / release.tag
        with _storing(target):
            for path in draft.iterdir():
                if path.name.startswith("."):
                    path.unlink()  # what a killed run left
            self._describe(new)
            fsync_folder(draft)
            self._public.mkdir(exist_ok=True)
            os.rename(draft, target)
            fsync_folder(self._public)
        published = self.find(release)
        self.settle(published, make_latest)
        return published

    def settle(self, release: RemoteRelease, make_latest: MakeLatest) -> None:
        """Let `latest` lead to this release unless a newer one has it (`Remote.settle`)."""
        link = self._base / "latest" / "download"
        if make_latest == "false" or self._sequence(link) >= self._sequence(self._public / release.tag):
            return
        with _storing(link):
            if link.exists() and not link.is_symlink():
                raise StorageError(
                    "latest-no-link",
                    f"{link} is no link",
                    why="a publisher replaces a link here, and removes no folder",
                    hint="remove it, and run the same command again",
                )
            link.parent.mkdir(parents=True, exist_ok=True)
            temporary = link.with_name(f".{link.name}.tmp")
            temporary.unlink(missing_ok=True)
            temporary.symlink_to(Path("..") / "download" / release.tag)
            os.replace(temporary, link)
            fsync_folder(link.parent)

    def _sequence(self, folder: Path) -> int:
        with _storing(folder):
            path = folder / INDEX_NAME
            if not path.exists():
                return 0
            with open(path, "rb") as file:
                return load_index(file.read(MAX_INDEX_BYTES + 1), str(path)).sequence

    def _folder_of(self, release: RemoteRelease) -> Path:
        return (self._drafts if release.is_draft else self._public) / release.tag

    def _describe(self, new: NewRelease) -> None:
        about = {"commit": new.commit, "title": new.title, "body": new.body}
        write_atomic(self._about / f"{new.tag}.json", json.dumps(about).encode("utf-8"))

    def _said(self, tag: str) -> dict[str, Any]:
        """Return what `_describe` wrote; nothing where that is not there, or is of somebody else."""
        about: object = None
        with suppress(FileNotFoundError, ValueError, RecursionError):
            about = json.loads((self._about / f"{tag}.json").read_bytes())
        return about if isinstance(about, dict) else {}

    def _read(self, folder: Path, *, is_draft: bool) -> RemoteRelease:
        about = self._said(folder.name)
        changed = datetime.fromtimestamp(folder.stat().st_mtime, UTC).isoformat()
        return RemoteRelease(
            release_id=_id(folder.name),
            tag=folder.name,
            is_draft=is_draft,
            target=str(about.get("commit", "")),
            body=str(about.get("body", "")),
            published="" if is_draft else changed,
            page=str(folder),
            assets=tuple(_asset_of(path) for path in sorted(folder.iterdir()) if path.name[0] != "."),
        )


def _folders(parent: Path) -> Iterator[Path]:
    if parent.is_dir():
        yield from (path for path in sorted(parent.iterdir()) if path.is_dir() and is_safe_name(path.name))


def _asset_of(path: Path) -> RemoteAsset:
    status = path.lstat()
    return RemoteAsset(
        asset_id=_id(path.name),
        name=path.name,
        size=status.st_size,
        is_uploaded=path.is_file() and not path.is_symlink(),
        sha256=None,
    )


def _id(name: str) -> int:
    """Return a number for a name: folders count nothing themselves."""
    return int(hashlib.sha256(name.encode()).hexdigest()[:12], 16)


@contextmanager
def _storing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise storage_error(exc, f"cannot use {path}") from exc
