"""Signing files of a release: derive the trusted comment, sign, and check the result as a client would.

Nothing is written before every signature of the call has passed the client's own checks against the trust
root that ships, so a key that clients do not know cannot sign a release (case B29).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from opencoti.errors import ConfigError, UsageError, VerificationError, storage_error
from opencoti.files import require_safe_name, write_atomic
from opencoti.hashing import sha256_bytes
from opencoti.index import MAX_INDEX_BYTES, ReleaseIndex, load_index
from opencoti.manifest import MANIFEST_SUFFIX, load_manifest
from opencoti.minisign import SIGNATURE_SUFFIX, prehash, prehash_stream
from opencoti.policy import Asked, verify_index, verify_manifest
from opencoti.trust.checks import PRODUCT
from opencoti.trust.comment import INDEX_NAME, Comment
from opencoti.trust.keys import TrustedKeys, check_digest
from opencoti.trust.memory import TrustState
from release.keys import SecretKey


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the user said about the files; None is taken from an index or a manifest."""

    product: str | None = None
    repo: str | None = None
    tag: str | None = None
    version: str | None = None
    sequence: str | None = None
    expires: str | None = None
    notes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Signed:
    """One signature that passed the client's checks and is yet to be written."""

    path: Path
    comment: Comment
    signature: bytes

    @property
    def signature_path(self) -> Path:
        """Where the signature belongs."""
        return self.path.with_name(self.path.name + SIGNATURE_SUFFIX)


def sign_files(
    files: list[Path], *, key: SecretKey, facts: Facts, keys: TrustedKeys, now: datetime
) -> list[Signed]:
    """Sign files and write `FILE.minisig` beside each: all of them, or none after a refusal.

    Args:
        files: what to sign. The index in their folder, if there is one, tells repo, tag and version.
        key: the signing key.
        facts: what else the comments shall say.
        keys: the list that clients have; the results are checked against it.
        now: the current time.

    Raises:
        UsageError: `sign-root`, `sign-contradiction`.
        ConfigError: `sign-fact-missing`; an index or manifest is malformed.
        VerificationError: `signing-key-not-listed`, `signing-key-retired`, `not-in-index`, `index-expired`;
            whatever a client would refuse.
        StorageError: a file cannot be read or written.
    """
    if keys.key_of(key.public) is None:
        raise VerificationError(
            "signing-key-not-listed",
            f"clients do not know key {key.public.name}",
            why=f"{keys.origin} lists {', '.join(k.public.name for k in keys.keys) or 'no signing key'}",
            hint="sign with a listed key, or add this one with `python -m release root add-key`",
        )
    _require_use(files, facts)
    signed = [_sign_file(path, key=key, facts=facts, keys=keys, now=now) for path in files]
    for item in signed:
        write_atomic(item.signature_path, item.signature)
    return signed


def comment_for(path: Path, data: bytes | None, facts: Facts, index: ReleaseIndex | None) -> Comment:
    """Return the trusted comment of a file.

    Args:
        path: the file; its name tells its kind.
        data: its content, if it is an index or a manifest.
        facts: what the user said.
        index: the index of the release it belongs to, if there is one.

    Raises: as `sign_files`.
    """
    require_safe_name(path.name, "the command line")
    known = _facts_of_index(index) if index is not None else Facts()
    if data is not None and path.name != INDEX_NAME:
        known = _merge(known, Facts(version=load_manifest(data, str(path)).version_string), path)
    if path.name != INDEX_NAME:
        known = replace(known, sequence=None, expires=None)
        facts = replace(facts, sequence=None, expires=None)
    merged = _merge(known, facts, path)
    values = {name: value for name in _FIELDS if (value := getattr(merged, name)) is not None}
    values.setdefault("product", PRODUCT)
    for name in ("repo", "tag", "version"):
        if name not in values:
            raise ConfigError(
                "sign-fact-missing",
                f"cannot sign {path}",
                why=f"nothing tells its {name}",
                hint=f"name it with --{name}, or put {INDEX_NAME} beside the file",
            )
    pairs = values | {"file": path.name} | dict(facts.notes)
    comment = Comment.from_pairs(pairs, str(path))
    return Comment.parse(comment.render(), str(path))  # values that the grammar has no form for end here


