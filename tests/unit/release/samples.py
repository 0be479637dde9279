"""Keys, roots and signed documents for tests. Keys are made new in each run; nothing here is a secret."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from opencoti.errors import OpencotiError
from opencoti.hashing import sha256_bytes
from opencoti.jsonio import render_json
from opencoti.minisign import prehash
from opencoti.trust.chain import RootLink, TrustedRoot, anchor
from opencoti.trust.comment import Comment
from opencoti.trust.document import root_name
from release.keys import KdfLimits, SecretKey

MANIFEST = (Path(__file__).resolve().parents[1] / "package/golden.MANIFEST.json").read_bytes()
ARTIFACT = json.loads(MANIFEST)["name"]
MANIFEST_NAME = f"{ARTIFACT}.MANIFEST.json"
VERSION = json.loads(MANIFEST)["versionString"]
REPO = "mann1x/opencoti"
TAG = "c1"
NOW = datetime(2026, 6, 1, tzinfo=UTC)
EXPIRES = "2026-09-01T00:00:00Z"
WEAK_KDF = KdfLimits(operations=1 << 15, memory_bytes=1 << 20)  # the least libsodium has; keeps tests quick

Result = TypeVar("Result")


def index_dict(**changes: Any) -> dict[str, Any]:
    """Return a valid release index of the golden manifest, as JSON data."""
    manifest = json.loads(MANIFEST)
    document: dict[str, Any] = {
        "schema": "opencoti.release/1",
        "product": "opencoti",
        "repo": REPO,
        "tag": TAG,
        "versionString": VERSION,
        "lane": "elf",
        "sequence": 5,
        "created": "2026-05-01T00:00:00Z",
        "expires": EXPIRES,
        "planSha256": "a" * 64,
        "artifacts": [
            {
                "name": ARTIFACT,
                "size": manifest["size"],
                "sha256": manifest["sha256"],
                "manifest": {"name": MANIFEST_NAME, "sha256": sha256_bytes(MANIFEST)},
                "flavor": None,
                "parts": [],
                "requires": {
                    "os": "linux",
                    "arch": "x86_64",
                    "glibc": "2.28",
                    "backends": [{"backend": "cpu", "archs": [], "minDriver": None}],
                },
            }
        ],
        "evidence": [
            {
                "name": "smoke-cpu.json",
                "sha256": "b" * 64,
                "kind": "smoke",
                "backend": "cpu",
                "artifactSha256": manifest["sha256"],
            }
        ],
        "waivers": [{"name": "bench-cpu", "reason": "no idle device"}],
    }
    return copy.deepcopy(document) | changes


def index_bytes(**changes: Any) -> bytes:
    return render_json(index_dict(**changes))


def comment_of(document: dict[str, Any], **changes: str) -> str:
    """Return the trusted comment that belongs to an index, as text, with pairs changed (None removes)."""
    pairs = {
        "product": document["product"],
        "repo": document["repo"],
        "tag": document["tag"],
        "version": document["versionString"],
        "file": "opencoti-release.json",
        "sequence": str(document["sequence"]),
        "expires": document["expires"],
    } | changes
    return " ".join(f"{key}={value}" for key, value in pairs.items() if value is not None)


MANIFEST_COMMENT = f"product=opencoti repo={REPO} tag={TAG} version={VERSION} file={MANIFEST_NAME}"


def sign(data: bytes, key: SecretKey, comment: str) -> bytes:
    return key.sign(prehash(data), comment).render("test signature")


def signed_index(key: SecretKey, **changes: Any) -> tuple[bytes, bytes]:
    """Return an index and its signature."""
    document = index_dict(**changes)
    data = render_json(document)
    return data, sign(data, key, comment_of(document))


def root_bytes(
    version: int, roots: list[SecretKey], signers: list[tuple[SecretKey, int | None]], threshold: int = 1
) -> bytes:
    return render_json(
        {
            "schema": "opencoti.root/1",
            "product": "opencoti",
            "version": version,
            "threshold": threshold,
            "rootKeys": [key.public.text for key in roots],
            "signingKeys": [{"key": key.public.text, "lastSequence": last} for key, last in signers],
        }
    )


def link(data: bytes, signers: list[SecretKey], name: str | None = None) -> RootLink:
    """Return a root with the signatures of some keys; `name` stands in their comments."""
    comment = Comment(product="opencoti", file=name or root_name(json.loads(data)["version"])).render()
    return RootLink(data=data, signatures=b"".join(sign(data, key, comment) for key in signers))


def trusted_root(*signers: SecretKey | tuple[SecretKey, int | None]) -> TrustedRoot:
    """Return a trusted root that lists these signing keys."""
    pairs = [item if isinstance(item, tuple) else (item, None) for item in signers]
    return anchor(root_bytes(1, [SecretKey.generate()], pairs), "the test root")


def result_or_known_error(act: Callable[[], Result], *known: str) -> Result | None:
    """Return the result of `act`, or None if it raised an expected error with one of these ids."""
    try:
        return act()
    except OpencotiError as error:
        if error.error_id not in known:
            raise
    return None
