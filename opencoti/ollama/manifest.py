"""A manifest of Ollama: which layers a model has. Pure: bytes in, layers out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from opencoti.errors import ConfigError
from opencoti.hashing import is_sha256
from opencoti.jsonio import parse_strict

Kind = Literal[
    "model", "projector", "adapter", "template", "params", "system", "license", "messages", "other"
]
_PREFIX: Final = "application/vnd.ollama.image."
_KINDS: Final[dict[str, Kind]] = {
    f"{_PREFIX}model": "model",
    f"{_PREFIX}projector": "projector",
    f"{_PREFIX}adapter": "adapter",
    f"{_PREFIX}template": "template",
    f"{_PREFIX}prompt": "template",
    f"{_PREFIX}params": "params",
    f"{_PREFIX}system": "system",
    f"{_PREFIX}license": "license",
    f"{_PREFIX}messages": "messages",
}
_MAX_LAYERS: Final = 10_000
_MAX_SIZE: Final = 1 << 50


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One blob that belongs to a model."""

    kind: Kind
    media_type: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The layers of a model, in their order."""

    layers: tuple[Layer, ...]

    def of_kind(self, kind: Kind) -> tuple[Layer, ...]:
        """Return the layers of one kind."""
        return tuple(layer for layer in self.layers if layer.kind == kind)

    @property
    def size_bytes(self) -> int:
        """Size of all layers together."""
        return sum(layer.size_bytes for layer in self.layers)


def parse_manifest(data: bytes, origin: str) -> Manifest:
    """Read a manifest.

    Raises:
        ConfigError: `ollama-manifest-malformed`; empty, cut off, without layers, or with impossible ones.
    """
    try:
        document = parse_strict(data, origin)
        layers = document["layers"]
        if not isinstance(layers, list) or not 0 < len(layers) <= _MAX_LAYERS:
            raise ValueError("it lists no layers")
        return Manifest(layers=tuple(_layer(item) for item in layers))
    except ConfigError as exc:
        raise _malformed(origin, "it is empty" if not data.strip() else exc.why) from exc
    except KeyError as exc:
        raise _malformed(origin, f"it has no {exc.args[0]}") from exc
    except (TypeError, ValueError, AttributeError) as exc:
        raise _malformed(origin, str(exc)) from exc


def _layer(item: Any) -> Layer:
    algorithm, _, digest = str(item["digest"]).partition(":")
    if algorithm != "sha256" or not is_sha256(digest):
        # It becomes a part of a path.
        raise ValueError(f"a layer has the digest {str(item['digest'])[:80]!r}")
    size = item["size"]
    if type(size) is not int or not 0 <= size <= _MAX_SIZE:
        raise ValueError(f"a layer has the size {str(size)[:40]!r}")
    media_type = str(item["mediaType"])[:200]
    # `…template; charset=utf-8` is still a template.
    kind = _KINDS.get(media_type.partition(";")[0].strip(), "other")
    return Layer(kind=kind, media_type=media_type, sha256=digest, size_bytes=size)


def _malformed(origin: str, why: str) -> ConfigError:
    return ConfigError(
        "ollama-manifest-malformed",
        f"cannot use {origin}",
        why=why,
        hint="`ollama pull` of that model writes it anew",
    )
