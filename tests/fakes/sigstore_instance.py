"""A Sigstore instance of one's own: certificate authority, certificate log and transparency log in memory.

Imitates what the public instance gives to a workflow of GitHub that attests: a certificate that lives for ten
minutes with the facts about the run in it, a signed statement, and the proof that it stands in a log. The
log has one entry. Everything is made with real keys, so the product checks it like a bundle of the real one.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

from opencoti.trust.attestation import ISSUER, WORKFLOW

_FACTS = "1.3.6.1.4.1.57264.1."
_SCT_LIST = ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
_BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_ROOT = "application/vnd.dev.sigstore.trustedroot+json;version=0.1"
_START = datetime(2026, 1, 1, tzinfo=UTC)
_NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)


@dataclass(kw_only=True)
class Run:
    """The run of a workflow, as its certificate tells it."""

    repository: str
    ref: str = "refs/heads/main"
    workflow: str = WORKFLOW
    issuer: str = ISSUER
    runner: str = "github-hosted"

    @property
    def identity(self) -> str:
        return f"https://github.com/{self.repository}/{self.workflow}@{self.ref}"

    def facts(self) -> dict[str, str]:
        return {
            "8": self.issuer,
            "9": self.identity,
            "11": self.runner,
            "12": f"https://github.com/{self.repository}",
            "14": self.ref,
        }


def statement(names: dict[str, bytes], **changes: Any) -> dict[str, Any]:
    """Return an in-toto statement about files."""
    subjects = [
        {"name": name, "digest": {"sha256": hashlib.sha256(data).hexdigest()}} for name, data in names.items()
    ]
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subjects,
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {"buildDefinition": {}, "runDetails": {}},
        **changes,
    }


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


@dataclass
class Instance:
    """The keys of one instance; `attest` gives bundles, `trusted_root` is what a client must know."""

    ca_key: ec.EllipticCurvePrivateKey = field(default_factory=_new_key)
    ct_key: ec.EllipticCurvePrivateKey = field(default_factory=_new_key)
    log_key: ec.EllipticCurvePrivateKey = field(default_factory=_new_key)

    def __post_init__(self) -> None:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
        self.name = name
        self.ca = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(self.ca_key.public_key())
            .serial_number(1)
            .not_valid_before(_START)
            .not_valid_after(_START + timedelta(days=3650))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(is_ca=True), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self.ca_key.public_key()), critical=False
            )
            .sign(self.ca_key, hashes.SHA256())
        )

    def attest(self, run: Run, document: object, *, kind: str = "application/vnd.in-toto+json") -> bytes:
        """Return the bundle of a statement that a run signed."""
        key = _new_key()
        certificate = self._certificate(run, key)
        payload = json.dumps(document).encode()
        signature = _sign(key, b"DSSEv1 %d %b %d %b" % (len(kind), kind.encode(), len(payload), payload))
        bundle = {
            "mediaType": _BUNDLE,
            "verificationMaterial": {
                "certificate": {"rawBytes": _b64(certificate.public_bytes(Encoding.DER))},
                "tlogEntries": [self._log(payload, signature, certificate)],
                "timestampVerificationData": {"rfc3161Timestamps": []},
            },
            "dsseEnvelope": {
                "payload": _b64(payload),
                "payloadType": kind,
                "signatures": [{"sig": _b64(signature), "keyid": ""}],
            },
        }
        return json.dumps(bundle).encode()

    def trusted_root(self) -> bytes:
        """Return the `trusted_root.json` of this instance."""
        valid = {"start": _START.isoformat().replace("+00:00", "Z")}
        authority = {
            "subject": {"organization": "test", "commonName": "test authority"},
            "uri": "https://ca.invalid",
            "certChain": {"certificates": [{"rawBytes": _b64(self.ca.public_bytes(Encoding.DER))}]},
            "validFor": valid,
        }
        document = {
            "mediaType": _ROOT,
            "tlogs": [_log_instance(self.log_key, valid)],
            "certificateAuthorities": [authority],
            "ctlogs": [_log_instance(self.ct_key, valid)],
            "timestampAuthorities": [],
        }
        return json.dumps(document).encode()

    def _certificate(self, run: Run, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
        """Make the certificate of a run: once for the log to sign, and again with that signature in it."""
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(_NOW - timedelta(minutes=1))
            .not_valid_after(_NOW + timedelta(minutes=9))
            .add_extension(_usage(is_ca=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.ca_key.public_key()), critical=False
            )
            .add_extension(
                x509.SubjectAlternativeName([x509.UniformResourceIdentifier(run.identity)]), critical=True
            )
        )
        for number, text in run.facts().items():
            fact = x509.UnrecognizedExtension(ObjectIdentifier(_FACTS + number), _der(0x0C, text.encode()))
            builder = builder.add_extension(fact, critical=False)
        before = builder.sign(self.ca_key, hashes.SHA256())
        sct = x509.UnrecognizedExtension(_SCT_LIST, _der(0x04, self._sct_list(before.tbs_certificate_bytes)))
        return builder.add_extension(sct, critical=False).sign(self.ca_key, hashes.SHA256())

    def _sct_list(self, certificate: bytes) -> bytes:
        """Return the log's promise about a certificate: RFC 6962 §3.2 and §3.3."""
        when = struct.pack("!Q", int(_NOW.timestamp() * 1000))
        size = len(certificate).to_bytes(3, "big")
        entry = b"\0\0" + when + b"\0\1" + _key_id(self.ca_key) + size + certificate + b"\0\0"
        signature = _sign(self.ct_key, entry)
        sct = (
            b"\0" + _key_id(self.ct_key) + when + b"\0\0\4\3" + struct.pack("!H", len(signature)) + signature
        )
        return struct.pack("!HH", len(sct) + 2, len(sct)) + sct

    def _log(self, payload: bytes, signature: bytes, certificate: x509.Certificate) -> dict[str, Any]:
        """Return the only entry of the log, with the proofs that it is in there."""
        verifier = _b64(certificate.public_bytes(Encoding.PEM))
        hashed = {"algorithm": "sha256", "value": hashlib.sha256(payload).hexdigest()}
        spec = {
            "envelopeHash": hashed,
            "payloadHash": hashed,
            "signatures": [{"signature": _b64(signature), "verifier": verifier}],
        }
        body = _canonical({"apiVersion": "0.0.1", "kind": "dsse", "spec": spec})
        root = hashlib.sha256(b"\0" + body).digest()
        when, key_id = int(_NOW.timestamp()), _key_id(self.log_key)
        promise = {"body": _b64(body), "integratedTime": when, "logID": key_id.hex(), "logIndex": 0}
        note = f"log.invalid - 1\n1\n{_b64(root)}\n"
        signed = _b64(key_id[:4] + _sign(self.log_key, note.encode()))
        return {
            "logIndex": "0",
            "logId": {"keyId": _b64(key_id)},
            "kindVersion": {"kind": "dsse", "version": "0.0.1"},
            "integratedTime": str(when),
            "inclusionPromise": {"signedEntryTimestamp": _b64(_sign(self.log_key, _canonical(promise)))},
            "inclusionProof": {
                "logIndex": "0",
                "rootHash": _b64(root),
                "treeSize": "1",
                "hashes": [],
                "checkpoint": {"envelope": f"{note}\n\u2014 log.invalid {signed}\n"},
            },
            "canonicalizedBody": _b64(body),
        }


