"""The Debian packages of an image: fetched by this machine's apt, checked by hash, never installed here.

What the lock names is taken when apt can still get it. Versions vanish from the archives with every point
release: then the present ones are taken with a warning, or refused where the lock must hold.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ci import process
from ci.toolchains.lockfile import LockedFile
from ci.toolchains.recipe import DebGroup
from opencoti.console import Console
from opencoti.errors import ConfigError, MissingError, NetworkError, VerificationError, storage_error
from opencoti.hashing import sha256_file

MIRROR_VARIABLE: Final = "OPENCOTI_DEBIAN_MIRROR"
_KEYRING: Final = "/usr/share/keyrings/debian-archive-keyring.gpg"
_COMPONENTS: Final = "main contrib non-free"
# `'<address>' <package>_<version>_<arch>.deb <size> <algorithm>:<hex>`; an epoch's colon is `%3a`.
_URI_LINE: Final = re.compile(
    r"'[^']*' (?P<file>(?P<name>[^_ ]+)_(?P<version>[^_ ]+)_(?P<arch>[^_ ]+)\.deb) .*"
)


@dataclass(frozen=True, kw_only=True)
class FetchedDeb:
    """A package file on disk; `locked` tells whether it is the one of the lock."""

    package: LockedFile
    path: Path
    locked: bool


def fetch_debs(
    groups: Sequence[DebGroup],
    locked: Sequence[LockedFile],
    *,
    arch: str,
    downloads: Path,
    apt_folder: Path,
    console: Console,
    is_strict: bool = False,
    is_update: bool = False,
) -> list[FetchedDeb]:
    """Return the package files of `groups`, sorted by release and name.

    Args:
        groups: packages by release, without their dependencies.
        locked: the entries of debs.lock for `arch`.
        arch: Debian's name of the architecture.
        downloads: the download cache; a locked package that lies there needs no apt.
        console: gets a warning for each package that is not the locked one.
        apt_folder: package lists of our own, one folder per release and architecture.
        is_strict: refuse any other version than the locked ones.
        is_update: read the package lists anew and take what they offer, quietly (for writing a lock).

    Raises:
        ConfigError: `deb-lock-drift`, strict and a locked package is not to be had.
        MissingError: `apt-missing`, `deb-mirror-missing`: this machine cannot fetch Debian packages.
        NetworkError: `deb-fetch-failed`.
        VerificationError: `deb-hash-mismatch`, a locked version has other bytes.
    """
    found: list[FetchedDeb] = []
    for suite in dict.fromkeys(group.suite for group in groups):
        names = sorted({name for group in groups if group.suite == suite for name in group.names})
        fetcher = _SuiteFetcher(suite, arch, downloads=downloads, apt_folder=apt_folder, console=console)
        pinned = {package.name: package for package in locked if package.suite == suite}
        found += fetcher.fetch(names, {} if is_update else pinned, is_strict=is_strict, is_quiet=is_update)
    return sorted(found, key=lambda deb: (deb.package.suite, deb.package.name))


class _SuiteFetcher:
    """Fetches the packages of one release."""

    def __init__(self, suite: str, arch: str, *, downloads: Path, apt_folder: Path, console: Console) -> None:
        self._suite = suite
        self._downloads = downloads
        self._apt_folder = apt_folder / f"{suite}-{arch}"
        self._arch = arch
        self._console = console

    def fetch(
        self, names: Sequence[str], pinned: dict[str, LockedFile], *, is_strict: bool, is_quiet: bool
    ) -> list[FetchedDeb]:
        """Return one file per name: from the cache, else the locked version, else what is there now."""
        cached = {name: found for name in names if (found := _cached(pinned.get(name), self._downloads))}
        missing = [name for name in names if name not in cached]
        if not missing:
            return list(cached.values())
        _require_apt()
        apt = Apt(self._arch, self._suite, self._apt_folder)
        self._console.info(f"fetching {len(missing)} packages of Debian {self._suite} with apt")
        apt.update()
        wanted = [f"{name}={pinned[name].version}" for name in missing if name in pinned]
        got = apt.download(wanted) if len(wanted) == len(missing) else None
        if got is None and is_strict:
            offered = apt.offered(missing)
            if offered and any(
                name not in pinned or pinned[name].version != offered[name] for name in offered
            ):
                raise _drift_error(wanted or missing)
        elif got is None:
            got = apt.download(missing)
        if got is None:
            raise NetworkError(
                "deb-fetch-failed",
                f"apt cannot download {', '.join(missing)} of Debian {self._suite}",
                why=apt.said,
                hint="check the network and `apt-get update`, or build without an image: --engine host",
            )
        with got:
            kept = _keep(got, pinned, self._downloads, None if is_quiet else self._console)
        return [*cached.values(), *kept]


class Downloaded:
    """Package files in a temporary folder, which goes away at the end of the `with` block."""

    def __init__(self, folder: tempfile.TemporaryDirectory[str], files: Sequence[LockedFile]) -> None:
        self._folder = folder
        self.files = tuple(files)

    def __enter__(self) -> Downloaded:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def path(self, file: LockedFile) -> Path:
        """Return where a file lies."""
        return Path(self._folder.name) / file.filename


class Apt:
    """apt-get with lists of our own for one release, from the Debian mirror that this machine uses.

    Args:
        arch: the architecture of the packages.
        suite: name of the release.
        folder: where the lists are kept.
    """

    def __init__(self, arch: str, suite: str, folder: Path) -> None:
        self._arch = arch
        self._suite = suite
        self._folder = folder
        self.said = ""

    def update(self) -> None:
        """Read the package lists of the release. Failures show when downloading."""
        try:
            (self._folder / "state" / "lists" / "partial").mkdir(parents=True, exist_ok=True)
            (self._folder / "cache" / "archives" / "partial").mkdir(parents=True, exist_ok=True)
            line = source_line(self._suite, debian_mirror())
            (self._folder / "sources.list").write_text(line, encoding="utf-8")
        except OSError as exc:
            raise storage_error(exc, f"cannot write {self._folder}") from exc
        self._run(["update", "--quiet=2"], Path.cwd())

    def download(self, wanted: Sequence[str]) -> Downloaded | None:
        """Download packages (`name` or `name=version`), or return None when apt cannot."""
        if not wanted:
            return None
        folder = tempfile.TemporaryDirectory(prefix="opencoti-debs-")
        names = [
            f"{word.partition('=')[0]}:{self._arch}{''.join(word.partition('=')[1:])}" for word in wanted
        ]
        listing = self._run(["download", "--print-uris", *names], Path(folder.name))
        matches = [match for line in (listing or "").splitlines() if (match := _URI_LINE.fullmatch(line))]
        if (
            len(matches) != len(wanted)
            or self._run(["download", "--quiet=2", *names], Path(folder.name)) is None
        ):
            folder.cleanup()
            return None
        return Downloaded(folder, [self._described(match, Path(folder.name)) for match in matches])

    def offered(self, names: Sequence[str]) -> dict[str, str]:
        """Return the version that the package lists have of each package, of none when one is not in them."""
        words = [f"{name}:{self._arch}" for name in names]
        said = self.said
        listing = self._run(["download", "--print-uris", *words], self._folder) or ""
        self.said = said  # of the download that failed
        matches = [match for line in listing.splitlines() if (match := _URI_LINE.fullmatch(line))]
        return {match["name"]: match["version"].replace("%3a", ":") for match in matches}

    def _described(self, match: re.Match[str], folder: Path) -> LockedFile:
        path = folder / match["file"]
        return LockedFile(
            name=match["name"],
            version=match["version"].replace("%3a", ":"),
            arch=self._arch,
            suite=self._suite,
            filename=match["file"],
            sha256=sha256_file(path),
            size=path.stat().st_size,
        )

    def _run(self, words: list[str], cwd: Path) -> str | None:
        with tempfile.NamedTemporaryFile("w", prefix="opencoti-apt-", suffix=".conf") as file:
            file.write(self._configuration())
            file.flush()
            done = process.run(["apt-get", "--config-file", file.name, *words], cwd=cwd)
        self.said = " ".join(done.error_text.split("\n")[-2:])
        return done.text if done.is_ok else None

    def _configuration(self) -> str:
        lines = [
            # Hooks of the machine (a desktop's package index and the like) are not for our lists.
            "#clear APT::Update::Post-Invoke;",
            "#clear APT::Update::Post-Invoke-Success;",
            'Acquire::Languages "none";',
            'Acquire::Retries "3";',
            # The lists of a release out of support, or of a mirror that lags, have run out. What is taken
            # is compared with the hashes of the lock, so an old list can do no harm.
            'Acquire::Check-Valid-Until "false";',
            f'APT::Architecture "{self._arch}";',
            f'APT::Architectures {{ "{self._arch}"; }};',
            f'Dir::State "{self._folder}/state/";',
            'Dir::State::status "/dev/null";',
            f'Dir::Cache "{self._folder}/cache/";',
            f'Dir::Etc::SourceList "{self._folder}/sources.list";',
            'Dir::Etc::SourceParts "-";',
        ]
        if os.geteuid() == 0:
            lines.append('APT::Sandbox::User "root";')
        return "\n".join(lines) + "\n"


def debian_mirror(env: Mapping[str, str] | None = None) -> str:
    """Return the address of the Debian archive: OPENCOTI_DEBIAN_MIRROR, else what this machine's apt uses.

    Raises:
        MissingError: `deb-mirror-missing`.
    """
    env = os.environ if env is None else env
    if mirror := env.get(MIRROR_VARIABLE, ""):
        return mirror.rstrip("/")
    listing = process.run(["apt-get", "indextargets", "--format", "$(REPO_URI)"]).text
    addresses = [line.rstrip("/") for line in listing.splitlines()]
    archive = next((line for line in addresses if line.rsplit("/", 1)[-1] == "debian"), "")
    if not archive:
        raise MissingError(
            "deb-mirror-missing",
            "cannot make a toolchain image: no Debian mirror is known",
            why="the apt of this machine is configured for none",
            hint=f"set {MIRROR_VARIABLE} to the address of one, or build without an image: --engine host",
        )
    return archive


def source_line(suite: str, mirror: str) -> str:
    """Return the sources.list of one release.

    Only the release itself: its packages stay until the next point release, those of updates and security
    are replaced any day, and an image without network has no use for them.
    """
    signed = f"[signed-by={_KEYRING}] " if Path(_KEYRING).is_file() else ""
    return f"deb {signed}{mirror} {suite} {_COMPONENTS}\n"


def _keep(
    got: Downloaded, locked: dict[str, LockedFile], downloads: Path, console: Console | None
) -> list[FetchedDeb]:
    kept = []
    for file in sorted(got.files, key=lambda file: file.name):
        pinned = locked.get(file.name)
        _check_same_version(file, pinned)
        is_locked = pinned is not None and pinned.sha256 == file.sha256
        if console and not is_locked:
            before = f"{pinned.version} of the lock" if pinned else "nothing in the lock"
            console.warn(f"Debian package {file.name} {file.version} is used instead of {before}")
        try:
            downloads.mkdir(parents=True, exist_ok=True)
            temporary = downloads / f".{file.sha256}.{os.getpid()}"
            shutil.copyfile(got.path(file), temporary)
            os.replace(temporary, downloads / file.sha256)
        except OSError as exc:
            raise storage_error(exc, f"cannot write the download cache {downloads}") from exc
        kept.append(FetchedDeb(package=file, path=downloads / file.sha256, locked=is_locked))
    return kept


def _check_same_version(file: LockedFile, pinned: LockedFile | None) -> None:
    if pinned and pinned.version == file.version and pinned.sha256 != file.sha256:
        raise VerificationError(
            "deb-hash-mismatch",
            f"package {file.name} {file.version} has other bytes than the lock says",
            why=f"sha256 {file.sha256}, expected {pinned.sha256}",
            hint="do not use this mirror, or write a new lock if the change is wanted",
        )


def _cached(package: LockedFile | None, downloads: Path) -> FetchedDeb | None:
    if package is None:
        return None
    path = downloads / package.sha256
    if not path.is_file() or sha256_file(path) != package.sha256:
        return None
    return FetchedDeb(package=package, path=path, locked=True)


def _require_apt() -> None:
    missing = [name for name in ("apt-get", "dpkg-deb") if shutil.which(name) is None]
    if missing:
        raise MissingError(
            "apt-missing",
            f"cannot make a toolchain image: {' and '.join(missing)} not found",
            why="the image is made from Debian packages that this machine's own apt fetches",
            hint="build with the same compilers without an image: --engine host",
        )


def _drift_error(wanted: Sequence[str]) -> ConfigError:
    return ConfigError(
        "deb-lock-drift",
        "the Debian packages of debs.lock are not to be had any more",
        why=f"apt offers other versions than {', '.join(wanted)}",
        hint="write a new lock with `python -m ci images --lock` and commit it",
    )
