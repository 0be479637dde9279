"""Secret keys in minisign's format: made, read, written, and used to sign. The only place that holds them.

    secret key   base64("Ed" kdf[2] "B2" salt[32] opslimit[8] memlimit[8] body[104])
    body         key-id[8] seed[32] public-key[32] checksum[32], XORed with scrypt(password) if kdf is "Sc"
    checksum     BLAKE2b-256("Ed" key-id seed public-key)

`kdf` is two zero bytes for a key without a password; minisign then leaves the checksum zero. A secret never
gets into a message, a representation or a command line.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from opencoti.errors import ConfigError, MissingError
from opencoti.minisign import (
    DEVELOPMENT_PREFIX,
    KEY_ID_BYTES,
    PublicKey,
    Signature,
    decode_line,
    key_file_line,
)

_SECRET_BYTES = 158
_BODY_BYTES = 104
_CHECKSUM_BYTES = 32
_MAX_FILE_BYTES = 4 << 10
_HEADER = struct.Struct("<2s2s2s32sQQ")
_NO_KDF, _SCRYPT = b"\0\0", b"Sc"
_SCRYPT_BLOCK = 8
_MIN_OPS = 32768
_UNTRUSTED = b"untrusted comment: "


@dataclass(frozen=True, kw_only=True)
class KdfLimits:
    """How hard a password is to try, in libsodium's units: operations, and bytes of memory."""

    operations: int
    memory_bytes: int

    @property
    def scrypt_cost(self) -> tuple[int, int]:
        """The scrypt parameters N and p (r is 8) that libsodium derives from these limits."""
        operations = max(self.operations, _MIN_OPS)
        if operations < self.memory_bytes // 32:
            return _power_above(operations // (_SCRYPT_BLOCK * 4) // 2), 1
        cost = _power_above(self.memory_bytes // (_SCRYPT_BLOCK * 128) // 2)
        return cost, max(1, operations // 4 // cost // _SCRYPT_BLOCK)


# What minisign uses. They are also the most that is accepted, since a key file chooses its own.
SENSITIVE = KdfLimits(operations=1 << 25, memory_bytes=1 << 30)


@dataclass(frozen=True, kw_only=True)
class SecretKey:
    """A key that can sign. Its representation shows the public half only."""

    public: PublicKey
    seed: bytes = field(repr=False)

    @classmethod
    def generate(cls, *, is_development: bool = False) -> SecretKey:
        """Make a new key; a development key carries the mark that clients refuse."""
        key_id = os.urandom(KEY_ID_BYTES)
        while key_id.startswith(DEVELOPMENT_PREFIX):
            key_id = os.urandom(KEY_ID_BYTES)
        if is_development:
            key_id = DEVELOPMENT_PREFIX + key_id[len(DEVELOPMENT_PREFIX) :]
        seed = os.urandom(32)
        return cls(public=PublicKey(key_id=key_id, raw=_public_of(seed)), seed=seed)

    @classmethod
    def parse(cls, data: bytes, origin: str, password: Callable[[], str]) -> SecretKey:
        """Read a secret key file, or the one line of base64 in it.

        Args:
            data: the content.
            origin: where it came from, for the message.
            password: called only for a key that has one.

        Raises:
            ConfigError: `signing-key-malformed`, `signing-password-wrong`; and what `password` raises.
            MissingError: `not-enough-memory`.
        """
        raw = decode_line(_key_line(data, origin), _SECRET_BYTES, lambda why: _bad_key(origin, why))
        algorithm, kdf, checksum, salt, operations, memory = _HEADER.unpack_from(raw)
        body = raw[_HEADER.size :]
        if (algorithm, checksum) != (b"Ed", b"B2") or kdf not in (_NO_KDF, _SCRYPT):
            _bad_key(origin, "it is of a kind that is not known")
        if kdf == _SCRYPT:
            limits = KdfLimits(operations=operations, memory_bytes=memory)
            body = _xor(body, _stream(password(), salt, _require_sane(limits, origin)))
        return cls._from_body(body, origin, is_encrypted=kdf == _SCRYPT)

    @classmethod
    def _from_body(cls, body: bytes, origin: str, *, is_encrypted: bool) -> SecretKey:
        key_id, seed, raw = body[:8], body[8:40], body[40:72]
        is_right = hmac.compare_digest(body[72:], _checksum(body[:72]))
        if is_encrypted and not is_right:
            raise ConfigError(
                "signing-password-wrong",
                f"cannot open signing key {origin}",
                why="the password is wrong, or the key is damaged",
                hint="set OPENCOTI_SIGNING_PASSWORD to the password of this key",
            )
        if not is_right and any(body[72:]):
            _bad_key(origin, "its checksum is wrong")
        if not hmac.compare_digest(raw, _public_of(seed)):
            _bad_key(origin, "its two halves do not belong together")
        # Parsed once more, so that a secret key meets the same rules as a public one.
        public = PublicKey.parse(PublicKey(key_id=key_id, raw=raw).text.encode(), f"in {origin}")
        return cls(public=public, seed=seed)

    def render(self, password: str | None, limits: KdfLimits = SENSITIVE) -> bytes:
        """Return the content of a secret key file, encrypted unless `password` is None."""
        body = self.public.key_id + self.seed + self.public.raw
        body += _checksum(body)
        if password is None:
            head = _HEADER.pack(b"Ed", _NO_KDF, b"B2", bytes(32), 0, 0)
            comment = "minisign secret key without password"
        else:
            salt = os.urandom(32)
            head = _HEADER.pack(b"Ed", _SCRYPT, b"B2", salt, limits.operations, limits.memory_bytes)
            body = _xor(body, _stream(password, salt, limits))
            comment = "minisign encrypted secret key"
        line = base64.b64encode(head + body).decode("ascii")
        return f"untrusted comment: {comment} {self.public.name}\n{line}\n".encode("ascii")

    def sign_bytes(self, message: bytes) -> bytes:
        """Return the plain Ed25519 signature of a message that says itself what it is (DSSE)."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self.seed).sign(message)

    def sign(self, digest: bytes, trusted_comment: str) -> Signature:
        """Sign a file, given its BLAKE2b-512, together with a comment."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        key = Ed25519PrivateKey.from_private_bytes(self.seed)
        signature = key.sign(digest)
        return Signature(
            key_id=self.public.key_id,
            signature=signature,
            trusted_comment=trusted_comment,
            global_signature=key.sign(signature + trusted_comment.encode("utf-8")),
        )


def _key_line(data: bytes, origin: str) -> str:
    if len(data) > _MAX_FILE_BYTES:
        _bad_key(origin, f"it has more than {_MAX_FILE_BYTES} bytes")
    data = data.rstrip(b"\n")
    if data.startswith(_UNTRUSTED):
        return key_file_line(data, lambda why: _bad_key(origin, why))
    return data.decode("ascii", "replace")


def _require_sane(limits: KdfLimits, origin: str) -> KdfLimits:
    if limits.operations > SENSITIVE.operations or limits.memory_bytes > SENSITIVE.memory_bytes:
        _bad_key(origin, "it asks for more work or memory than minisign ever does")
    return limits


def _stream(password: str, salt: bytes, limits: KdfLimits) -> bytes:
    from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

    cost, parallel = limits.scrypt_cost
    try:
        return Scrypt(salt=salt, length=_BODY_BYTES, n=cost, r=_SCRYPT_BLOCK, p=parallel).derive(
            password.encode("utf-8")
        )
    except MemoryError as exc:
        raise MissingError(
            "not-enough-memory",
            "cannot derive a key from the password",
            why=f"that takes {cost * _SCRYPT_BLOCK * 128 >> 20} MiB of memory",
            hint="use a machine with more free memory",
        ) from exc


def _power_above(bound: int) -> int:
    """Return the smallest power of two, from 2 on, that is greater than `bound`."""
    return 1 << max(1, bound.bit_length())


def _checksum(body: bytes) -> bytes:
    return hashlib.blake2b(b"Ed" + body, digest_size=_CHECKSUM_BYTES).digest()


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


def _public_of(seed: bytes) -> bytes:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()


def _bad_key(origin: str, why: str) -> NoReturn:
    raise ConfigError(
        "signing-key-malformed",
        f"cannot read signing key {origin}",
        why=why,
        hint="make one with `python -m release keygen`, or with `minisign -G`",
    )
