"""Making trust roots: a folder of `root-N.json` with their signatures, the newest of which ships.

A root without signatures is a draft and may still change; one that the walk accepts is final, and the next
change makes a draft of version N+1. In between (some signatures, not enough) it may only be signed further.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from opencoti.errors import ConfigError, UsageError, VerificationError, storage_error
from opencoti.files import write_atomic
from opencoti.jsonio import render_json
from opencoti.minisign import SIGNATURE_SUFFIX, PublicKey, Signature, prehash, verify
from opencoti.trust.chain import RootLink, TrustedRoot, anchor, require_threshold, split_signatures, walk
from opencoti.trust.comment import Comment
from opencoti.trust.document import MAX_ROOT_BYTES, RootDocument, SigningKey, dump_root, load_root, root_name
from release.keys import SecretKey

_FIRST = 1


@dataclass(frozen=True, kw_only=True)
class RootFile:
    """One root in a folder. `signatures` is empty for a draft."""

    path: Path
    data: bytes
    signatures: bytes

    @property
    def document(self) -> RootDocument:
        """What it says. Raises `ConfigError`."""
        return load_root(self.data, str(self.path))

    @property
    def signature_path(self) -> Path:
        """Where its signatures are."""
        return self.path.with_name(self.path.name + SIGNATURE_SUFFIX)


def new_root(
    folder: Path, *, product: str, threshold: int, root_keys: list[PublicKey], signing_keys: list[PublicKey]
) -> Path:
    """Write the draft of the first root.

    Raises:
        UsageError: `root-exists`.
        ConfigError: `root-malformed`, the keys make no valid root.
        StorageError: the folder cannot be written.
    """
    path = folder / root_name(_FIRST)
    if path.exists():
        raise UsageError(
            "root-exists", f"{path} exists", hint="change it with `root add-key` or `root retire`"
        )
    fields = {
        "schema": "opencoti.root/1",
        "product": product,
        "version": _FIRST,
        "threshold": threshold,
        "rootKeys": [key.text for key in root_keys],
        "signingKeys": [{"key": key.text, "lastSequence": None} for key in signing_keys],
    }
    return _write(path, fields)


def change_root(folder: Path, edit: Callable[[RootDocument], dict[str, Any]]) -> Path:
    """Apply a change to the draft, or to a new draft behind the newest final root; return its path.

    Args:
        folder: the roots.
        edit: returns the fields that change, by their name in JSON.

    Raises:
        ConfigError: `root-missing`, `root-malformed`, `root-half-signed`, and what `edit` raises.
        VerificationError: the roots in the folder do not follow from each other.
        StorageError: the folder cannot be read or written.
    """
    roots = read_roots(folder)
    if not roots:
        raise ConfigError(
            "root-missing", f"{folder} has no root", hint="make one with `python -m release root new`"
        )
    newest = roots[-1]
    if newest.signatures:
        _require_final(folder, newest)
        base, version = newest.document, newest.document.version + 1
    else:
        base, version = newest.document, newest.document.version
    fields = base.model_dump(mode="json", by_alias=True) | {"version": version}
    return _write(folder / root_name(version), fields | edit(base))


def add_keys(
    root: RootDocument, *, root_keys: list[PublicKey], signing_keys: list[PublicKey]
) -> dict[str, Any]:
    """Return the change that adds keys."""
    return {
        "rootKeys": [*root.root_keys, *(key.text for key in root_keys)],
        "signingKeys": [
            *_signing_dicts(root),
            *({"key": key.text, "lastSequence": None} for key in signing_keys),
        ],
    }


def retire_key(root: RootDocument, name: str, last_sequence: int | None) -> dict[str, Any]:
    """Return the change that ends a key: a signing key gets its last sequence, a root key goes.

    Args:
        root: the root to change.
        name: the key id as minisign prints it (16 hex digits).
        last_sequence: the last release that counts; 0 for a stolen key. None for a root key.

    Raises:
        UsageError: `root-key-unknown`, `root-retire`.
    """
    for key in root.signing_keys:
        if key.public.name == name.upper():
            return {"signingKeys": _retired(root, key, last_sequence)}
    for public in root.public_root_keys:
        if public.name == name.upper():
            if last_sequence is not None:
                raise UsageError("root-retire", f"{name} is a root key", why="it signs no releases",
                                 hint="leave out --last-sequence")  # fmt: skip
            return {"rootKeys": [text for text in root.root_keys if text != public.text]}
    known = [key.public.name for key in root.signing_keys] + [key.name for key in root.public_root_keys]
    raise UsageError("root-key-unknown", f"no key {name} in the root", why=f"it has {', '.join(known)}")


def sign_root(folder: Path, *, key: SecretKey | None = None, made: bytes | None = None) -> Path:
    """Add a signature to the newest root; return the path of its signature file.

    Args:
        folder: the roots.
        key: a root key; signs here.
        made: instead, a signature file made elsewhere, such as by minisign on a machine without network.

    Raises:
        ConfigError: `root-missing`; VerificationError: `root-signer`, or the signature is wrong.
        StorageError: the folder cannot be read or written.
    """
    roots = read_roots(folder)
    if not roots:
        raise ConfigError(
            "root-missing", f"{folder} has no root", hint="make one with `python -m release root new`"
        )
    root = roots[-1]
    block = _sign(root, key) if key is not None else made or b""
    signature = Signature.parse(block, "that was given")
    signer = _require_signer(signature, _signers(roots))
    signed = verify(prehash(root.data), signature, signer, what=root.path.name)
    if Comment.parse(signed.trusted_comment, root.path.name).file != root.path.name:
        _refuse_signer(signature, "the comment of the signature names another file")
    others = [s for s in split_signatures(root.signatures, root.path.name) if s.key_id != signature.key_id]
    blocks = [_render(item) for item in [*others, signature]]
    write_atomic(root.signature_path, b"".join(blocks))
    return root.signature_path


def check_roots(folder: Path) -> TrustedRoot | None:
    """Walk all roots of a folder from the first one, which must have signed itself; return the newest.

    Returns:
        None where there is no root yet.

    Raises:
        VerificationError, ConfigError: a root is malformed, not signed by enough keys, or missing.
        StorageError: the folder cannot be read.
    """
    roots = read_roots(folder)
    if not roots:
        return None
    first, rest = roots[0], roots[1:]
    trusted = anchor(first.data, str(first.path))
    require_threshold(
        first.data,
        split_signatures(first.signatures, first.path.name),
        keys=trusted.root_keys,
        threshold=trusted.threshold,
        name=first.path.name,
    )
    return walk(trusted, [RootLink(data=root.data, signatures=root.signatures) for root in rest])


def read_roots(folder: Path) -> list[RootFile]:
    """Return the roots of a folder from version 1 on, up to the first gap. Raises `StorageError`."""
    roots: list[RootFile] = []
    try:
        while (path := folder / root_name(_FIRST + len(roots))).exists():
            beside = path.with_name(path.name + SIGNATURE_SUFFIX)
            signatures = beside.read_bytes() if beside.exists() else b""
            with open(path, "rb") as file:
                roots.append(RootFile(path=path, data=file.read(MAX_ROOT_BYTES + 1), signatures=signatures))
    except OSError as exc:
        raise storage_error(exc, f"cannot read {folder}") from exc
    return roots


def _write(path: Path, fields: dict[str, Any]) -> Path:
    draft = load_root(render_json(fields), str(path))
    write_atomic(path, dump_root(draft))
    return path


def _signing_dicts(root: RootDocument) -> list[dict[str, Any]]:
    return [key.model_dump(mode="json", by_alias=True) for key in root.signing_keys]


def _retired(root: RootDocument, key: SigningKey, last_sequence: int | None) -> list[dict[str, Any]]:
    if last_sequence is None or last_sequence < 0:
        raise UsageError(
            "root-retire",
            f"{key.public.name} is a signing key",
            why="it is retired as of a release",
            hint="name the last one that counts with --last-sequence N (0 if the key was stolen)",
        )
    if key.last_sequence is not None and last_sequence > key.last_sequence:
        raise UsageError(
            "root-retire",
            f"{key.public.name} is retired already, up to sequence {key.last_sequence}",
            why="a retired key does not come back",
            hint="sign with another key",
        )
    return [
        entry | ({"lastSequence": last_sequence} if entry["key"] == key.key else {})
        for entry in _signing_dicts(root)
    ]


def _require_final(folder: Path, newest: RootFile) -> None:
    try:
        check_roots(folder)
    except VerificationError as exc:
        if exc.error_id != "root-threshold":
            raise
        raise ConfigError(
            "root-half-signed",
            f"{newest.path} has some signatures, but not enough",
            why=exc.why,
            hint=f"sign it further, or remove {newest.signature_path} to change it",
        ) from exc


def _sign(root: RootFile, key: SecretKey) -> bytes:
    comment = Comment(product=root.document.product, file=root.path.name)
    return _render(key.sign(prehash(root.data), comment.render()))


def _render(signature: Signature) -> bytes:
    return signature.render(f"signature by opencoti root key {signature.key_name}")


def _signers(roots: list[RootFile]) -> list[PublicKey]:
    return [key for root in roots[-2:] for key in root.document.public_root_keys]


def _require_signer(signature: Signature, keys: list[PublicKey]) -> PublicKey:
    for key in keys:
        if key.key_id == signature.key_id:
            return key
    return _refuse_signer(
        signature, f"root keys of this and the last root: {', '.join(k.name for k in keys)}"
    )


def _refuse_signer(signature: Signature, why: str) -> NoReturn:
    raise VerificationError(
        "root-signer",
        f"key {signature.key_name} cannot sign this root",
        why=why,
        hint="sign with one of the root keys",
    )
