"""A store in Ollama's layout, as `ollama pull` leaves it: manifests by registry and tag, blobs by digest.

The layers are genuine (right sizes, right digests, a config blob beside them); what is wrong with a store is
made by the test that wants it wrong.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci.smoke.gguf_file import Tensor, Value, write_gguf

PREFIX = "application/vnd.ollama.image."


def tiny_gguf(architecture: str = "llama", *, tensors: int = 1, **own: int) -> bytes:
    """A small file with a good header; no engine could compute with it."""
    shape = {
        "block_count": 2,
        "context_length": 4096,
        "embedding_length": 64,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        **own,
    }
    metadata = {
        "general.architecture": Value.string(architecture),
        **{f"{architecture}.{name}": Value.uint32(value) for name, value in shape.items()},
    }
    weights = [Tensor(name=f"w{at}", shape=(4,), kind=0, data=bytes(16)) for at in range(tensors)]
    buffer = io.BytesIO()
    write_gguf(buffer, metadata, weights)
    return buffer.getvalue()


@dataclass(frozen=True)
class FakeStore:
    """A folder that is a store."""

    root: Path

    def blob(self, data: bytes) -> str:
        """Put a blob; return its digest."""
        digest = hashlib.sha256(data).hexdigest()
        path = self.path_of(digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return digest

    def link(self, file: Path) -> str:
        """Put a blob that is a symbolic link to a file; return its digest."""
        with open(file, "rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        self.path_of(digest).parent.mkdir(parents=True, exist_ok=True)
        self.path_of(digest).symlink_to(file)
        return digest

    def path_of(self, digest: str) -> Path:
        return self.root / "blobs" / f"sha256-{digest}"

    def manifest_path(self, name: str) -> Path:
        """Where the manifest of `host/namespace/model/tag` lies."""
        return self.root / "manifests" / name

    def add(
        self,
        name: str,
        model: bytes | None = None,
        *,
        params: Mapping[str, Any] | None = None,
        template: str = "",
        projector: bytes | None = None,
        adapters: Sequence[bytes] = (),
    ) -> str:
        """Put a model; return the digest of its model layer."""
        model = tiny_gguf() if model is None else model
        layers = [self._layer("model", model)]
        if projector is not None:
            layers.append(self._layer("projector", projector))
        layers += [self._layer("adapter", adapter) for adapter in adapters]
        if template:
            layers.append(self._layer("template", template.encode()))
        if params is not None:
            layers.append(self._layer("params", json.dumps(params).encode()))
        layers.append(self._layer("license", b"free"))
        self.write_manifest(name, layers)
        return str(layers[0]["digest"]).removeprefix("sha256:")

    def write_manifest(self, name: str, layers: Sequence[Mapping[str, Any]]) -> Path:
        config = b'{"model_format":"gguf"}'
        document = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
            "config": {
                "mediaType": "application/vnd.docker.container.image.v1+json",
                "digest": f"sha256:{self.blob(config)}",
                "size": len(config),
            },
            "layers": list(layers),
        }
        path = self.manifest_path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document))
        return path

    def add_linked(self, name: str, file: Path) -> str:
        """Put a model whose blob is a link to `file`, as people do who keep models on another disk."""
        digest = self.link(file)
        size = file.stat().st_size
        self.write_manifest(
            name, [{"mediaType": f"{PREFIX}model", "digest": f"sha256:{digest}", "size": size}]
        )
        return digest

    def _layer(self, kind: str, data: bytes) -> dict[str, Any]:
        return {"mediaType": PREFIX + kind, "digest": f"sha256:{self.blob(data)}", "size": len(data)}
