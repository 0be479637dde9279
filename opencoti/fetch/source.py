"""What to get, and from where: a pin or an address becomes a `Request`. Reads the working directory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from opencoti.errors import UsageError
from opencoti.fetch.addresses import last_segment, release_url, require_allowed
from opencoti.fetch.settings import Settings
from opencoti.files import is_safe_name
from opencoti.hashing import is_sha256
from opencoti.pins import ArtifactPin, FileOrigin

# The same as in `opencoti.manifest`, which is not loaded before it is needed.
MANIFEST_SUFFIX = ".MANIFEST.json"
# Names that our own files beside the target take (`store.py`).
_RESERVED_ENDINGS = (".part", ".part.json", ".lock", ".stamp")


@dataclass(frozen=True, kw_only=True)
class HttpSource:
    """An address that may be asked."""

    url: str

    def __str__(self) -> str:
        return self.url


@dataclass(frozen=True, kw_only=True)
class LocalSource:
    """A file on this machine; `named_by` is the variable or pin that named it."""

    path: Path
    named_by: str

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True, kw_only=True)
class ManifestHint:
    """Where a manifest of the wanted file may be; its chunk table lies beside it.

    `is_named` says that the user asked for it, so that its absence is an error.
    """

    source: HttpSource | LocalSource
    is_named: bool

    def beside(self, name: str) -> HttpSource | LocalSource:
        """Return the file `name` (a safe one) in the same place."""
        if isinstance(self.source, LocalSource):
            return LocalSource(path=self.source.path.with_name(name), named_by=self.source.named_by)
        parts = urlsplit(self.source.url, allow_fragments=False)
        path = parts.path.rpartition("/")[0] + "/" + quote(name, safe="")
        return HttpSource(url=parts._replace(path=path, query="").geturl())


@dataclass(frozen=True, kw_only=True)
class Request:
    """One wanted file.

    Attributes:
        manifest: what may tell the chunks of the file.
        name: safe file name that it gets.
        sha256: what its bytes must hash to; whatever `source` says, this stays.
        is_executable: an artifact of ours, which gets mode 0755; a plain file gets 0644.
    """

    name: str
    sha256: str
    source: HttpSource | LocalSource
    is_executable: bool
    manifest: ManifestHint | None = None


def request_for_pin(pin: ArtifactPin, settings: Settings) -> Request:
    """Return what a pin asks for, with the path replaced where a variable says so.

    Raises:
        ConfigError: `address-refused`.
        UsageError: `name-reserved`.
    """
    source = _source_of_pin(pin, settings)
    hint = None
    if isinstance(source, HttpSource):
        hint = ManifestHint(source=HttpSource(url=source.url + MANIFEST_SUFFIX), is_named=False)
    return Request(
        name=_unreserved(pin.asset),
        sha256=pin.sha256,
        source=source,
        is_executable=not is_model(pin.asset),
        manifest=hint,
    )


def request_for_url(
    url: str, sha256: str, *, name: str | None = None, manifest: str | None = None
) -> Request:
    """Return what `--url` asks for; the name is the last part of the address unless given.

    `manifest` is an address or a path.

    Raises:
        ConfigError: `address-refused`.
        UsageError: `bad-sha256`, `bad-name`, `name-reserved`.
    """
    if not is_sha256(sha256.lower()):
        raise UsageError("bad-sha256", f"--sha256 {sha256[:80]!r} is not 64 hex digits")
    name = last_segment(url) if name is None else name
    if not is_safe_name(name):
        raise UsageError(
            "bad-name",
            f"{name[:80]!r} is no usable file name",
            why="a name may hold letters, digits and . _ + - only, and no path",
            hint="give one with --name",
        )
    return Request(
        name=_unreserved(name),
        sha256=sha256.lower(),
        source=_source_of_url(url, "--url"),
        is_executable=False,
        manifest=None if manifest is None else _named_manifest(manifest),
    )


def _named_manifest(text: str) -> ManifestHint:
    is_address = "://" in text or text.lower().startswith("file:")
    path = None if is_address else LocalSource(path=_absolute(text), named_by="--manifest")
    return ManifestHint(source=path or _source_of_url(text, "--manifest"), is_named=True)


def is_model(asset: str) -> bool:
    """Tell whether an asset is model weights, which nobody runs."""
    return asset.lower().endswith(".gguf")


def local_override(asset: str, settings: Settings) -> LocalSource | None:
    """Return the file that a variable names instead of this asset, if any (the hash still decides)."""
    if "embedder" in asset:
        variable, value = "OPENCOTI_EMBEDDER_LOCAL", settings.embedder_local
    elif is_model(asset):
        return None
    else:
        variable, value = "OPENCOTI_LLAMAFILE_LOCAL", settings.llamafile_local
    return LocalSource(path=_absolute(value), named_by=variable) if value else None


def _source_of_pin(pin: ArtifactPin, settings: Settings) -> HttpSource | LocalSource:
    if override := local_override(pin.asset, settings):
        return override
    if isinstance(pin.origin, FileOrigin):
        return LocalSource(path=_absolute(pin.origin.path), named_by=pin.read_from)
    url = release_url(settings.base_url, pin.origin.repository, pin.tag, pin.asset)
    return HttpSource(url=require_allowed(url, pin.read_from))


def _source_of_url(url: str, named_by: str) -> HttpSource | LocalSource:
    if not url.lower().startswith("file:"):
        return HttpSource(url=require_allowed(url, named_by))
    parts = urlsplit(url, allow_fragments=False)
    path = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or not path or "\0" in path:
        raise UsageError("bad-file-url", f"{url[:200]!r} names no file on this machine")
    return LocalSource(path=_absolute(path), named_by=named_by)


def _absolute(path: str) -> Path:
    return Path(os.path.abspath(path))


def _unreserved(name: str) -> str:
    if name.lower().endswith(_RESERVED_ENDINGS):
        raise UsageError(
            "name-reserved",
            f"the file name {name!r} is refused",
            why=f"names that end in {', '.join(_RESERVED_ENDINGS)} belong to unfinished downloads",
            hint="give another one with --name",
        )
    return name
