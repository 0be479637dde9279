"""The manifest of an artifact, `<artifact>.MANIFEST.json`: its model, its reader and its writer.

Written once when an artifact is packaged, read by the publisher and by every client. Unknown fields survive
a load and a dump, so an older program can pass on what a newer one wrote. Does no I/O and checks no
signature. Field names in JSON are camelCase, apart from `windows_runnable`, which scripts read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    StringConstraints,
    model_validator,
)

from opencoti.document import DocumentPart, MalformedError, UnknownSchemaError, read_document, render_document
from opencoti.errors import ConfigError
from opencoti.files import is_safe_name
from opencoti.jsonio import render_json

SCHEMA = "opencoti.manifest/1"
MANIFEST_SUFFIX = ".MANIFEST.json"
CHUNKS_SUFFIX = ".chunks"
_MAX_MANIFEST_BYTES = 8 << 20
_MAX_PATH = 512
_UPSTREAM_COMMIT = re.compile(r"-g([0-9a-f]{7,40})(?:-|$)")


def _file_name(text: str) -> str:
    if not is_safe_name(text):
        raise ValueError("it is no plain file name (letters, digits and . _ + - only, no path)")
    return text


def _member_path(text: str) -> str:
    """Accept `name` and `folder/name`; folders themselves (`folder/`) occur in foreign hosts."""
    parts = text.removesuffix("/").split("/")
    if len(text) > _MAX_PATH or not all(is_safe_name(part) for part in parts):
        raise ValueError("it is absolute, leaves the archive, or holds characters that are not allowed")
    return text


Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
GitId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
Token = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,31}$")]
Text = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
Version = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,6}(\.[0-9]{1,6}){0,3}$")]
VersionString = Annotated[str, StringConstraints(pattern=r"^opencoti-[0-9A-Za-z][0-9A-Za-z._-]{0,150}$")]
Mode = Literal["0644", "0755"]
Size = Annotated[int, Field(ge=0, le=(1 << 63) - 1)]
FileName = Annotated[str, AfterValidator(_file_name)]
MemberPath = Annotated[str, AfterValidator(_member_path)]


class Source(DocumentPart):
    """One pinned upstream tree; `patched_tree` is its git tree id after the whole series."""

    name: Token
    origin: Text
    commit: GitId
    tag: Text
    tree: GitId
    patched_tree: GitId


class Patch(DocumentPart):
    """One patch of a series, in order; `tree` is the git tree id after it."""

    series: Token
    name: FileName
    sha256: Sha256
    title: Text
    tree: GitId


class Toolchain(DocumentPart):
    """What compiled: `id` is the hash of the lock or recipe, `image_digest` is set for containers."""

    name: Token
    engine: Literal["docker", "host"]
    id: Text
    image_digest: Text | None = None


class Member(DocumentPart):
    """One zip member; `offset` is where its bytes start in the artifact, in bytes from 0."""

    name: MemberPath
    offset: Size
    size: Size
    sha256: Sha256
    mode: Mode


class Dso(DocumentPart):
    """What was measured in one backend library."""

    name: FileName
    backend: Token
    sha256: Sha256
    archs: tuple[Text, ...] = ()
    needed: tuple[Text, ...] = ()
    glibc_floor: Version | None = None
    libstdcxx_floor: Version | None = None
    min_driver: Version | None = None


class HostBinary(DocumentPart):
    """The engine's executable."""

    name: FileName
    needed: tuple[Text, ...] = ()
    glibc_floor: Version | None = None


class Loader(DocumentPart):
    """The executable part in front of the members: bytes `[0, size)` of the artifact."""

    sha256: Sha256
    size: Size


class SkippedBackend(DocumentPart):
    """A backend that was asked for and is not in the artifact."""

    backend: Token
    reason: Text


class Chunks(DocumentPart):
    """The `.chunks` sidecar; see `opencoti.chunks`."""

    file: FileName
    sha256: Sha256
    chunk_size: Annotated[int, Field(ge=1 << 12, le=1 << 20)]
    count: Size