def _usage(*, is_ca: bool) -> x509.KeyUsage:
    flags: Iterable[str] = (
        "content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only",
        "decipher_only",
    )  # fmt: skip
    return x509.KeyUsage(
        digital_signature=not is_ca, key_cert_sign=is_ca, crl_sign=is_ca, **dict.fromkeys(flags, False)
    )


def _log_instance(key: ec.EllipticCurvePrivateKey, valid: dict[str, str]) -> dict[str, Any]:
    public = {"rawBytes": _b64(_spki(key)), "keyDetails": "PKIX_ECDSA_P256_SHA_256", "validFor": valid}
    return {
        "baseUrl": "https://log.invalid",
        "hashAlgorithm": "SHA2_256",
        "publicKey": public,
        "logId": {"keyId": _b64(_key_id(key))},
    }


def _spki(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _key_id(key: ec.EllipticCurvePrivateKey) -> bytes:
    return hashlib.sha256(_spki(key)).digest()


def _sign(key: ec.EllipticCurvePrivateKey, data: bytes) -> bytes:
    return key.sign(data, ec.ECDSA(hashes.SHA256()))


def _der(tag: int, data: bytes) -> bytes:
    """Encode one DER value of less than 64 KiB."""
    size = len(data)
    if size < 0x80:
        return bytes([tag, size]) + data
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(length)]) + length + data


def _canonical(document: object) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()
