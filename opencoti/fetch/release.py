"""A signed release: from what the user asked for to one verified artifact, with the table of its chunks.

The order is that of `docs/security.md`: trusted root, index, manifest, chunk table, file. Nothing is parsed
that is not verified (`opencoti.policy`), and what was seen is remembered by `Resolved.remember` only, which
the caller calls after the file is in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from opencoti import state
from opencoti.console import Console
from opencoti.errors import ConfigError, MissingError, VerificationError
from opencoti.fetch.addresses import latest_url, release_url
from opencoti.fetch.blueprint import Blueprint, read_table
from opencoti.fetch.choose import Choice, Wish, asks_for_devices, choose
from opencoti.fetch.documents import Reader
from opencoti.fetch.download import Tools
from opencoti.fetch.host import this_host
from opencoti.fetch.proof import Proofs, read_proofs
from opencoti.fetch.settings import Settings
from opencoti.fetch.source import HttpSource, ManifestHint, Request, is_model, local_override
from opencoti.fetch.workers import Piece
from opencoti.hardware import Hardware, detect
from opencoti.minisign import SIGNATURE_SUFFIX
from opencoti.pins import ArtifactPin, RepositoryOrigin
from opencoti.policy import Asked, VerifiedIndex, VerifiedManifest, signed_tag, verify_index, verify_manifest
from opencoti.trust.comment import INDEX_NAME
from opencoti.trust.keys import require_keys
from opencoti.trust.memory import Observation, Strength, TrustState

if TYPE_CHECKING:
    from opencoti.index import ReleasedArtifact
    from opencoti.manifest import Manifest
    from opencoti.trust.chain import TrustedRoot

DEFAULT_REPOSITORY = "mann1x/opencoti"
_MOST_NEW_ROOTS = 64


@dataclass(frozen=True, kw_only=True)
class Trust:
    """What a client believes before it asks anybody.

    Attributes:
        folder: where it keeps what it has seen, see `opencoti.state`.
        anchor: the root that everything starts from.
        sigstore_root: the same for attestations; None is the public instance.
    """

    folder: Path
    anchor: TrustedRoot
    sigstore_root: Path | None = None
    now: Callable[[], datetime] = field(default=lambda: datetime.now(UTC))


@dataclass(frozen=True, kw_only=True)
class ReleaseWish:
    """Which release, and what in it. `tag` None is the newest one."""

    repository: str = DEFAULT_REPOSITORY
    tag: str | None = None
    wish: Wish = field(default_factory=Wish)
    require: Strength = Strength.SIGNATURE
    allow_downgrade: bool = False
    allow_expired: bool = False
    allow_weaker: bool = False


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A verified artifact to fetch. `find_blueprint` reads its chunk table when that is needed."""

    request: Request
    find_blueprint: Callable[[Tools], Blueprint]
    choice: Choice | None
    strength: Strength
    observations: tuple[Observation, ...]
    trust: Trust

    def remember(self) -> None:
        """Keep what was seen. To be called after full success. Raises like `opencoti.state.remember`."""
        state.remember(self.trust.folder, *self.observations)


@dataclass(frozen=True, kw_only=True)
class _Opened:
    """A verified index, and what it was verified with."""

    index: VerifiedIndex
    proofs: Proofs
    root: TrustedRoot
    seen: TrustState


