"""One published release, verified from outside: index, list of files, manifests, provenance, every byte.

The order is that of a client: signatures over exact bytes, comments against what was asked, then content.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from opencoti.console import Console
from opencoti.errors import VerificationError, storage_error
from opencoti.index import ReleaseIndex
from opencoti.manifest import MANIFEST_SUFFIX
from opencoti.minisign import SIGNATURE_SUFFIX, prehash
from opencoti.policy import Asked, VerifiedIndex, verify_index, verify_manifest
from opencoti.trust.chain import TrustedRoot
from opencoti.trust.checks import check_scope, require_active
from opencoti.trust.comment import INDEX_NAME, Comment
from opencoti.trust.keys import check_digest
from opencoti.trust.memory import TrustState
from release.checking.remote_files import HashedFile, RemoteFiles
from release.sums import SUMS_NAME, parse_sums


@dataclass(frozen=True, kw_only=True)
class CheckedFile:
    """An asset whose bytes are what the release says."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Listed:
    """What a release says about itself, verified."""

    verified: VerifiedIndex
    sums: Mapping[str, str]
    sums_bytes: bytes

    @property
    def index(self) -> ReleaseIndex:
        """The index."""
        return self.verified.index

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes that the index tells, by name of the asset."""
        sizes = {item.name: item.size for item in self.index.artifacts if not item.parts}
        return sizes | {part.name: part.size for item in self.index.artifacts for part in item.parts}


def read_listed(
    files: RemoteFiles, *, repo: str, tag: str, root: TrustedRoot, now: datetime, on_expired: str = "error"
) -> Listed:
    """Fetch and verify the index and the list of files of a release.

    Raises:
        VerificationError: as `opencoti.policy`; `release-incomplete`, the list and the index disagree.
        NetworkError: as `RemoteFiles`.
    """
    data, signature = files.read(INDEX_NAME), files.read(INDEX_NAME + SIGNATURE_SUFFIX)
    asked = Asked(repo=repo, tag=tag, on_expired="warn" if on_expired == "warn" else "error")
    verified = verify_index(data, signature, asked=asked, root=root, state=TrustState(), now=now)
    sums, signature = files.read(SUMS_NAME), files.read(SUMS_NAME + SIGNATURE_SUFFIX)
    signed = check_digest(prehash(sums), signature, keys=root, what=SUMS_NAME)
    check_scope(Comment.parse(signed.trusted_comment, SUMS_NAME), file=SUMS_NAME, repo=repo, tag=tag)
    key = root.key_of(signed.key)
    if key is not None:
        require_active(key, sequence=verified.index.sequence, what=SUMS_NAME)
    listed = Listed(verified=verified, sums=parse_sums(sums, SUMS_NAME), sums_bytes=sums)
    _require_complete(listed)
    return listed


def check_manifests(files: RemoteFiles, listed: Listed, *, repo: str, root: TrustedRoot) -> int:
    """Verify every manifest as a client would; return how many there are. Raises as `opencoti.policy`."""
    for artifact in listed.index.artifacts:
        name = artifact.manifest.name
        verify_manifest(
            files.read(name),
            files.read(name + SIGNATURE_SUFFIX),
            file=name,
            asked=Asked(repo=repo, tag=listed.index.tag, artifact=artifact.name),
            root=root,
            state=TrustState(),
            index=listed.verified,
        )
    return len(listed.index.artifacts)


def check_files(files: RemoteFiles, listed: Listed, console: Console) -> tuple[CheckedFile, ...]:
    """Read every listed asset and compare it.

    Raises:
        VerificationError: `asset-differs`.
        NetworkError: as `RemoteFiles`.
    """
    done = []
    for number, (name, sha256) in enumerate(sorted(listed.sums.items()), 1):
        console.status(f"{number} of {len(listed.sums)}: {name}")
        found = files.hash(name)
        if found.sha256 != sha256:
            raise _differs(files.url(name), sha256, found)
        done.append(CheckedFile(name=name, size=found.size, sha256=sha256))
    return tuple(done)


def check_sizes(files: RemoteFiles, listed: Listed) -> tuple[CheckedFile, ...]:
    """Ask for one byte of every asset, and compare the sizes that are known. Raises as `check_files`."""
    done = []
    for name, sha256 in sorted(listed.sums.items()):
        found, wanted = files.size(name), listed.sizes.get(name)
        if wanted is not None and found is not None and found != wanted:
            raise VerificationError(
                "asset-differs",
                f"{files.url(name)} is not the released file",
                why=f"it has {found} bytes, the release says {wanted}",
                hint="look who changed it; do not publish over it",
            )
        done.append(CheckedFile(name=name, size=found or 0, sha256=sha256))
    return tuple(done)


def compare_with_folder(files: RemoteFiles, listed: Listed, folder: Path) -> int:
    """Compare a release with the folder that it was published from; return the number of files compared.

    Raises:
        VerificationError: `release-differs-from-folder`.
        StorageError, NetworkError: a file cannot be read.
    """
    names = [SUMS_NAME, *sorted(path.name for path in folder.glob(f"*{SIGNATURE_SUFFIX}"))]
    for name in names:
        local = _read(folder / name)
        remote = listed.sums_bytes if name == SUMS_NAME else files.read(name)
        if local != remote:
            raise VerificationError(
                "release-differs-from-folder",
                f"{files.url(name)} is not {folder / name}",
                why="the bytes differ",
                hint="something else was published under this tag; look before doing anything",
            )
    return len(names)


def _require_complete(listed: Listed) -> None:
    """Refuse a list that lacks what the index names, or says something else of it."""
    for name, sha256 in _named(listed.index):
        if listed.sums.get(name) != sha256:
            raise VerificationError(
                "release-incomplete",
                f"{SUMS_NAME} and {INDEX_NAME} of release {listed.index.tag} disagree",
                why=f"{name} is {'not listed' if name not in listed.sums else 'listed with another SHA-256'}",
                hint="the release was put together wrongly: cut a new one",
            )


def _named(index: ReleaseIndex) -> Iterator[tuple[str, str]]:
    for artifact in index.artifacts:
        pieces = artifact.parts or (artifact,)
        yield from ((piece.name, piece.sha256) for piece in pieces)
        yield artifact.name + MANIFEST_SUFFIX, artifact.manifest.sha256
    yield from ((item.name, item.sha256) for item in index.evidence)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise storage_error(exc, f"cannot read {path}") from exc


def _differs(url: str, wanted: str, found: HashedFile) -> VerificationError:
    return VerificationError(
        "asset-differs",
        f"{url} is not the released file",
        why=f"expected sha256 {wanted}, got {found.sha256} ({found.size} bytes)",
        hint="look who changed it; do not publish over it",
    )
