"""Checking one signed file on the publisher's side, with the client's own code."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from opencoti.errors import VerificationError, storage_error
from opencoti.manifest import MANIFEST_SUFFIX
from opencoti.minisign import MAX_SIGNATURE_BYTES, SIGNATURE_SUFFIX, PublicKey, SignedBy, prehash
from opencoti.policy import Asked, verify_index, verify_manifest
from opencoti.trust.checks import check_scope
from opencoti.trust.comment import INDEX_NAME, Comment
from opencoti.trust.keys import TrustedKeys, check_digest
from opencoti.trust.memory import TrustState
from release.sign import digest_file, is_document, read_document


@dataclass(frozen=True, kw_only=True)
class Verified:
    """What a good signature says."""

    key: PublicKey
    comment: str
    warnings: tuple[str, ...] = ()


def verify_file(
    path: Path, *, keys: TrustedKeys, repo: str | None, tag: str | None, now: datetime
) -> Verified:
    """Verify `FILE` with `FILE.minisig`; an index or manifest also as a client would, without a memory.

    Args:
        path: the file.
        keys: who may sign.
        repo: the repository it must be signed for, if that matters.
        tag: likewise the tag.
        now: the current time; an expired index is a warning here.

    Raises:
        VerificationError, ConfigError: as `opencoti.policy`.
        StorageError: a file cannot be read.
    """
    signature = _read_signature(path)
    data = read_document(path) if is_document(path) else None
    digest = digest_file(path) if data is None else prehash(data)
    signed = check_digest(digest, signature, keys=keys, what=path.name)
    if data is not None:
        return _verify_document(path, data, signature, signed, keys=keys, repo=repo, tag=tag, now=now)
    if repo is not None or tag is not None:
        comment = Comment.parse(signed.trusted_comment, path.name)
        check_scope(comment, file=path.name, repo=repo, tag=tag)
    return Verified(key=signed.key, comment=signed.trusted_comment)


def _verify_document(
    path: Path,
    data: bytes,
    signature: bytes,
    signed: SignedBy,
    *,
    keys: TrustedKeys,
    repo: str | None,
    tag: str | None,
    now: datetime,
) -> Verified:
    comment = Comment.parse(signed.trusted_comment, path.name)
    asked = Asked(
        product=comment.product, repo=repo or comment.repo or "", tag=tag or comment.tag, on_expired="warn"
    )
    warnings: tuple[str, ...] = ()
    state = TrustState()
    if path.name == INDEX_NAME:
        warnings = verify_index(data, signature, asked=asked, root=keys, state=state, now=now).warnings
    else:
        assert path.name.endswith(MANIFEST_SUFFIX)
        verify_manifest(data, signature, file=path.name, asked=asked, root=keys, state=state)
    return Verified(key=signed.key, comment=signed.trusted_comment, warnings=warnings)


def _read_signature(path: Path) -> bytes:
    beside = path.with_name(path.name + SIGNATURE_SUFFIX)
    try:
        with open(beside, "rb") as file:
            return file.read(MAX_SIGNATURE_BYTES + 1)
    except FileNotFoundError as exc:
        raise VerificationError(
            "signature-missing", f"{path} has no signature", why=f"there is no {beside.name}",
            hint="get it from the publisher too",
        ) from exc  # fmt: skip
    except OSError as exc:
        raise storage_error(exc, f"cannot read {beside}") from exc
