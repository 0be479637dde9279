"""A small published release as plain files by their path. Imitates what the publisher uploads.

Manifests, chunk tables, index and signatures are real ones, made by the product's own code; only the
artifacts are made up.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from opencoti.chunks import ChunkTable, render_table
from opencoti.hashing import sha256_bytes
from opencoti.jsonio import render_json
from opencoti.trust.chain import TrustedRoot, anchor
from release.keys import SecretKey
from tests.integration.fetch.bench import table_of
from tests.unit.release.samples import (
    MANIFEST,
    REPO,
    TAG,
    VERSION,
    comment_of,
    index_dict,
    link,
    root_bytes,
    sign,
)

CHUNK = 4096


def manifest_of(name: str, content: bytes, table: ChunkTable | None = None) -> bytes:
    """Return a valid manifest of made-up bytes."""
    table = table or table_of(content, CHUNK)
    document = json.loads(MANIFEST) | {
        "name": name,
        "sha256": sha256_bytes(content),
        "size": len(content),
        "lane": "ape",
        "loader": None,
        "hostBinary": None,
        "dsos": [],
        "members": [{"name": "a", "offset": 0, "size": 1, "sha256": "0" * 64, "mode": "0644"}],
        "chunks": {
            "file": f"{name}.chunks",
            "sha256": sha256_bytes(render_table(table)),
            "chunkSize": table.chunk_size,
            "count": table.count,
        },
    }
    return render_json(document)


def sidecars(name: str, content: bytes, chunk_size: int = CHUNK) -> dict[str, bytes]:
    """Return the manifest and the chunk table that lie beside an artifact, by name."""
    table = table_of(content, chunk_size)
    return {f"{name}.MANIFEST.json": manifest_of(name, content, table), f"{name}.chunks": render_table(table)}


def artifact_entry(name: str, content: bytes, **requires: Any) -> dict[str, Any]:
    """Return the entry of an artifact in the index."""
    return {
        "name": name,
        "size": len(content),
        "sha256": sha256_bytes(content),
        "manifest": {"name": f"{name}.MANIFEST.json", "sha256": sha256_bytes(manifest_of(name, content))},
        "flavor": requires.pop("flavor", None),
        "parts": [],
        "requires": {"os": "any", "arch": "any", "backends": [], **requires},
    }


@dataclass
class Publisher:
    """Signs releases; `roots` holds the documents that are published beside them."""

    key: SecretKey = field(default_factory=SecretKey.generate)
    root_key: SecretKey = field(default_factory=SecretKey.generate)
    roots: dict[str, bytes] = field(default_factory=dict)

    def root_document(self, version: int = 1) -> bytes:
        """Return a root that lists the signing key."""
        return root_bytes(version, [self.root_key], [(self.key, None)])

    def root(self) -> TrustedRoot:
        """Return version 1 as what a client starts from."""
        return anchor(self.root_document(), "the test root")

    def change_key(self, key: SecretKey, *, last_sequence: int) -> None:
        """Publish root 2, which retires the key and lists a new one; sign with that from now on."""
        document = root_bytes(2, [self.root_key], [(self.key, last_sequence), (key, None)])
        signed = link(document, [self.root_key])
        self.roots = {"root-2.json": signed.data, "root-2.json.minisig": signed.signatures}
        self.key = key

    def publish(
        self,
        artifacts: dict[str, bytes],
        entries: list[dict[str, Any]] | None = None,
        *,
        tag: str = TAG,
        **changes: Any,
    ) -> dict[str, bytes]:
        """Return all files of a release by path, under its tag and under `latest`."""
        entries = entries or [artifact_entry(name, content) for name, content in artifacts.items()]
        document = index_dict(artifacts=entries, evidence=[], tag=tag, **changes)
        index = render_json(document)
        files = {
            **self.roots,
            **artifacts,
            "opencoti-release.json": index,
            "opencoti-release.json.minisig": sign(index, self.key, comment_of(document)),
        }
        for name, content in artifacts.items():
            files |= sidecars(name, content)
            manifest = f"{name}.MANIFEST.json"
            comment = f"product=opencoti repo={REPO} tag={tag} version={VERSION} file={manifest}"
            files[f"{manifest}.minisig"] = sign(files[manifest], self.key, comment)
        base = f"/{REPO}/releases"
        return {f"{base}/download/{tag}/{name}": data for name, data in files.items()} | {
            f"{base}/latest/download/{name}": data for name, data in files.items()
        }
