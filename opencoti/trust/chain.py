"""The walk from a trusted root to a newer one: each step signed by both. Pure: bytes in, `TrustedRoot` out.

A root's signature file, `root-N.json.minisig`, holds one minisign block of four lines per signer, one behind
the other (`minisign -V` checks the first). Root N+1 is accepted if the threshold of N's root keys and the
threshold of its own root keys signed its exact bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from opencoti import minisign
from opencoti.errors import VerificationError
from opencoti.minisign import PublicKey, Signature
from opencoti.trust.comment import Comment
from opencoti.trust.document import MAX_ROOT_BYTES, RootDocument, load_root, root_name
from opencoti.trust.keys import AcceptedKey, TrustedKeys, require_keys

MAX_SIGNERS = 64
_LINES_PER_SIGNATURE = 4


@dataclass(frozen=True, kw_only=True)
class RootLink:
    """A newer root as it was received: nothing in it is verified."""

    data: bytes
    signatures: bytes


@dataclass(frozen=True, kw_only=True)
class TrustedRoot(TrustedKeys):
    """A root that is trusted: installed with the program, or reached from there link by link."""

    product: str
    version: int
    threshold: int
    root_keys: tuple[PublicKey, ...]


def anchor(data: bytes, origin: str) -> TrustedRoot:
    """Return the root that trust starts from. The caller vouches for the bytes. Raises `ConfigError`."""
    return _trusted(load_root(data, origin), origin)


def walk(root: TrustedRoot, links: Iterable[RootLink]) -> TrustedRoot:
    """Follow newer roots, one version after the other, without gaps.

    Args:
        root: where to start.
        links: roots of the versions `root.version + 1`, `+ 2`, …

    Returns:
        The last one; `root` itself where there is no link.

    Raises:
        VerificationError: `trust-no-keys`, `root-threshold`, `root-version`, `signature-malformed`,
            `signature-legacy`, `signature-mismatch`, `signature-comment-forged`, `comment-malformed`,
            `root-comment`.
        ConfigError: a root that is signed and malformed.
    """
    for link in links:
        root = _step(root, link)
    return root


def _step(root: TrustedRoot, link: RootLink) -> TrustedRoot:
    name = root_name(root.version + 1)
    if not root.root_keys:
        require_keys(TrustedKeys(origin=root.origin, keys=()))
    if len(link.data) > MAX_ROOT_BYTES:
        raise VerificationError(
            "root-version", f"trust root {name} is refused", why=f"it has more than {MAX_ROOT_BYTES} bytes"
        )
    signatures = split_signatures(link.signatures, name)
    # The old root vouches for the bytes before anything in them is looked at.
    require_threshold(link.data, signatures, keys=root.root_keys, threshold=root.threshold, name=name)
    document = load_root(link.data, name)
    if document.version != root.version + 1 or document.product != root.product:
        raise VerificationError(
            "root-version",
            f"trust root {name} is refused",
            why=f"it is version {document.version} of {document.product}, "
            f"after version {root.version} of {root.product}",
            hint="roots are followed one by one: fetch the one in between",
        )
    require_threshold(
        link.data, signatures, keys=document.public_root_keys, threshold=document.threshold, name=name
    )
    return _trusted(document, name)


def require_threshold(
    data: bytes, signatures: list[Signature], *, keys: tuple[PublicKey, ...], threshold: int, name: str
) -> None:
    """Check that enough different keys of a list signed these bytes. Signatures by others are not counted.

    Raises:
        VerificationError: `root-threshold`, `root-comment`; as `minisign.verify` for a wrong signature by
            a key of the list.
    """
    signers = {
        key.raw
        for signature in signatures
        for key in keys
        if key.key_id == signature.key_id and _is_signed(data, signature, key, name)
    }
    if len(signers) < threshold:
        raise VerificationError(
            "root-threshold",
            f"trust root {name} is not signed by enough root keys",
            why=f"{len(signers)} of {threshold} needed, from {', '.join(key.name for key in keys)}",
            hint="each root needs the signatures of its own root keys and of the root before it",
        )


def split_signatures(data: bytes, name: str) -> list[Signature]:
    """Return the blocks of a root's signature file.

    Raises:
        VerificationError: `signature-malformed`, `signature-legacy`.
    """
    if len(data) > MAX_SIGNERS * minisign.MAX_SIGNATURE_BYTES:
        raise _too_much(name)
    lines = data.splitlines(keepends=True) if b"\r" not in data else [data]
    blocks = [
        b"".join(lines[at : at + _LINES_PER_SIGNATURE]) for at in range(0, len(lines), _LINES_PER_SIGNATURE)
    ]
    if len(blocks) > MAX_SIGNERS:
        raise _too_much(name)
    return [Signature.parse(block, f"of {name}") for block in blocks]


def _is_signed(data: bytes, signature: Signature, key: PublicKey, name: str) -> bool:
    signed = minisign.verify(minisign.prehash(data), signature, key, what=name)
    if Comment.parse(signed.trusted_comment, name).file != name:
        raise VerificationError(
            "root-comment",
            f"trust root {name} was signed under another name",
            why=f"key {key.name} has signed `{signed.trusted_comment}`",
            hint=f"the comment must say file={name}: sign it again",
        )
    return True


def _trusted(document: RootDocument, origin: str) -> TrustedRoot:
    keys = tuple(
        AcceptedKey(public=key.public, last_sequence=key.last_sequence) for key in document.signing_keys
    )
    return TrustedRoot(
        origin=origin,
        keys=keys,
        product=document.product,
        version=document.version,
        threshold=document.threshold,
        root_keys=document.public_root_keys,
    )


def _too_much(name: str) -> VerificationError:
    return VerificationError(
        "signature-malformed",
        f"cannot read the signatures of {name}",
        why=f"there are more than {MAX_SIGNERS}, or they are too long",
        hint="get them from the publisher again",
    )