def check_as_client(
    path: Path, data: bytes, signature: bytes, *, comment: Comment, keys: TrustedKeys, now: datetime
) -> None:
    """Run the client's own verification on an index or a manifest. Raises as that does."""
    asked = Asked(product=comment.product, repo=comment.repo or "", tag=comment.tag)
    if path.name == INDEX_NAME:
        verify_index(data, signature, asked=asked, root=keys, state=TrustState(), now=now)
    else:
        artifact = path.name.removesuffix(MANIFEST_SUFFIX)
        asked = replace(asked, artifact=artifact)
        verify_manifest(data, signature, file=path.name, asked=asked, root=keys, state=TrustState())


def is_document(path: Path) -> bool:
    """Tell whether a file is one that clients parse: an index or a manifest."""
    return path.name == INDEX_NAME or path.name.endswith(MANIFEST_SUFFIX)


def read_document(path: Path) -> bytes:
    """Return the content of an index or a manifest. Raises `StorageError`; the parsers bound the size."""
    try:
        with open(path, "rb") as file:
            return file.read(MAX_INDEX_BYTES + 1)
    except OSError as exc:
        raise storage_error(exc, f"cannot read {path}") from exc


def digest_file(path: Path) -> bytes:
    """Return the BLAKE2b-512 of a file of any size. Raises `StorageError`."""
    try:
        with open(path, "rb") as file:
            return prehash_stream(file)
    except OSError as exc:
        raise storage_error(exc, f"cannot read {path}") from exc


_FIELDS = ("product", "repo", "tag", "version", "sequence", "expires")


def _sign_file(path: Path, *, key: SecretKey, facts: Facts, keys: TrustedKeys, now: datetime) -> Signed:
    data = read_document(path) if is_document(path) else None
    index = _index_beside(path, data)
    if data is not None and index is not None and path.name != INDEX_NAME:
        _require_listed(path, data, index)
    comment = comment_for(path, data, facts, index)
    digest = prehash(data) if data is not None else digest_file(path)
    untrusted = f"signature of {path.name} by opencoti key {key.public.name}"
    signature = key.sign(digest, comment.render()).render(untrusted)
    check_digest(digest, signature, keys=keys, what=path.name)
    if data is not None:
        check_as_client(path, data, signature, comment=comment, keys=keys, now=now)
    return Signed(path=path, comment=comment, signature=signature)


def _index_beside(path: Path, data: bytes | None) -> ReleaseIndex | None:
    beside = path.with_name(INDEX_NAME)
    if path.name == INDEX_NAME:
        return load_index(data or b"", str(path))
    return load_index(read_document(beside), str(beside)) if beside.exists() else None


def _require_listed(path: Path, data: bytes, index: ReleaseIndex) -> None:
    listed = index.artifact_of_manifest(path.name)
    if listed is None or listed.manifest.sha256 != sha256_bytes(data):
        raise VerificationError(
            "not-in-index",
            f"{path} is not signed",
            why=f"{INDEX_NAME} beside it does not list these bytes",
            hint="stage the release again",
        )


def _require_use(files: list[Path], facts: Facts) -> None:
    """Refuse words that would have no effect, and roots, which several keys sign."""
    for path in files:
        if path.name.startswith("root-") and path.name.endswith(".json"):
            raise UsageError(
                "sign-root", f"{path} is a trust root", hint="sign it with `python -m release root sign`"
            )
    given = facts.sequence is not None or facts.expires is not None
    if given and all(path.name != INDEX_NAME for path in files):
        raise UsageError(
            "sign-contradiction",
            "sequence and expiry stand in the comment of an index only",
            why=f"none of the files is {INDEX_NAME}",
            hint="leave out --sequence and --expires",
        )


def _facts_of_index(index: ReleaseIndex) -> Facts:
    return Facts(
        product=index.product,
        repo=index.repo,
        tag=index.tag,
        version=index.version_string,
        sequence=str(index.sequence),
        expires=index.expires,
    )


def _merge(known: Facts, said: Facts, path: Path) -> Facts:
    """Return both together; what the user said must not differ from what the files say."""
    values: dict[str, Any] = {}
    for name in _FIELDS:
        old, new = getattr(known, name), getattr(said, name)
        if old is not None and new is not None and old != new:
            raise UsageError(
                "sign-contradiction",
                f"{path} cannot be signed with {name} {new}",
                why=f"the release says {name} {old}",
                hint=f"leave out --{name}, or stage the release again",
            )
        if (value := old if new is None else new) is not None:
            values[name] = value
    return replace(known, **values)
