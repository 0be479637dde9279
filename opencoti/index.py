"""The release index, `opencoti-release.json`: what one release consists of, schema `opencoti.release/1`.

The constant name that a client asks for when it wants the newest release. Written by the publisher, signed,
never changed. Unknown fields survive a load and a dump. Does no I/O and checks no signature: clients get one
through `opencoti.policy.verify_index`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    StringConstraints,
    model_validator,
)

from opencoti.document import DocumentPart, MalformedError, UnknownSchemaError, read_document, render_document
from opencoti.errors import ConfigError, OpencotiError
from opencoti.manifest import MANIFEST_SUFFIX, FileName, Sha256, Size, Text, Token, Version, VersionString
from opencoti.trust.comment import INDEX_NAME, MAX_SEQUENCE, parse_time

SCHEMA = "opencoti.release/1"
MAX_INDEX_BYTES = 8 << 20


def _time(text: str) -> str:
    try:
        parse_time(text, INDEX_NAME)
    except OpencotiError as exc:
        raise ValueError(exc.why) from exc
    return text


Repo = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,38}/[A-Za-z0-9._-]{1,100}$")]
Tag = Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z][0-9A-Za-z._+-]{0,127}$")]
Timestamp = Annotated[str, AfterValidator(_time)]
Sequence = Annotated[int, Field(ge=1, le=MAX_SEQUENCE)]


class ManifestReference(DocumentPart):
    """The manifest of an artifact: the exact bytes that the index vouches for."""

    name: FileName
    sha256: Sha256


class Part(DocumentPart):
    """One piece of an artifact that is too large for one asset; pieces follow each other."""

    name: FileName
    size: Size
    sha256: Sha256


class BackendRequirement(DocumentPart):
    """What one backend in an artifact runs on; no `archs` means any device of its kind."""

    backend: Token
    archs: tuple[Text, ...] = ()
    min_driver: Version | None = None


class Requirements(DocumentPart):
    """What a host must have, for choosing. No `glibc` means none is needed."""

    os: Token
    arch: Token
    glibc: Version | None = None
    backends: tuple[BackendRequirement, ...] = ()


class ReleasedArtifact(DocumentPart):
    """One file that a client may fetch. Without `parts` it is one asset of its own name."""

    name: FileName
    size: Size
    sha256: Sha256
    manifest: ManifestReference
    flavor: Token | None = None
    parts: tuple[Part, ...] = ()
    requires: Requirements

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.manifest.name != self.name + MANIFEST_SUFFIX:
            raise ValueError(f"manifest.name is {self.manifest.name}, not {self.name}{MANIFEST_SUFFIX}")
        if len(self.parts) == 1:
            raise ValueError(f"{self.name} has one part; a file in one piece has none")
        if self.parts and sum(part.size for part in self.parts) != self.size:
            raise ValueError(f"the parts of {self.name} do not add up to its {self.size} bytes")
        return self


class EvidenceReference(DocumentPart):
    """One evidence file, bound to the artifact by the SHA-256 of both."""

    name: FileName
    sha256: Sha256
    kind: Token
    backend: Token
    artifact_sha256: Sha256


class Waiver(DocumentPart):
    """Evidence that is required and missing, on purpose and in public."""

    name: Text
    reason: Text


class ReleaseIndex(DocumentPart):
    """One release. `sequence` counts the releases of a repo and product; times are UTC to the second."""

    schema_id: Literal["opencoti.release/1"] = Field(alias="schema", default="opencoti.release/1")
    product: Token
    repo: Repo
    tag: Tag
    version_string: VersionString
    lane: Literal["ape", "elf"]
    sequence: Sequence
    created: Timestamp
    expires: Timestamp
    plan_sha256: Sha256
    artifacts: Annotated[tuple[ReleasedArtifact, ...], Field(min_length=1)]
    evidence: tuple[EvidenceReference, ...] = ()
    waivers: tuple[Waiver, ...] = ()

    @model_validator(mode="after")
    def _check_times(self) -> Self:
        if self.expires <= self.created:  # one spelling of fixed width: text order is time order
            raise ValueError("expires is not after created")
        return self

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        names: set[str] = {INDEX_NAME.casefold()}
        for name in self._file_names():
            if name.casefold() in names:
                raise ValueError(f"file {name} stands twice")
            names.add(name.casefold())
        return self

    @model_validator(mode="after")
    def _check_evidence(self) -> Self:
        digests = {artifact.sha256 for artifact in self.artifacts}
        for item in self.evidence:
            if item.artifact_sha256 not in digests:
                raise ValueError(f"evidence {item.name} is of no artifact of this release")
        return self

    def _file_names(self) -> Iterable[str]:
        for artifact in self.artifacts:
            yield artifact.name
            yield artifact.manifest.name
            yield from (part.name for part in artifact.parts)
        yield from (item.name for item in self.evidence)

    @property
    def expires_at(self) -> datetime:
        """When the index stops being fresh."""
        return parse_time(self.expires, INDEX_NAME)

    def artifact(self, sha256: str) -> ReleasedArtifact | None:
        """Return the artifact with this SHA-256."""
        return next((item for item in self.artifacts if item.sha256 == sha256), None)

    def artifact_of_manifest(self, name: str) -> ReleasedArtifact | None:
        """Return the artifact whose manifest has this file name."""
        return next((item for item in self.artifacts if item.manifest.name == name), None)


def load_index(data: bytes, origin: str = "the release index") -> ReleaseIndex:
    """Read a release index.

    Args:
        data: exact bytes of the file, whose signature was checked if there is one.
        origin: where they came from, for the message.

    Raises:
        ConfigError: `json-malformed`, `index-schema-unknown`, `index-malformed` (names the field).
    """
    try:
        return read_document(ReleaseIndex, data, schema=SCHEMA, origin=origin, max_bytes=MAX_INDEX_BYTES)
    except UnknownSchemaError as exc:
        raise ConfigError(
            "index-schema-unknown",
            f"cannot read {origin}",
            why=str(exc),
            hint="update opencoti if the file is newer; otherwise this is no release index",
        ) from exc
    except MalformedError as exc:
        raise ConfigError(
            "index-malformed",
            f"cannot read {origin}",
            why=str(exc),
            hint="get the index from its publisher again, or stage the release again",
        ) from exc


def dump_index(index: ReleaseIndex) -> bytes:
    """Return the bytes of an index; the same index always gives the same bytes."""
    return render_document(index)