class Resolver:
    """Resolves wishes and pins against one base address.

    Args:
        settings: base address, limits.
        trust: what to start from.
        console: told about warnings.
        tools: the outside.
        find_hardware: asked where an artifact is for GPUs.
    """

    def __init__(
        self,
        settings: Settings,
        trust: Trust,
        console: Console,
        tools: Tools,
        find_hardware: Callable[[], Hardware] = detect,
    ) -> None:
        self._find_hardware = find_hardware
        self._settings = settings
        self._trust = trust
        self._console = console
        self._reader = Reader(tools, settings.limits, console)

    def resolve(self, wish: ReleaseWish) -> Resolved:
        """Verify a release and choose what suits this host.

        Raises:
            VerificationError, ConfigError: as `opencoti.policy`.
            MissingError: `nothing-for-this-host`.
            NetworkError, StorageError: as `documents`.
        """
        require_keys(state.load_root(self._trust.folder, self._trust.anchor))
        asked = Asked(
            repo=wish.repository,
            tag=wish.tag,
            require=wish.require,
            on_expired="warn" if wish.allow_expired else "error",
            allow_downgrade=wish.allow_downgrade,
            allow_weaker=wish.allow_weaker,
        )
        opened = self._open_index(asked)
        index = opened.index
        choice = self._choose(index.index.artifacts, wish.wish)
        if choice.taken is None:
            raise _nothing_fits(index, choice)
        # From here on the tag of the index is meant: "latest" may move meanwhile.
        manifest_url = self._asset_url(wish.repository, index.index.tag, choice.taken.manifest.name)
        data, signature = self._signed(manifest_url)
        manifest = verify_manifest(
            data,
            signature,
            file=choice.taken.manifest.name,
            asked=asked,
            root=opened.root,
            state=opened.seen,
            index=index,
            proof=opened.proofs.of(data),
        )
        pieces = self._pieces(wish.repository, index.index.tag, choice.taken)
        return self._resolved(manifest, manifest_url, pieces, choice, index.observation)

    def resolve_pin(self, pin: ArtifactPin, require: Strength) -> Resolved:
        """Verify the signed manifest of a pinned artifact of a repository.

        Raises:
            VerificationError, ConfigError: as `opencoti.policy`.
            NetworkError, StorageError: as `documents`.
        """
        assert isinstance(pin.origin, RepositoryOrigin)
        repository = pin.origin.repository
        require_keys(state.load_root(self._trust.folder, self._trust.anchor))
        file = f"{pin.asset}.MANIFEST.json"
        url = self._asset_url(repository, pin.tag, file)
        data, signature = self._signed(url)
        asked = Asked(repo=repository, tag=pin.tag, artifact=pin.asset, sha256=pin.sha256, require=require)
        root = self._newest_root(lambda name: self._asset_url(repository, pin.tag, name))
        seen = state.load(self._trust.folder)
        manifest = verify_manifest(
            data,
            signature,
            file=file,
            asked=asked,
            root=root,
            state=seen,
            proof=self._proofs(pin.tag, asked, seen).of(data),
        )
        asset = Piece(
            url=self._asset_url(repository, pin.tag, pin.asset), start=0, size=manifest.manifest.size
        )
        return self._resolved(manifest, url, (asset,), None)

    def _resolved(
        self,
        verified: VerifiedManifest,
        url: str,
        pieces: tuple[Piece, ...],
        choice: Choice | None,
        *more: Observation,
    ) -> Resolved:
        manifest, hint = verified.manifest, ManifestHint(source=HttpSource(url=url), is_named=True)
        return Resolved(
            request=Request(
                name=manifest.name,
                sha256=manifest.sha256,
                source=local_override(manifest.name, self._settings) or HttpSource(url=pieces[0].url),
                is_executable=not is_model(manifest.name),
            ),
            find_blueprint=lambda tools: self._blueprint(manifest, hint, pieces, tools),
            choice=choice,
            strength=verified.strength,
            observations=(*more, verified.observation),
            trust=self._trust,
        )

    def _blueprint(
        self, manifest: Manifest, hint: ManifestHint, pieces: tuple[Piece, ...], tools: Tools
    ) -> Blueprint:
        if any(piece.start % manifest.chunks.chunk_size for piece in pieces):
            raise _misaligned(manifest)
        reader = Reader(tools, self._settings.limits, self._console)
        table = read_table(manifest, hint, reader)
        return Blueprint(table=table, pieces=pieces, is_vouched=True)

    def _signed(self, url: str) -> tuple[bytes, bytes]:
        data = self._reader.read(HttpSource(url=url))
        signature = self._reader.read_if_there(HttpSource(url=url + SIGNATURE_SUFFIX))
        if signature is None:
            raise _unsigned(url)
        return data, signature

    def _open_index(self, asked: Asked) -> _Opened:
        """Verify the index of what was asked for, with every proof that there is for it."""

        def url_of(name: str) -> str:
            return self._asset_url(asked.repo, asked.tag, name)

        data, signature = self._signed(url_of(INDEX_NAME))
        root = self._newest_root(url_of)
        seen = state.load(self._trust.folder)
        proofs = self._proofs(signed_tag(data, signature, asked=asked, root=root), asked, seen)
        index = verify_index(
            data,
            signature,
            asked=asked,
            root=root,
            state=seen,
            now=self._trust.now(),
            proof=proofs.of(data),
        )
        for warning in index.warnings:
            self._console.warn(warning)
        return _Opened(index=index, proofs=proofs, root=root, seen=seen)

    def _choose(self, artifacts: Sequence[ReleasedArtifact], wish: Wish) -> Choice:
        hardware = self._find_hardware() if asks_for_devices(artifacts) else None
        return choose(artifacts, this_host(), wish, hardware)

    def _proofs(self, tag: str, asked: Asked, seen: TrustState) -> Proofs:
        return read_proofs(
            tag,
            lambda name: self._asset_url(asked.repo, tag, name),
            asked=asked,
            state=seen,
            reader=self._reader,
            console=self._console,
            trusted_root=self._trust.sigstore_root,
        )

    def _newest_root(self, url_of: Callable[[str], str]) -> TrustedRoot:
        """Follow the roots that are published beside a release, link by link; keep what verified."""
        from opencoti.trust.chain import RootLink
        from opencoti.trust.document import root_name

        root = state.load_root(self._trust.folder, self._trust.anchor)
        for _ in range(_MOST_NEW_ROOTS):
            url = url_of(root_name(root.version + 1))
            data = self._reader.read_if_there(HttpSource(url=url))
            if data is None:
                break
            signatures = self._reader.read(HttpSource(url=url + SIGNATURE_SUFFIX))
            link = RootLink(data=data, signatures=signatures)
            root = state.remember_root(self._trust.folder, root, link)
        return root

    def _asset_url(self, repository: str, tag: str | None, name: str) -> str:
        base = self._settings.base_url
        return latest_url(base, repository, name) if tag is None else release_url(base, repository, tag, name)

    def _pieces(self, repository: str, tag: str, artifact: ReleasedArtifact) -> tuple[Piece, ...]:
        parts = [(part.name, part.size) for part in artifact.parts] or [(artifact.name, artifact.size)]
        pieces, start = [], 0
        for name, size in parts:
            pieces.append(Piece(url=self._asset_url(repository, tag, name), start=start, size=size))
            start += size
        return tuple(pieces)


def describe(choice: Choice) -> list[str]:
    """Return one line per artifact of a release."""
    return [f"{'taken' if v.is_taken else 'not taken'}: {v.name}: {v.reason}" for v in choice.verdicts]


def _nothing_fits(index: VerifiedIndex, choice: Choice) -> MissingError:
    return MissingError(
        "nothing-for-this-host",
        f"release {index.index.tag} of {index.index.repo} has no artifact that suits",
        why="; ".join(f"{verdict.name}: {verdict.reason}" for verdict in choice.verdicts),
        hint="ask for less (--backend, --flavor), take another release, or build from source",
    )


def _misaligned(manifest: Manifest) -> ConfigError:
    return ConfigError(
        "parts-misaligned",
        f"the parts of {manifest.name} cannot be put together",
        why=f"a part does not start at a multiple of the chunk size ({manifest.chunks.chunk_size} bytes)",
        hint="tell the publisher",
    )


def _unsigned(url: str) -> VerificationError:
    return VerificationError(
        "signature-absent",
        f"there is no signature beside {url}",
        why="without one nothing of a release is used",
        hint="check OPENCOTI_MIRROR, or use a pin with its own SHA-256",
    )
