"""Toolchain images as files: a pinned image must outlive its registry and the packages that it was made of.

    <name>-<recipe>.tar         the image as `docker save` writes it; `docker load` reads it too
    <name>-<recipe>.image.json  what it is: recipe, image id, SHA-256 and size of the tar

The image id is the SHA-256 of the image's configuration, which names every layer by hash: an image that was
loaded from a file and one that was pulled by digest are the same if their ids are. (A registry's digest is
the hash of *its* description of the compressed layers; an image that was only imported has none.)
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, StringConstraints

from ci.engines.client import EngineClient, translated
from ci.engines.image import ImageRecord, ToolchainImage
from opencoti.console import Console
from opencoti.document import DocumentPart, MalformedError, UnknownSchemaError, read_document, render_document
from opencoti.errors import ConfigError, MissingError, VerificationError, storage_error
from opencoti.files import atomic_file, write_atomic
from opencoti.hashing import sha256_file

_SCHEMA: Final = "opencoti.image/1"
_MAX_BYTES: Final = 1 << 16
_CHUNK: Final = 1 << 20
_Hash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
_ImageId = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]


class EscrowRecord(DocumentPart):
    """The file beside an exported image."""

    schema_id: str = Field(alias="schema", default=_SCHEMA)
    name: str
    tag: str
    recipe: _Hash
    image_id: _ImageId
    platform: str
    debs: str
    sha256: _Hash
    size: Annotated[int, Field(gt=0)]


def export_image(client: EngineClient, image: ToolchainImage, folder: Path, console: Console) -> Path:
    """Write an image and its description to `folder`; return the path of the archive.

    Raises:
        MissingError: `image-not-built`.
        StorageError: the folder cannot be written.
    """
    record = image.find(client)
    if record is None:
        raise MissingError(
            "image-not-built",
            f"there is no image {image.tag} to export",
            hint=f"`python -m ci images {image.name} --build`",
        )
    archive, description = _paths(folder, image)
    console.info(f"exporting {image.tag} to {archive}")
    digest, size = hashlib.sha256(), 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_file(archive) as file:
            for block in _saved(client, image.tag):
                file.write(block)
                digest.update(block)
                size += len(block)
    except OSError as exc:
        raise storage_error(exc, f"cannot write {archive}") from exc
    escrow = EscrowRecord(
        name=image.name,
        tag=image.tag,
        recipe=image.recipe_id,
        image_id=record.id,
        platform=image.platform,
        debs=record.debs,
        sha256=digest.hexdigest(),
        size=size,
    )
    write_atomic(description, render_document(escrow))
    return archive


def import_image(client: EngineClient, image: ToolchainImage, folder: Path, console: Console) -> ImageRecord:
    """Load the image of a recipe from `folder` and prove it.

    Nothing is loaded before the archive has the hash of its description, and the image is taken only if the
    daemon then has it under the id and the recipe that the description names.

    Raises:
        ConfigError: `escrow-malformed`.
        MissingError: `escrow-missing`.
        VerificationError: `escrow-hash-mismatch`, `escrow-unreadable`, `escrow-other-image`,
            `image-unproved`.
    """
    archive, description = _paths(folder, image)
    record = _read(description, image)
    if (
        not archive.is_file()
        or archive.stat().st_size != record.size
        or sha256_file(archive) != record.sha256
    ):
        raise VerificationError(
            "escrow-hash-mismatch",
            f"{archive} is not the exported image",
            why=f"expected are {record.size} bytes with sha256 {record.sha256}",
            hint="copy it again from where it was exported to",
        )
    _check_names(archive, image)
    before = image.find(client)
    try:
        return _load(client, image, archive, record, console)
    except BaseException:
        # What was loaded took the name at once.
        image.put_back(client, before)
        raise


def _check_names(archive: Path, image: ToolchainImage) -> None:
    """Refuse an archive that would give any other name to an image than that of this recipe."""
    try:
        with tarfile.open(archive, "r:") as tar:
            member = tar.extractfile("manifest.json")
            listing = json.loads(member.read(_MAX_BYTES)) if member else None
        names = [name.rsplit("/", 1)[-1] for entry in listing or () for name in entry["RepoTags"] or ()]
    except (OSError, tarfile.TarError, KeyError, TypeError, ValueError) as exc:
        raise VerificationError(
            "escrow-unreadable", f"{archive} is no archive of an image", why=f"{type(exc).__name__}: {exc}"
        ) from exc
    if names != [image.tag]:
        raise VerificationError(
            "escrow-other-image",
            f"{archive} holds another image than {image.tag}",
            why=f"its names are {', '.join(names)[:200] or 'none'}",
            hint="export it again on the machine that built it",
        )


def _load(
    client: EngineClient, image: ToolchainImage, archive: Path, record: EscrowRecord, console: Console
) -> ImageRecord:
    console.info(f"loading {image.tag} from {archive}")
    with translated(client.daemon, "load an image"), open(archive, "rb") as file:
        for _ in client.stream.load_image(file):
            pass
    found = image.find(client)
    if found is None or found.id != record.image_id:
        raise VerificationError(
            "escrow-other-image",
            f"{archive} holds another image than {image.tag} ({record.image_id})",
            why=f"the daemon has {found.id if found else 'none of this name and recipe'}",
            hint="export it again on the machine that built it",
        )
    image.prove(client, console)
    return found


def _read(path: Path, image: ToolchainImage) -> EscrowRecord:
    try:
        data = path.read_bytes()
    except OSError as exc:
        raise MissingError(
            "escrow-missing",
            f"there is no exported image of {image.tag} in {path.parent}",
            why=f"{path.name}: {exc.strerror}",
            hint="an export fits one recipe only; check out the commit that it was made for",
        ) from exc
    try:
        record = read_document(EscrowRecord, data, schema=_SCHEMA, origin=str(path), max_bytes=_MAX_BYTES)
    except (MalformedError, UnknownSchemaError) as exc:
        raise ConfigError("escrow-malformed", f"cannot read {path}", why=str(exc)) from exc
    if record.recipe != image.recipe_id or record.platform != image.platform:
        raise ConfigError(
            "escrow-malformed", f"{path} describes an image of another recipe or platform", why=record.tag
        )
    return record


def _paths(folder: Path, image: ToolchainImage) -> tuple[Path, Path]:
    stem = f"{image.name}-{image.recipe_id[:12]}"
    return folder / f"{stem}.tar", folder / f"{stem}.image.json"


def _saved(client: EngineClient, tag: str) -> Iterator[bytes]:
    with translated(client.daemon, "export an image"):
        yield from client.stream.get_image(tag, chunk_size=_CHUNK)
