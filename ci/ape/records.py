"""What is kept of a GPU library of the ape lane: `build.json` beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, StringConstraints

from ci.ape.stages import SCRIPTS
from ci.build import backend_folder
from ci.paths import Layout
from ci.toolchains.table import Backend
from opencoti.document import DocumentPart, MalformedError, UnknownSchemaError, read_document, render_document
from opencoti.errors import OpencotiError
from opencoti.files import is_safe_name, write_atomic
from opencoti.hashing import sha256_file

RECORD: Final = "build.json"
_SCHEMA: Final = "opencoti.ape-backend-build/1"
_MAX_BYTES: Final = 1 << 20
_Text = Annotated[str, StringConstraints(max_length=2000)]


class ApeBackendRecord(DocumentPart):
    """What a library came from and what was measured in it.

    Attributes:
        source_tree: git tree id of the whole patched source: the library shares structures and the calling
            convention with the engine that loads it.
        objects: how many objects were linked; None when the library came from the cache of finished stages,
            where nothing is kept that was not counted.
    """

    schema_id: str = Field(alias="schema", default=_SCHEMA)
    backend: _Text
    arch: _Text
    source_tree: _Text
    library: _Text
    sha256: _Text
    toolchain: _Text
    toolchain_id: _Text
    objects: int | None = None
    targets: tuple[_Text, ...] = ()


def write_record(folder: Path, record: ApeBackendRecord) -> None:
    """Write a record beside its library. Raises `StorageError`."""
    write_atomic(folder / RECORD, render_document(record))


def read_record(
    layout: Layout, backend: Backend, version: str, *, arch: str, tree: str | None
) -> tuple[ApeBackendRecord | None, str]:
    """Return the record of a library that can be packaged now, or None and why there is none.

    Args:
        layout: of this checkout.
        backend: row of the table.
        version: of the pinned source.
        arch: of the library.
        tree: id of the patched source that it must come from, None for any.
    """
    folder = backend_folder(layout, backend.name, version, arch=arch)
    library = SCRIPTS[backend.kind].library
    try:
        record = read_document(
            ApeBackendRecord,
            (folder / RECORD).read_bytes(),
            schema=_SCHEMA,
            origin=str(folder / RECORD),
            max_bytes=_MAX_BYTES,
        )
        if (record.backend, record.arch, record.library) != (backend.name, arch, library):
            return None, f"{folder / RECORD} tells of another library; build it again"
        if tree is not None and record.source_tree != tree:
            return None, "it was built from another source than the engine; build it again"
        if not is_safe_name(record.library) or sha256_file(folder / record.library) != record.sha256:
            return None, f"{folder / record.library} is not the file that was built; build it again"
    except FileNotFoundError:
        return None, "it was not built"
    except (OSError, MalformedError, UnknownSchemaError, OpencotiError) as exc:
        return None, f"what was built cannot be read ({exc})"
    return record, ""
