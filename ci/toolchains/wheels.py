"""Fetching wheels by hash through pip's own configured indexes, and unpacking the parts we need."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ci import process
from ci.toolchains.lockfile import LockedFile
from ci.toolchains.recipe import WheelRule
from opencoti.console import Console
from opencoti.errors import NetworkError, StorageError, VerificationError, storage_error
from opencoti.hashing import sha256_file

_PIP_LINES_SHOWN: Final = 3


def fetch_wheels(wheels: Sequence[LockedFile], downloads: Path, console: Console) -> dict[str, Path]:
    """Return the files of `wheels` by name, downloading those that the cache does not hold.

    Raises:
        NetworkError: `wheel-fetch-failed`.
        VerificationError: `wheel-hash-mismatch`, an index answers with other bytes.
        StorageError: `wheel-disk-low`, or the download cache cannot be written.
    """
    return {wheel.name: _fetch(wheel, downloads, console) for wheel in wheels}


def unpack_wheel(archive: Path, rule: WheelRule, target: Path) -> None:
    """Unpack what `rule` takes of a wheel into `target`, whose SHA-256 has been verified.

    Raises:
        VerificationError: `wheel-unsafe-member`, a name leads out of the folder or a member is a link.
        OSError: a file cannot be written.
    """
    with zipfile.ZipFile(archive) as bundle:
        for member in bundle.infolist():
            place = rule.place(member.filename)
            if place is None:
                continue
            _check_member(member, place, archive)
            destination = target / place
            destination.parent.mkdir(parents=True, exist_ok=True)
            with bundle.open(member) as source, open(destination, "wb") as file:
                shutil.copyfileobj(source, file, 1 << 20)
    for name in rule.executables:
        os.chmod(target / rule.target / name, 0o755)  # noqa: S103


def download_wheel(requirement: str, platforms: Sequence[str], folder: Path) -> tuple[Path | None, str]:
    """Let pip download one wheel without its dependencies; return it, or None and what pip said.

    `requirement` is a line of a requirements file (with `--hash` pip verifies it too), `platforms` are the
    platform tags that the wheel may have.
    """
    listing = folder / "requirements.txt"
    listing.write_text(requirement + "\n", encoding="utf-8")
    options = ["--require-hashes"] if "--hash=" in requirement else []
    tags = [word for tag in platforms for word in ("--platform", tag)]
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-input",
        "--no-deps",
        "--no-cache-dir",
    ]
    command += ["--disable-pip-version-check", "--progress-bar", "off", "--only-binary=:all:"]
    done = process.run([*command, *options, *tags, "-r", listing, "-d", folder])
    found = sorted(folder.glob("*.whl"))
    lines = [line for line in done.error_text.splitlines() if not line.startswith("WARNING")]
    return (found[0] if done.is_ok and found else None), " ".join(lines[-_PIP_LINES_SHOWN:])


def platform_tags(filename: str) -> list[str]:
    """Return the platform tags in the name of a wheel."""
    return filename.removesuffix(".whl").rsplit("-", 1)[-1].split(".")


def _fetch(wheel: LockedFile, downloads: Path, console: Console) -> Path:
    cached = downloads / wheel.sha256
    if cached.is_file() and cached.stat().st_size == wheel.size and sha256_file(cached) == wheel.sha256:
        return cached
    console.info(f"fetching {wheel.name} {wheel.version} ({wheel.size / 1e6:.1f} MB)")
    try:
        downloads.mkdir(parents=True, exist_ok=True)
        _require_space(wheel, downloads)
        with tempfile.TemporaryDirectory(prefix=".wheel-", dir=downloads) as name:
            got = _download(wheel, Path(name))
            os.replace(got, cached)
    except OSError as exc:
        raise storage_error(exc, f"cannot write the download cache {downloads}") from exc
    return cached


def _require_space(wheel: LockedFile, downloads: Path) -> None:
    """Refuse a disk without room: pip, which uses the temporary folder too, would tell it as any failure."""
    for folder in (downloads, Path(tempfile.gettempdir())):
        free_bytes = shutil.disk_usage(folder).free
        if free_bytes < wheel.size:
            raise StorageError(
                "wheel-disk-low",
                f"too little space to fetch {wheel.filename}",
                why=f"{free_bytes >> 20} MiB free in {folder}, needed are {(wheel.size >> 20) + 1} MiB",
                hint="free some space, or set OPENCOTI_BUILD_CACHE (or TMPDIR) to another disk",
            )


def _download(wheel: LockedFile, folder: Path) -> Path:
    tags = platform_tags(wheel.filename)
    pinned = f"{wheel.name}=={wheel.version}"
    path, said = download_wheel(f"{pinned} --hash=sha256:{wheel.sha256}", tags, folder)
    if path is None:
        # pip ends with the same code for "no such file" and "other bytes". Whether an index has the file
        # at all tells them apart.
        path, said = download_wheel(pinned, tags, folder)
        if path is None:
            raise NetworkError(
                "wheel-fetch-failed",
                f"cannot fetch {wheel.filename}",
                why=said or "no configured index has it",
                hint="check the network and pip's configuration (`pip config list`), then run it again",
            )
    if (actual := sha256_file(path)) != wheel.sha256:
        raise VerificationError(
            "wheel-hash-mismatch",
            f"{wheel.filename} has other bytes than the lock says",
            why=f"sha256 {actual}, expected {wheel.sha256}",
            hint="do not use this index, or write a new lock if the change is wanted",
        )
    return path


def _check_member(member: zipfile.ZipInfo, place: str, archive: Path) -> None:
    parts = place.split("/")
    is_link = stat.S_ISLNK(member.external_attr >> 16)
    if is_link or place.startswith("/") or "\\" in place or ".." in parts or "" in parts:
        raise VerificationError(
            "wheel-unsafe-member", f"member {member.filename!r} of {archive.name} is refused",
            why="it is a link or leads out of its folder",
        )  # fmt: skip
