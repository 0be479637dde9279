"""minisign files: public keys and prehashed signatures, read strictly and verified.

Owns the two formats and the Ed25519 check; knows nothing of which keys are trusted or what a comment means
(`opencoti.trust`, `opencoti.policy`), and cannot sign (`release`). Pure apart from `prehash_stream`.

    public key   base64("Ed" key-id[8] key[32])
    signature    base64("ED" key-id[8] ed25519(BLAKE2b-512(file))[64])
                 base64(ed25519(the 64 bytes above + trusted comment)[64])

Stricter than minisign: base64 in its one canonical form, no bytes behind the last line, no control characters
in comments, and the legacy form without prehashing ("Ed") is refused. The untrusted comment is covered by no
signature, so nothing here hands it on.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import IO, NoReturn, TypeAlias

from opencoti.errors import ConfigError, VerificationError

SIGNATURE_SUFFIX = ".minisig"
MAX_SIGNATURE_BYTES = 10 << 10
KEY_ID_BYTES = 8
DEVELOPMENT_PREFIX = b"DEV"  # first bytes of the id of a one-time key; a trust root may not hold such a key

_MAX_KEY_FILE_BYTES = 2 << 10
_MAX_COMMENT_CHARS = 8192
_READ_SIZE_BYTES = 1 << 20
_KEY_ALGORITHM = b"Ed"
_PREHASHED = b"ED"
Refuse: TypeAlias = Callable[[str], NoReturn]  # raises the caller's error, with this reason

_UNTRUSTED = "untrusted comment: "
_TRUSTED = "trusted comment: "

# The field and curve constant of Ed25519 (RFC 8032, section 5.1).
_P = 2**255 - 19
_D = -121665 * pow(121666, -1, _P) % _P


@dataclass(frozen=True, kw_only=True)
class PublicKey:
    """An Ed25519 public key with its minisign id. Holding one says nothing about trust."""

    key_id: bytes
    raw: bytes

    @classmethod
    def parse(cls, data: bytes, origin: str) -> PublicKey:
        """Read a public key file, or the one line of base64 in it.

        Raises:
            ConfigError: `public-key-malformed`; also for an empty or zero slot and for a weak key, with
                which anybody could sign.
        """
        raw = decode_line(_key_line(data, origin), 42, lambda why: _bad_key(origin, why))
        key_id, key = raw[2 : 2 + KEY_ID_BYTES], raw[2 + KEY_ID_BYTES :]
        if raw[:2] != _KEY_ALGORITHM:
            _bad_key(origin, "it is not an Ed25519 key")
        if not any(key_id) or is_weak_point(key):
            _bad_key(origin, "it is an empty slot, or a weak key with which anybody could sign")
        return cls(key_id=key_id, raw=key)

    @property
    def text(self) -> str:
        """The key as minisign writes it: one line of base64."""
        return base64.b64encode(_KEY_ALGORITHM + self.key_id + self.raw).decode("ascii")

    @property
    def name(self) -> str:
        """The key id as minisign prints it: 16 hex digits."""
        return key_name(self.key_id)

    @property
    def is_development(self) -> bool:
        """Whether this is a one-time key of a development build."""
        return self.key_id.startswith(DEVELOPMENT_PREFIX)

    def render(self) -> bytes:
        """Return the content of a public key file."""
        return f"{_UNTRUSTED}minisign public key {self.name}\n{self.text}\n".encode("ascii")


@dataclass(frozen=True, kw_only=True)
class Signature:
    """A parsed signature file. Nothing in it is verified."""

    key_id: bytes
    signature: bytes
    trusted_comment: str
    global_signature: bytes

    @classmethod
    def parse(cls, data: bytes, origin: str) -> Signature:
        """Read a signature file.

        Raises:
            VerificationError: `signature-malformed`, `signature-legacy`.
        """
        if len(data) > MAX_SIGNATURE_BYTES:
            _bad_signature(origin, f"it has {len(data)} bytes, more than the {MAX_SIGNATURE_BYTES} allowed")
        lines = _text(data, lambda why: _bad_signature(origin, why)).split("\n")
        if len(lines) != 5 or lines[4]:
            _bad_signature(origin, "it does not consist of four lines")
        first, head, comment, tail = lines[:4]
        if not first.startswith(_UNTRUSTED) or not comment.startswith(_TRUSTED):
            _bad_signature(origin, "line 1 or 3 is not the comment line that it should be")
        if len(comment) > _MAX_COMMENT_CHARS:
            _bad_signature(origin, "the trusted comment is too long")
        raw = decode_line(head, 74, lambda why: _bad_signature(origin, f"line 2: {why}"))
        _require_prehashed(raw[:2], origin)
        return cls(
            key_id=raw[2 : 2 + KEY_ID_BYTES],
            signature=raw[2 + KEY_ID_BYTES :],
            trusted_comment=comment.removeprefix(_TRUSTED),
            global_signature=decode_line(tail, 64, lambda why: _bad_signature(origin, f"line 4: {why}")),
        )

    @property
    def key_name(self) -> str:
        """The id of the key that is said to have signed, as minisign prints it."""
        return key_name(self.key_id)

    @property
    def signed_comment(self) -> bytes:
        """The bytes that the global signature covers."""
        return self.signature + self.trusted_comment.encode("utf-8")

    def render(self, untrusted_comment: str) -> bytes:
        """Return the content of a signature file."""
        head = base64.b64encode(_PREHASHED + self.key_id + self.signature).decode("ascii")
        tail = base64.b64encode(self.global_signature).decode("ascii")
        return (
            f"{_UNTRUSTED}{untrusted_comment}\n{head}\n{_TRUSTED}{self.trusted_comment}\n{tail}\n"
        ).encode()


@dataclass(frozen=True, kw_only=True)
class SignedBy:
    """Proof that `verify` found both signatures good: who signed, and the comment that was signed along."""

    key: PublicKey
    trusted_comment: str


def prehash(data: bytes) -> bytes:
    """Return the BLAKE2b-512 of `data`, which is what gets signed."""
    return hashlib.blake2b(data).digest()


def prehash_stream(stream: IO[bytes]) -> bytes:
    """Return the BLAKE2b-512 of everything left in `stream`, in constant memory."""
    digest = hashlib.blake2b()
    while block := stream.read(_READ_SIZE_BYTES):
        digest.update(block)
    return digest.digest()


def verify(digest: bytes, signature: Signature, key: PublicKey, *, what: str) -> SignedBy:
    """Check both signatures of a signature file.

    Args:
        digest: the BLAKE2b-512 of the signed file.
        signature: the parsed signature file.
        key: the one key that may have signed.
        what: the signed file, for the message.

    Raises:
        VerificationError: `signature-key-unknown`, `signature-mismatch`, `signature-comment-forged`.
    """
    if signature.key_id != key.key_id:
        raise unknown_key(signature, what, f"the expected key is {key.name}")
    if is_weak_point(key.raw) or not _is_good(key, signature.signature, digest):
        raise VerificationError(
            "signature-mismatch",
            f"the signature of {what} is wrong",
            why=f"key {key.name} did not sign these bytes",
            hint="do not use this file: get it and its signature from the publisher again",
        )
    if not _is_good(key, signature.global_signature, signature.signed_comment):
        raise VerificationError(
            "signature-comment-forged",
            f"the trusted comment in the signature of {what} is wrong",
            why=f"key {key.name} did not sign this comment",
            hint="do not use this file: get it and its signature from the publisher again",
        )
    return SignedBy(key=key, trusted_comment=signature.trusted_comment)


def unknown_key(signature: Signature, what: str, why: str) -> VerificationError:
    """Return the error for a signature by a key that is not among the trusted ones."""
    if signature.key_id.startswith(DEVELOPMENT_PREFIX):
        hint = "this is a development build: name its one-time key if you made it yourself"
    else:
        hint = "update opencoti if the publisher changed keys; otherwise do not use this file"
    return VerificationError(
        "signature-key-unknown",
        f"{what} is signed with key {signature.key_name}, which is not trusted",
        why=why,
        hint=hint,
    )


def key_name(key_id: bytes) -> str:
    """Return a key id as minisign prints it (a little-endian number in hex)."""
    return key_id[::-1].hex().upper()


@lru_cache(maxsize=256)
def is_weak_point(key: bytes) -> bool:
    """Tell whether `key` is no usable Ed25519 key: badly encoded, not on the curve, or of small order.

    Under a key of small order (zero bytes are one) signatures for any message can be made by anybody, and
    Ed25519 libraries accept them. Eight times such a point is the neutral element (0, 1), and doubling can
    be followed on the y coordinate alone.
    """
    if len(key) != 32:
        return True
    y = int.from_bytes(key, "little") & ((1 << 255) - 1)
    if y >= _P or pow(_x_squared(y), (_P - 1) // 2, _P) not in (0, 1):
        return True
    for _ in range(3):
        y = _double(y)
    return y == 1


def decode_line(line: str, size: int, refuse: Refuse) -> bytes:
    """Return `size` bytes from one line of base64, which must be in its canonical form."""
    try:
        raw = base64.b64decode(line, validate=True)
    except (binascii.Error, ValueError):
        refuse("the line is not base64")
    if len(raw) != size or base64.b64encode(raw).decode("ascii") != line:
        refuse(f"the line is not the base64 form of {size} bytes")
    return raw


def key_file_line(data: bytes, refuse: Refuse) -> str:
    """Return the line of base64 in a key file; the line before it must be an untrusted comment."""
    lines = _text(data, refuse).rstrip("\n").split("\n")
    if len(lines) != 2 or not lines[0].startswith(_UNTRUSTED):
        refuse("expected a line of comment and a line of base64")
    return lines[1]


def _key_line(data: bytes, origin: str) -> str:
    if len(data) > _MAX_KEY_FILE_BYTES:
        _bad_key(origin, f"it has more than {_MAX_KEY_FILE_BYTES} bytes")
    if data.startswith(_UNTRUSTED.encode()):
        return key_file_line(data, lambda why: _bad_key(origin, why))
    return _text(data, lambda why: _bad_key(origin, why)).removesuffix("\n")


def _text(data: bytes, refuse: Refuse) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as exc:
        refuse(f"byte {exc.start} is not UTF-8")
    if not all(char.isprintable() or char in "\n\t" for char in text):
        refuse("it holds control characters (also line ends of Windows)")
    return text


def _require_prehashed(algorithm: bytes, origin: str) -> None:
    if algorithm == _KEY_ALGORITHM:
        raise VerificationError(
            "signature-legacy",
            f"{origin} is a signature of the legacy kind",
            why="it is made over the file itself and not over its hash; opencoti never signs that way",
            hint="sign without `minisign -l`",
        )
    if algorithm != _PREHASHED:
        _bad_signature(origin, "line 2 is no prehashed Ed25519 signature")


def _is_good(key: PublicKey, signature: bytes, message: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(key.raw).verify(signature, message)
    except InvalidSignature:
        return False
    return True


def _x_squared(y: int) -> int:
    return (y * y - 1) * pow(_D * y * y + 1, _P - 2, _P) % _P


def _double(y: int) -> int:
    """Return the y coordinate of twice the point, from the addition law of the curve."""
    x2, y2 = _x_squared(y), y * y % _P
    return (x2 + y2) * pow(1 - _D * x2 * y2, _P - 2, _P) % _P


def _bad_key(origin: str, why: str) -> NoReturn:
    raise ConfigError(
        "public-key-malformed",
        f"cannot read public key {origin}",
        why=why,
        hint="a public key is a minisign .pub file or the line in it that starts with RW",
    )


def _bad_signature(origin: str, why: str) -> NoReturn:
    raise VerificationError(
        "signature-malformed",
        f"cannot read signature {origin}",
        why=why,
        hint="get the signature from its publisher again",
    )
