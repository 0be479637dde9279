"""Whether signed bytes are what was asked for: the one way in which a client gets an index or a manifest.

Pure: bytes and state in, a verified type out. The order is fixed (numbers as in `docs/security.md`):

1. signature over the exact bytes, by an accepted key;
2. trusted comment against what was asked: product, repo, tag, file name;
3. retirement of the key, by sequence;
4. ratchet: not older than what was seen, per key, repo and product;
5. expiry;
6. strength of proof: what is required, and what was seen before;
7. only then the bytes are parsed, and what they say must agree with the comment and with what was asked.

A pin with its own SHA-256 needs neither 4 nor 5. What was seen is remembered by the caller
(`opencoti.state.remember`), after the whole job has succeeded.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from opencoti.errors import VerificationError
from opencoti.hashing import sha256_bytes
from opencoti.trust.checks import (
    AGAIN,
    Asked,
    Platform,
    check_expiry,
    check_scope,
    differ,
    incomplete,
    require_active,
    require_comment,
    require_strength,
)
from opencoti.trust.comment import INDEX_NAME, Comment
from opencoti.trust.keys import AcceptedKey, SignedBytes, TrustedKeys, open_signed
from opencoti.trust.memory import Observation, Seen, Strength, TrustState, check_ratchet

if TYPE_CHECKING:
    from opencoti.index import ReleaseIndex
    from opencoti.manifest import Manifest

__all__ = [
    "Asked",
    "Platform",
    "VerifiedIndex",
    "VerifiedManifest",
    "signed_tag",
    "verify_index",
    "verify_manifest",
]


@dataclass(frozen=True, kw_only=True)
class VerifiedIndex:
    """An index that passed every check of this module.

    `warnings` are lines for the user; `observation` is to be remembered after full success.
    """

    index: ReleaseIndex
    data: bytes
    key: AcceptedKey
    strength: Strength
    warnings: tuple[str, ...]
    observation: Observation


@dataclass(frozen=True, kw_only=True)
class VerifiedManifest:
    """A manifest that passed every check of this module; `observation` as in `VerifiedIndex`."""

    manifest: Manifest
    data: bytes
    key: AcceptedKey
    strength: Strength
    observation: Observation


def signed_tag(data: bytes, signature: bytes, *, asked: Asked, root: TrustedKeys) -> str:
    """Return the tag of an index from its signed comment (checks 1 and 2), the index itself unread.

    It tells where other proofs of the same release lie; the index must still go through `verify_index`.

    Raises:
        VerificationError: as `verify_index` for signature and comment.
    """
    signed = open_signed(data, signature, keys=root, what=INDEX_NAME)
    tag = require_comment(signed.trusted_comment, asked=asked, file=INDEX_NAME).tag
    assert tag is not None
    return tag


def verify_index(
    data: bytes,
    signature: bytes,
    *,
    asked: Asked,
    root: TrustedKeys,
    state: TrustState,
    now: datetime,
    proof: Strength = Strength.SIGNATURE,
) -> VerifiedIndex:
    """Verify a release index.

    Args:
        data: the exact bytes of `opencoti-release.json`.
        signature: the bytes of its `.minisig`.
        asked: what the user wants.
        root: who may sign.
        state: what was seen before.
        now: the current time, with a time zone.
        proof: the strongest proof that the caller has already checked for these very bytes.

    Raises:
        VerificationError: `trust-no-keys`, `signature-malformed`, `signature-legacy`,
            `signature-key-unknown`, `signature-mismatch`, `signature-comment-forged`, `comment-malformed`,
            `comment-incomplete`, `wrong-product`, `wrong-repo`, `wrong-tag`, `wrong-file`,
            `signing-key-retired`, `index-rollback`, `index-equivocation`, `index-expired`,
            `proof-too-weak`, `proof-weaker-than-before`, `index-contradicts-comment`, `not-in-index`.
        ConfigError: the publisher signed something that is no index.
    """
    signed = open_signed(data, signature, keys=root, what=INDEX_NAME)
    comment = require_comment(signed.trusted_comment, asked=asked, file=INDEX_NAME)
    if comment.sequence is None or comment.expires is None:
        raise incomplete(INDEX_NAME, "it has no sequence or no expiry")
    require_active(signed.key, sequence=comment.sequence, what=INDEX_NAME)
    seen = Seen(key=signed.key.public.text, sequence=comment.sequence, sha256=sha256_bytes(data))
    warnings: tuple[str, ...] = ()
    if asked.sha256 is None:
        if not asked.allow_downgrade:
            check_ratchet(seen, state.memory(asked.scope), root)
        warnings = check_expiry(comment.expires, now=now, on_expired=asked.on_expired)
    require_strength(proof, asked=asked, state=state, what=INDEX_NAME)
    return VerifiedIndex(
        index=_open_index(data, comment, asked),
        data=data,
        key=signed.key,
        strength=proof,
        warnings=warnings,
        observation=Observation(
            scope=asked.scope, strength=proof, seen=seen, allow_replacement=asked.allow_downgrade
        ),
    )


def verify_manifest(
    data: bytes,
    signature: bytes,
    *,
    file: str,
    asked: Asked,
    root: TrustedKeys,
    state: TrustState,
    index: VerifiedIndex | None = None,
    proof: Strength = Strength.SIGNATURE,
) -> VerifiedManifest:
    """Verify the manifest of an artifact.

    Something must say which release it belongs to: a verified index that lists it, a pinned SHA-256 of the
    artifact, or at least a tag.

    Args:
        data: the exact bytes of the manifest.
        signature: the bytes of its `.minisig`.
        file: the name under which it was asked for.
        asked: what the user wants.
        root: who may sign.
        state: what was seen before.
        index: the verified index that led here.
        proof: the strongest proof that the caller has already checked for these very bytes.

    Raises:
        VerificationError: as `verify_index` for signature, comment, key and proof, and
            `manifest-unanchored`, `not-in-index`, `wrong-artifact`, `wrong-platform`,
            `manifest-contradicts-comment`.
        ConfigError: the publisher signed something that is no manifest.
    """
    signed = open_signed(data, signature, keys=root, what=file)
    comment = require_comment(signed.trusted_comment, asked=asked, file=file)
    if comment.sequence is not None or comment.expires is not None:
        raise VerificationError(
            "comment-malformed",
            f"the trusted comment in the signature of {file} is not one of ours",
            why="only that of an index has a sequence or an expiry",
            hint=AGAIN,
        )
    _check_anchor(signed, comment, asked=asked, index=index, file=file)
    require_strength(proof, asked=asked, state=state, what=file)
    return VerifiedManifest(
        manifest=_open_manifest(data, comment, asked, index),
        data=data,
        key=signed.key,
        strength=proof,
        observation=Observation(scope=asked.scope, strength=proof),
    )


def _check_anchor(
    signed: SignedBytes, comment: Comment, *, asked: Asked, index: VerifiedIndex | None, file: str
) -> None:
    """Find out which release a manifest belongs to, and whether its key may sign for it."""
    if index is not None:
        listed = index.index.artifact_of_manifest(file)
        if listed is None or listed.manifest.sha256 != sha256_bytes(signed.data):
            raise _not_listed(file, "it does not list these bytes")
        check_scope(comment, file=file, tag=index.index.tag)
        require_active(signed.key, sequence=index.index.sequence, what=file)
    elif asked.sha256 is not None:
        # The pin decides which bytes are used; a retired key may describe them, a revoked one may not.
        require_active(signed.key, sequence=1, what=file)
    elif asked.tag is not None:
        require_active(signed.key, sequence=None, what=file)
    else:
        raise VerificationError(
            "manifest-unanchored",
            f"{file} could be of any release",
            why="neither an index, nor a pin, nor a tag says which one is meant",
            hint="name a tag, or use a pin",
        )


def _open_index(data: bytes, comment: Comment, asked: Asked) -> ReleaseIndex:
    from opencoti.index import load_index

    index = load_index(data, INDEX_NAME)
    said = Comment(
        product=index.product,
        repo=index.repo,
        tag=index.tag,
        version=index.version_string,
        file=INDEX_NAME,
        sequence=index.sequence,
        expires=index.expires_at,
        notes=comment.notes,
    )
    if said != comment:
        raise VerificationError(
            "index-contradicts-comment",
            "the release index and its signed comment say different things",
            why=f"`{said.render()}` and `{comment.render()}`",
            hint=AGAIN,
        )
    if asked.sha256 is not None and index.artifact(asked.sha256) is None:
        raise _not_listed("the pinned artifact", f"it lists none with SHA-256 {asked.sha256}")
    return index


def _open_manifest(data: bytes, comment: Comment, asked: Asked, index: VerifiedIndex | None) -> Manifest:
    from opencoti.manifest import MANIFEST_SUFFIX, load_manifest

    manifest = load_manifest(data, comment.file)
    said, signed = (manifest.name + MANIFEST_SUFFIX, manifest.version_string), (comment.file, comment.version)
    if said != signed:
        raise VerificationError(
            "manifest-contradicts-comment",
            f"{comment.file} and its signed comment say different things",
            why=f"{said} and {signed}",
            hint=AGAIN,
        )
    _check_artifact(manifest, asked)
    listed = None if index is None else index.index.artifact_of_manifest(comment.file)
    if listed is not None and (listed.size, listed.sha256) != (manifest.size, manifest.sha256):
        raise _not_listed(comment.file, "it lists another size or SHA-256 of the artifact")
    return manifest


def _check_artifact(manifest: Manifest, asked: Asked) -> None:
    for found, expected in ((manifest.name, asked.artifact), (manifest.sha256, asked.sha256)):
        if expected is not None and found != expected:
            raise VerificationError(
                "wrong-artifact", "the manifest is of another file", why=differ(found, expected), hint=AGAIN
            )
    platform = Platform(os=manifest.os, arch=manifest.arch)
    if asked.platform is not None and platform != asked.platform:
        raise VerificationError(
            "wrong-platform",
            f"{manifest.name} is for another platform",
            why=differ(str(platform), str(asked.platform)),
            hint="choose the artifact for this host",
        )


def _not_listed(file: str, why: str) -> VerificationError:
    return VerificationError("not-in-index", f"{file} is not in the release index", why=why, hint=AGAIN)