class Manifest(DocumentPart):
    """Everything an artifact says about itself. `sha256` and `size` are those of the artifact file."""

    schema_id: Literal["opencoti.manifest/1"] = Field(alias="schema", default="opencoti.manifest/1")
    name: FileName
    sha256: Sha256
    size: Size
    lane: Literal["ape", "elf"]
    flavor: Token | None = None
    os: Token
    arch: Token
    version_string: VersionString
    opencoti_tag: Token
    git_commit: GitId
    git_dirty: bool
    cpu_only: bool
    windows_runnable: bool = Field(alias="windows_runnable")
    partial: tuple[Text, ...] = ()
    sources: Annotated[tuple[Source, ...], Field(min_length=1)]
    patches: tuple[Patch, ...] = ()
    patch_set_hash: Sha256
    toolchains: tuple[Toolchain, ...] = ()
    loader: Loader | None = None
    host_binary: HostBinary | None = None
    cpu_variants: tuple[Text, ...] = ()
    dsos: tuple[Dso, ...] = ()
    skipped_backends: tuple[SkippedBackend, ...] = ()
    members: Annotated[tuple[Member, ...], Field(min_length=1)]
    chunks: Chunks

    @model_validator(mode="after")
    def _check_version(self) -> Self:
        if not self.version_string.endswith(f"-{self.opencoti_tag}"):
            raise ValueError(f"versionString {self.version_string} does not end in -{self.opencoti_tag}")
        match = _UPSTREAM_COMMIT.search(self.version_string.removesuffix(f"-{self.opencoti_tag}"))
        if match and not any(source.commit.startswith(match[1]) for source in self.sources):
            raise ValueError(f"versionString names commit {match[1]}, which no source has")
        return self

    @model_validator(mode="after")
    def _check_layout(self) -> Self:
        _require_unique("member", (member.name for member in self.members))
        end, before = (self.loader.size if self.loader else 0), "the loader"
        for member in sorted(self.members, key=lambda item: (item.offset, item.size)):
            if member.offset < end:
                raise ValueError(f"member {member.name} overlaps {before}")
            end, before = member.offset + member.size, member.name
        if end > self.size:
            raise ValueError(f"member {before} ends at {end}, behind the end of the artifact ({self.size})")
        return self

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        if self.lane == "elf" and (self.loader is None or self.host_binary is None):
            raise ValueError("an artifact of lane elf has a loader and a hostBinary")
        digests = {member.name: member.sha256 for member in self.members}
        if self.host_binary is not None and self.lane == "elf" and self.host_binary.name not in digests:
            raise ValueError(f"hostBinary {self.host_binary.name} is no member")
        _require_unique("DSO", (dso.name for dso in self.dsos))
        for dso in self.dsos:
            if digests.get(dso.name) != dso.sha256:
                raise ValueError(f"DSO {dso.name} is no member with this sha256")
        return self

    @model_validator(mode="after")
    def _check_chunks(self) -> Self:
        if self.chunks.file != self.name + CHUNKS_SUFFIX:
            raise ValueError(f"chunks.file is {self.chunks.file}, not {self.name}{CHUNKS_SUFFIX}")
        if self.chunks.count != -(-self.size // self.chunks.chunk_size):
            raise ValueError(
                f"{self.chunks.count} chunks of {self.chunks.chunk_size} bytes are not {self.size} bytes"
            )
        return self

    def member(self, name: str) -> Member | None:
        """Return the member of this exact name."""
        return next((member for member in self.members if member.name == name), None)


def load_manifest(data: bytes, origin: str = "the manifest") -> Manifest:
    """Read a manifest.

    Args:
        data: exact bytes of the file, whose signature was checked if there is one.
        origin: where they came from, for the message.

    Raises:
        ConfigError: `json-malformed`, `manifest-schema-unknown`, `manifest-malformed` (names the field).
    """
    try:
        return read_document(Manifest, data, schema=SCHEMA, origin=origin, max_bytes=_MAX_MANIFEST_BYTES)
    except UnknownSchemaError as exc:
        raise ConfigError(
            "manifest-schema-unknown",
            f"cannot read {origin}",
            why=str(exc),
            hint="update opencoti if the file is newer; otherwise this is no manifest",
        ) from exc
    except MalformedError as exc:
        raise ConfigError(
            "manifest-malformed",
            f"cannot read {origin}",
            why=f"{exc} (and {exc.count - 1} more)" if exc.count > 1 else str(exc),
            hint="get the manifest from its publisher again, or package the artifact again",
        ) from exc


def dump_manifest(manifest: Manifest) -> bytes:
    """Return the bytes of a manifest; the same manifest always gives the same bytes."""
    return render_document(manifest)


def json_schema() -> bytes:
    """Return the JSON Schema of a manifest, the content of `docs/reference/manifest.schema.json`."""
    schema: dict[str, Any] = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA}
    return render_json(schema | Manifest.model_json_schema(by_alias=True))


def _require_unique(kind: str, names: Iterable[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        if name.casefold() in seen:
            raise ValueError(f"{kind} {name} stands twice (also as {seen[name.casefold()]})")
        seen[name.casefold()] = name
