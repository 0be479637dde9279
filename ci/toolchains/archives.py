"""Archives of their publishers, which no package index has: fetched by hash, unpacked with care."""

from __future__ import annotations

import os
import shutil
import stat
import zipfile
from collections.abc import Sequence
from pathlib import Path

from ci.toolchains.recipe import ArchiveRule
from opencoti.console import Console
from opencoti.errors import MissingError, NetworkError, VerificationError, storage_error
from opencoti.hashing import sha256_file


def fetch_archives(archives: Sequence[ArchiveRule], downloads: Path, console: Console) -> dict[str, Path]:
    """Return the files of `archives` by name, downloading those that the cache does not hold.

    Raises:
        MissingError: `archive-unreachable`; names the address and the hash, so that the file can be
            brought by hand.
        StorageError: the download cache cannot be written.
        VerificationError: the address answers with other bytes.
    """
    return {archive.name: _fetch(archive, downloads, console) for archive in archives}


def unpack_archive(archive: Path, rule: ArchiveRule, target: Path) -> None:
    """Unpack a zip whose SHA-256 has been verified below `target`, links and modes included.

    Raises:
        VerificationError: `archive-unsafe-member`, a name or a link leads out of the folder.
        OSError: a file cannot be written.
    """
    with zipfile.ZipFile(archive) as bundle:
        for member in bundle.infolist():
            mode = member.external_attr >> 16
            place = _place(target / rule.target, member.filename, archive)
            if member.is_dir():
                place.mkdir(parents=True, exist_ok=True)
            elif stat.S_ISLNK(mode):
                _link(place, bundle.read(member).decode("utf-8", "replace"), target / rule.target, archive)
            else:
                place.parent.mkdir(parents=True, exist_ok=True)
                with bundle.open(member) as source, open(place, "wb") as file:
                    shutil.copyfileobj(source, file, 1 << 20)
                os.chmod(place, 0o755 if mode & stat.S_IXUSR else 0o644)


def _fetch(archive: ArchiveRule, downloads: Path, console: Console) -> Path:
    from opencoti.fetch.get import fetch
    from opencoti.fetch.settings import Settings
    from opencoti.fetch.source import request_for_url

    cached = downloads / archive.sha256
    if cached.is_file() and sha256_file(cached) == archive.sha256:
        return cached
    folder = downloads / f".archive-{archive.sha256[:16]}"
    request = request_for_url(archive.url, archive.sha256, name=f"{archive.name}.zip")
    try:
        got = fetch(request, Settings.from_environ(os.environ), console, dest=folder, allow_trial=False)
        os.replace(got.path, cached)
    except NetworkError as error:
        raise MissingError(
            "archive-unreachable",
            f"cannot fetch {archive.name} {archive.version} from {archive.url}",
            why=str(error),
            hint=f"bring the file by other means and put it at {cached} (sha256 {archive.sha256})",
        ) from error
    except OSError as exc:
        raise storage_error(exc, f"cannot write the download cache {downloads}") from exc
    shutil.rmtree(folder, ignore_errors=True)
    return cached


def _place(root: Path, name: str, archive: Path) -> Path:
    parts = name.rstrip("/").split("/")
    if name.startswith("/") or "\\" in name or {"", ".", ".."} & set(parts):
        raise _unsafe(name, archive)
    return root.joinpath(*parts)


def _link(place: Path, target: str, root: Path, archive: Path) -> None:
    inside = os.path.normpath(place.parent / target)
    if target.startswith("/") or not Path(inside).is_relative_to(root):
        raise _unsafe(place.name, archive)
    place.parent.mkdir(parents=True, exist_ok=True)
    os.symlink(target, place)


def _unsafe(name: str, archive: Path) -> VerificationError:
    return VerificationError(
        "archive-unsafe-member",
        f"member {name!r} of {archive.name} is refused",
        why="it leads out of its folder",
    )
