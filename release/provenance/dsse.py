"""DSSE envelopes (secure-systems-lab/dsse, protocol 1.0.2), signed and verified with Ed25519. Pure.

    signed bytes   "DSSEv1" SP len(type) SP type SP len(payload) SP payload

The key also signs minisign files. Neither signature can pass for the other: minisign signs 64 bytes of
BLAKE2b, shorter than any of these messages, or a 64-byte signature with a comment behind it, which would have
to begin with the text above.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Annotated, Final, NoReturn

from pydantic import Field

from opencoti.document import DocumentPart
from opencoti.errors import VerificationError
from opencoti.jsonio import parse_strict
from opencoti.minisign import PublicKey
from opencoti.trust.keys import AcceptedKey, TrustedKeys, require_keys
from release.keys import SecretKey

PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
_MAX_BYTES: Final = 16 << 20


class EnvelopeSignature(DocumentPart):
    """One signature; `keyid` is the minisign id of the key, a hint only."""

    keyid: str = ""
    sig: str


class Envelope(DocumentPart):
    """The envelope, as it is written; both texts are base64."""

    payload_type: str
    payload: str
    signatures: Annotated[tuple[EnvelopeSignature, ...], Field(min_length=1)]


@dataclass(frozen=True, kw_only=True)
class OpenedEnvelope:
    """A payload whose signature is good; whether the key may still sign is another question."""

    payload: bytes
    key: AcceptedKey


def signed_bytes(payload_type: str, payload: bytes) -> bytes:
    """Return what is signed (the pre-authentication encoding)."""
    kind = payload_type.encode("utf-8")
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def sign_envelope(payload: bytes, key: SecretKey) -> bytes:
    """Return one line of JSON, the form of a `.intoto.jsonl` file."""
    signature = key.sign_bytes(signed_bytes(PAYLOAD_TYPE, payload))
    envelope = {
        "payloadType": PAYLOAD_TYPE,
        "payload": base64.b64encode(payload).decode("ascii"),
        "signatures": [{"keyid": key.public.name, "sig": base64.b64encode(signature).decode("ascii")}],
    }
    return (json.dumps(envelope) + "\n").encode("ascii")


def open_envelope(data: bytes, *, keys: TrustedKeys, what: str) -> OpenedEnvelope:
    """Return the payload of an envelope, and the key that signed it, a retired one only if no other did.

    Raises:
        VerificationError: `envelope-malformed`, `envelope-unsigned`, `trust-no-keys`.
        ConfigError: `json-malformed`.
    """
    require_keys(keys)
    lines = data.rstrip(b"\n").split(b"\n")
    if len(lines) != 1:
        _malformed(what, f"it has {len(lines)} lines, expected one envelope")
    envelope = _parse(lines[0], what)
    payload = _decode(envelope.payload, what)
    message = signed_bytes(envelope.payload_type, payload)
    signatures = [_decode(item.sig, what) for item in envelope.signatures]
    for key in sorted(keys.keys, key=lambda key: key.is_retired):
        if any(_is_good(key.public, signature, message) for signature in signatures):
            if envelope.payload_type != PAYLOAD_TYPE:
                _malformed(what, f"its payload is {envelope.payload_type[:60]!r}")
            return OpenedEnvelope(payload=payload, key=key)
    raise VerificationError(
        "envelope-unsigned",
        f"{what} is not signed by a key that counts",
        why=f"{keys.origin} lists {', '.join(key.public.name for key in keys.keys)}",
        hint="do not use it: get it from the publisher again",
    )


def _parse(line: bytes, what: str) -> Envelope:
    document = parse_strict(line, what, max_bytes=_MAX_BYTES)
    try:
        return (
            Envelope.model_validate_json(line)
            if isinstance(document, dict)
            else _malformed(what, "no object")
        )
    except ValueError as exc:
        return _malformed(what, str(exc).splitlines()[0])


def _decode(text: str, what: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as exc:
        _malformed(what, f"not base64 ({exc})")


def _is_good(key: PublicKey, signature: bytes, message: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(key.raw).verify(signature, message)
    except InvalidSignature:
        return False
    return True


def _malformed(what: str, why: str) -> NoReturn:
    raise VerificationError(
        "envelope-malformed",
        f"{what} is no signed statement",
        why=why,
        hint="get it from the publisher again",
    )
