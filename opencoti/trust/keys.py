"""A list of accepted signing keys, and the check of a signature against it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from opencoti import minisign
from opencoti.errors import VerificationError
from opencoti.minisign import PublicKey, Signature, SignedBy


@dataclass(frozen=True, kw_only=True)
class AcceptedKey:
    """A signing key, and up to which sequence its signatures count (None: in use, 0: never)."""

    public: PublicKey
    last_sequence: int | None = None

    @property
    def is_retired(self) -> bool:
        """Whether nothing new may be signed with it."""
        return self.last_sequence is not None

    def accepts(self, sequence: int) -> bool:
        """Tell whether a release of this sequence may be signed with this key."""
        return self.last_sequence is None or sequence <= self.last_sequence


@dataclass(frozen=True, kw_only=True)
class TrustedKeys:
    """Keys whose signatures count; `origin` says where the list came from. Empty: nothing verifies."""

    origin: str
    keys: tuple[AcceptedKey, ...]

    def find(self, key_id: bytes) -> AcceptedKey | None:
        """Return the key of this id."""
        return next((key for key in self.keys if key.public.key_id == key_id), None)

    def key_of(self, public: PublicKey) -> AcceptedKey | None:
        """Return the entry of this very key, not of another one with its id."""
        return next((key for key in self.keys if key.public == public), None)


@dataclass(frozen=True, kw_only=True)
class SignedBytes:
    """Bytes that an accepted key has signed: verified. The comment signed along is not parsed yet."""

    data: bytes
    key: AcceptedKey
    trusted_comment: str


def only_key(public: PublicKey, *, allow_development: bool = False) -> TrustedKeys:
    """Return a list of one key that the user named.

    Raises:
        VerificationError: `development-key`, it is a one-time key and those were not allowed.
    """
    if public.is_development and not allow_development:
        raise VerificationError(
            "development-key",
            f"key {public.name} is a one-time key of a development build",
            why="anybody can make one",
            hint="allow it only for files that you built and signed yourself",
        )
    return TrustedKeys(origin="the key that you named", keys=(AcceptedKey(public=public),))


def open_signed(data: bytes, signature: bytes, *, keys: TrustedKeys, what: str) -> SignedBytes:
    """Verify a signature over exact bytes.

    Args:
        data: the file as it was received.
        signature: the content of its `.minisig` file.
        keys: who may sign.
        what: the file, for messages.

    Raises:
        VerificationError: `trust-no-keys`, `signature-malformed`, `signature-legacy`,
            `signature-key-unknown`, `signature-mismatch`, `signature-comment-forged`.
    """
    signed = check_digest(minisign.prehash(data), signature, keys=keys, what=what)
    key = keys.key_of(signed.key)
    assert key is not None
    return SignedBytes(data=data, key=key, trusted_comment=signed.trusted_comment)


def check_digest(digest: bytes, signature: bytes, *, keys: TrustedKeys, what: str) -> SignedBy:
    """Verify a signature over a file of any size, given its BLAKE2b-512. Raises like `open_signed`."""
    require_keys(keys)
    parsed = Signature.parse(signature, f"of {what}")
    key = keys.find(parsed.key_id)
    if key is None:
        names = ", ".join(key.public.name for key in keys.keys)
        raise minisign.unknown_key(parsed, what, f"{keys.origin} lists {names}")
    return minisign.verify(digest, parsed, key.public, what=what)


def require_keys(keys: TrustedKeys) -> None:
    """Refuse to verify anything against an empty list.

    Raises:
        VerificationError: `trust-no-keys`.
    """
    if not keys.keys:
        raise VerificationError(
            "trust-no-keys",
            "nothing can be verified",
            why=f"{keys.origin} lists no signing key",
            hint="before the first release: use a pin with its own SHA-256, or build from source; "
            "maintainers make the first root with `python -m release root new`",
        )
