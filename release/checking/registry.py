"""Can an image still be pulled: asks a registry for it by digest, layer by layer, without pulling it.

Speaks the OCI distribution API (1.1): the manifest must hash to the pinned digest, every manifest of an index
likewise, and every blob must be there with its size. Anonymous: what users cannot pull is not there for them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

import httpx

from opencoti.errors import MissingError, NetworkError, VerificationError
from opencoti.fetch.addresses import LOOPBACK_HOSTS, require_allowed
from opencoti.hashing import sha256_bytes
from opencoti.jsonio import parse_strict
from release.checking.images import ImageEntry, RegistryAddress

_INDEXES: Final = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_MANIFESTS: Final = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_MAX_MANIFEST_BYTES: Final = 4 << 20
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_CHALLENGE = re.compile(r'(realm|service|scope)="([^"]*)"')
_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, kw_only=True)
class PullableImage:
    """An image whose every piece is there; `size` is what a pull of all its platforms moves."""

    entry: ImageEntry
    blob_count: int
    size: int


class Registry:
    """A client for looking. Holds connections until `close` (or the end of its `with` block)."""

    def __init__(self, *, timeout_s: float = _TIMEOUT_S) -> None:
        self._client = httpx.Client(
            timeout=timeout_s,
            follow_redirects=True,
            max_redirects=5,
            mounts={f"all://{f'[{host}]' if ':' in host else host}": None for host in LOOPBACK_HOSTS},
        )
        self._tokens: dict[str, str] = {}

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def look(self, entry: ImageEntry) -> PullableImage:
        """Look whether an image can be pulled.

        Raises:
            MissingError: `image-gone`, the manifest or a blob is not there.
            VerificationError: `image-differs`, the registry has other bytes under the digest.
            NetworkError: `registry-refused`, `registry-failed`.
        """
        blobs = dict(self._blobs(entry, entry.digest, depth=0))
        for digest, size in blobs.items():
            self._require_blob(entry, digest, size)
        return PullableImage(entry=entry, blob_count=len(blobs), size=sum(blobs.values()))

    def _blobs(self, entry: ImageEntry, digest: str, *, depth: int) -> Iterator[tuple[str, int]]:
        manifest = self._manifest(entry, digest)
        if "manifests" in manifest and depth == 0:
            for item in _items(manifest, "manifests", entry):
                yield from self._blobs(entry, _digest(item, entry), depth=1)
            return
        config = manifest.get("config")
        for item in [*([config] if config else []), *_items(manifest, "layers", entry)]:
            size = item.get("size")
            yield _digest(item, entry), size if type(size) is int else -1

    def _manifest(self, entry: ImageEntry, digest: str) -> dict[str, Any]:
        address = entry.address
        response = self._ask("GET", f"{address.base_url}/manifests/{digest}", address, entry)
        data = response.content
        if len(data) > _MAX_MANIFEST_BYTES or f"sha256:{sha256_bytes(data)}" != digest:
            raise _differs(entry, f"the manifest hashes to sha256:{sha256_bytes(data)}, expected {digest}")
        document = parse_strict(data, str(entry), max_bytes=_MAX_MANIFEST_BYTES)
        if not isinstance(document, dict):
            raise _differs(entry, "its manifest is no JSON object")
        return document

    def _require_blob(self, entry: ImageEntry, digest: str, size: int) -> None:
        address = entry.address
        response = self._ask("HEAD", f"{address.base_url}/blobs/{digest}", address, entry)
        length = response.headers.get("content-length", "")
        if length.isdigit() and int(length) != size:
            raise _differs(entry, f"blob {digest} has {length} bytes, its manifest says {size}")

    def _ask(self, method: str, url: str, address: RegistryAddress, entry: ImageEntry) -> httpx.Response:
        response = self._send(method, url, self._headers(address), entry)
        if response.status_code == 401 and (challenge := response.headers.get("www-authenticate")):
            self._tokens[address.base_url] = self._token(challenge, entry)
            response = self._send(method, url, self._headers(address), entry)
        if response.status_code in (404, 410):
            raise MissingError(
                "image-gone",
                f"{entry} cannot be pulled any more",
                why=f"{url} is not there",
                hint="push it again from the escrow: `python -m ci images --import DIR`",
            )
        if response.status_code != 200:
            raise NetworkError(
                "registry-refused",
                f"{address.host} does not give {entry}",
                why=f"it answered with status {response.status_code}",
                hint="look whether the image is public, and whether too much was asked of the registry",
            )
        return response

    def _headers(self, address: RegistryAddress) -> dict[str, str]:
        headers = {"accept": ", ".join((*_INDEXES, *_MANIFESTS)), "accept-encoding": "identity"}
        token = self._tokens.get(address.base_url)
        return headers | ({"authorization": f"Bearer {token}"} if token else {})

    def _token(self, challenge: str, entry: ImageEntry) -> str:
        """Get an anonymous token from where the registry says."""
        words = dict(_CHALLENGE.findall(challenge))
        realm = require_allowed(words.pop("realm", ""), f"the registry of {entry}")
        response = self._send("GET", f"{realm}?{urlencode(words)}", {}, entry)
        try:
            answer = response.json()
            token = answer.get("token") or answer["access_token"]
        except (ValueError, KeyError, AttributeError):
            token = ""
        if response.status_code != 200 or not isinstance(token, str) or not token:
            raise NetworkError(
                "registry-refused",
                f"{realm} gives no token for {entry}",
                why=f"it answered with status {response.status_code}",
                hint="look whether the image is public",
            )
        return token

    def _send(self, method: str, url: str, headers: dict[str, str], entry: ImageEntry) -> httpx.Response:
        try:
            response = self._client.request(method, url, headers=headers)
        except httpx.HTTPError as exc:
            raise NetworkError(
                "registry-failed",
                f"cannot ask for {entry}",
                why=str(exc) or type(exc).__name__,
                hint="check the network and the proxy settings",
            ) from exc
        require_allowed(str(response.url), f"the registry of {entry}")  # where redirects led
        return response


def _items(manifest: dict[str, Any], name: str, entry: ImageEntry) -> list[dict[str, Any]]:
    items = manifest.get(name)
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise _differs(entry, f"its manifest has no list of {name}")
    return items


def _digest(item: dict[str, Any], entry: ImageEntry) -> str:
    digest = item.get("digest")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise _differs(entry, "a piece of it has no SHA-256")
    return digest


def _differs(entry: ImageEntry, why: str) -> VerificationError:
    return VerificationError(
        "image-differs",
        f"the registry has something else under {entry}",
        why=why,
        hint="do not build with it: push the image again from the escrow",
    )
