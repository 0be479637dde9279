"""Writing and checking the provenance of a staged release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from opencoti.errors import VerificationError, storage_error
from opencoti.files import write_atomic
from opencoti.hashing import sha256_file
from opencoti.index import ReleaseIndex
from opencoti.manifest import Manifest, load_manifest
from opencoti.minisign import SIGNATURE_SUFFIX, PublicKey
from opencoti.trust.checks import require_active
from opencoti.trust.keys import TrustedKeys
from release.keys import SecretKey
from release.planning.model import PLAN_NAME, Plan, load_plan
from release.planning.names import PROVENANCE_SUFFIX, provenance_name
from release.provenance.dsse import open_envelope, sign_envelope
from release.provenance.statement import Builder, make_statement, read_subjects
from release.staging.folder import asset_names, read_index
from release.sums import SUMS_NAME

_NOT_SUBJECTS = (SIGNATURE_SUFFIX, PROVENANCE_SUFFIX, ".sigstore.json", ".sigstore.jsonl")


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """A provenance file, and how many files it speaks of."""

    path: Path
    subject_count: int


def write_provenance(
    folder: Path, *, key: SecretKey, keys: TrustedKeys, environ: Mapping[str, str]
) -> Provenance:
    """Write `<tag>.intoto.jsonl` of a staged release, signed.

    Args:
        folder: the staged release.
        key: the signing key.
        keys: the list that clients have; the result is checked against it.
        environ: what the CI service says.

    Raises:
        ConfigError: `not-staged`; a document of the release is malformed.
        VerificationError: `plan-differs`; `signing-key-retired`, `envelope-unsigned`: clients would refuse.
        StorageError: a file cannot be read or written.
    """
    index = read_index(folder)
    plan = _read_plan(folder, index)
    subjects = _subjects(folder, index)
    payload = make_statement(
        index,
        plan,
        [read_manifest(folder, item.manifest.name) for item in index.artifacts],
        subjects=subjects,
        builder=Builder.from_environ(environ, index.repo),
    )
    path = folder / provenance_name(index.tag)
    data = sign_envelope(payload, key)
    _open(data, index, keys, path.name)
    write_atomic(path, data)
    return Provenance(path=path, subject_count=len(subjects))


def verify_provenance(folder: Path, *, keys: TrustedKeys) -> Provenance:
    """Check the provenance of a folder: signature, and every file against it, none missing.

    Raises:
        ConfigError: `not-staged`, `json-malformed`.
        VerificationError: `provenance-differs`, `envelope-malformed`, `envelope-unsigned`,
            `statement-malformed`, `signing-key-retired`, `trust-no-keys`.
        StorageError: a file cannot be read.
    """
    index = read_index(folder)
    path = folder / provenance_name(index.tag)
    try:
        data = path.read_bytes()
    except OSError as exc:
        raise storage_error(exc, f"cannot read {path}") from exc
    said = read_subjects(_open(data, index, keys, path.name), path.name)
    found = _subjects(folder, index)
    for name in sorted(said.keys() | found.keys()):
        if said.get(name) != found.get(name):
            how = "missing" if name not in found else "changed" if name in said else "not in it"
            raise VerificationError(
                "provenance-differs",
                f"{folder} differs from its provenance",
                why=f"{name} is {how}",
                hint="do not use these files: make or get them again",
            )
    return Provenance(path=path, subject_count=len(said))


def read_manifest(folder: Path, name: str) -> Manifest:
    """Return a manifest of a staged release. Raises `ConfigError`, `StorageError`."""
    path = folder / name
    try:
        return load_manifest(path.read_bytes(), str(path))
    except OSError as exc:
        raise storage_error(exc, f"cannot read {path}") from exc


def public_key_pem(key: PublicKey) -> str:
    """Return a minisign public key in the form that openssl and cosign read."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public = Ed25519PublicKey.from_public_bytes(key.raw)
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode("ascii")


def _open(data: bytes, index: ReleaseIndex, keys: TrustedKeys, what: str) -> bytes:
    """Open an envelope with the keys that may sign for this release."""
    opened = open_envelope(data, keys=keys, what=what)
    require_active(opened.key, sequence=index.sequence, what=what)
    return opened.payload


def _read_plan(folder: Path, index: ReleaseIndex) -> Plan:
    path = folder / PLAN_NAME
    try:
        data = path.read_bytes()
    except OSError as exc:
        raise storage_error(exc, f"cannot read {path}") from exc
    plan = load_plan(data, str(path))
    if plan.sha256 != index.plan_sha256:
        raise VerificationError(
            "plan-differs",
            f"{path} is not the plan of this release",
            why=f"the index says sha256 {index.plan_sha256}, this is {plan.sha256}",
            hint="stage the release again",
        )
    return plan


def _subjects(folder: Path, index: ReleaseIndex) -> dict[str, str]:
    """Return every file that is no signature of others, and artifacts that lie there in parts."""
    names = [name for name in asset_names(folder) if name != SUMS_NAME and not name.endswith(_NOT_SUBJECTS)]
    try:
        found = {name: sha256_file(folder / name) for name in names}
    except OSError as exc:
        raise storage_error(exc, f"cannot read {folder}") from exc
    return found | {item.name: item.sha256 for item in index.artifacts if item.parts}
