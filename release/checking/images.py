"""The record of pinned toolchain images, `opencoti.images/1`, and how one is named. Does no I/O.

{"schema": "opencoti.images/1",
 "images": [{"name": "zig", "recipe": "<64 hex>", "digest": "sha256:<64 hex>",
                 "reference": "<registry>/<repository>"}]}
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, StringConstraints

from opencoti.document import DocumentPart, MalformedError, UnknownSchemaError, read_document
from opencoti.errors import ConfigError
from opencoti.fetch.addresses import LOOPBACK_HOSTS
from opencoti.manifest import Sha256, Token

SCHEMA: Final = "opencoti.images/1"
_MAX_BYTES = 1 << 20
_REFERENCE = re.compile(
    r"(?P<host>[A-Za-z0-9.-]+(?::[0-9]{1,5})?|\[::1\]:[0-9]{1,5})/(?P<path>[a-z0-9]+(?:[._/-][a-z0-9]+)*)"
)


def _reference(text: str) -> str:
    match = _REFERENCE.fullmatch(text)
    if match is None or not ("." in match["host"] or ":" in match["host"] or match["host"] == "localhost"):
        raise ValueError("it is not <registry>/<repository>, without a tag")
    return text


Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]


class ImageEntry(DocumentPart):
    """One image in a registry; `recipe` is the hash of what it was made of."""

    name: Token
    recipe: Sha256 | None = None
    reference: Annotated[str, AfterValidator(_reference)]
    digest: Digest

    @property
    def address(self) -> RegistryAddress:
        """Where it is asked for."""
        match = _REFERENCE.fullmatch(self.reference)
        assert match is not None
        host = match["host"]
        name = host.rpartition(":")[0].strip("[]") if ":" in host else host
        scheme = "http" if name in LOOPBACK_HOSTS else "https"
        return RegistryAddress(base_url=f"{scheme}://{host}/v2/{match['path']}", host=host)

    def __str__(self) -> str:
        return f"{self.reference}@{self.digest}"


class ImagesRecord(DocumentPart):
    """All pinned images."""

    schema_id: Literal["opencoti.images/1"] = Field(alias="schema", default="opencoti.images/1")
    images: tuple[ImageEntry, ...]


@dataclass(frozen=True, kw_only=True)
class RegistryAddress:
    """The API of one repository of a registry: https, or http on this machine."""

    base_url: str
    host: str


def load_images(data: bytes, origin: str) -> ImagesRecord:
    """Read a record.

    Raises:
        ConfigError: `json-malformed`, `images-record-malformed` (names the field).
    """
    try:
        return read_document(ImagesRecord, data, schema=SCHEMA, origin=origin, max_bytes=_MAX_BYTES)
    except (UnknownSchemaError, MalformedError) as exc:
        raise ConfigError(
            "images-record-malformed",
            f"cannot read {origin}",
            why=str(exc),
            hint="each image has name, reference (<registry>/<repository>) and digest (sha256:<64 hex>)",
        ) from exc
