"""What is kept of a GPU backend: `build.json` beside its library, or why there is none.

`dist/backends/<backend>/<ver>/` holds the library and its record; `package` takes the library only while both
are what a build would give now. `<ver>.skipped.json` says why a backend could not be built.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, StringConstraints

from ci.build import LANE, backend_folder
from ci.context import Context
from ci.paths import Layout
from ci.pins import SourcePin
from ci.sources.lanes import find_lane
from ci.stages.gpu import gpu_stage
from ci.toolchains.recipe import Recipe
from ci.toolchains.table import Backend, Table
from opencoti.document import DocumentPart, MalformedError, UnknownSchemaError, read_document, render_document
from opencoti.errors import OpencotiError, storage_error
from opencoti.files import is_safe_name, write_atomic
from opencoti.hashing import sha256_file

RECORD: Final = "build.json"
_SCHEMA: Final = "opencoti.backend-build/1"
_SKIPPED_SCHEMA: Final = "opencoti.backend-skipped/1"
_MAX_BYTES: Final = 1 << 20
_IMAGE_ENGINE: Final = "docker"
_Text = Annotated[str, StringConstraints(max_length=2000)]


class BackendRecord(DocumentPart):
    """What a built backend came from and what was measured in it.

    Attributes:
        key: content key of the stage that made it (`ci.stages.model.Stage.key`).
        source_tree: git tree id of the `ggml` folder.
        asked: devices that `--archs` asked for, None for all of the table.
        partial: what a trial left out, as its options say it.
    """

    schema_id: str = Field(alias="schema", default=_SCHEMA)
    backend: _Text
    arch: _Text
    key: _Text
    source_tree: _Text
    library: _Text
    sha256: _Text
    engine: _Text
    toolchain: _Text
    toolchain_id: _Text
    image_digest: _Text | None = None
    asked: tuple[_Text, ...] | None = None
    has_flash_attention: bool = True
    targets: tuple[_Text, ...] = ()
    features: tuple[_Text, ...] = ()
    partial: tuple[_Text, ...] = ()


class SkippedRecord(DocumentPart):
    """Why a backend is not there."""

    schema_id: str = Field(alias="schema", default=_SKIPPED_SCHEMA)
    backend: _Text
    reason: _Text


def write_record(folder: Path, record: BackendRecord) -> None:
    """Write the record of a backend beside its library; an older reason for its absence goes."""
    write_atomic(folder / RECORD, render_document(record))
    with suppress(OSError):
        _skipped_path(folder).unlink()


def read_built(
    context: Context, table: Table, version: str, *, arch: str, tree: str | None
) -> tuple[dict[str, BackendRecord], dict[str, str]]:
    """Return the built GPU backends, and why each other one is left out.

    Args:
        context: of this checkout.
        table: every backend.
        version: of the pinned source.
        arch: architecture of the host code.
        tree: id of the `ggml` folder that they must come from, None for any.
    """
    found: dict[str, BackendRecord] = {}
    reasons: dict[str, str] = {}
    for backend in table.gpu:
        folder = backend_folder(context.layout, backend.name, version, arch=arch)
        record, reason = _read(context.layout, folder, backend, arch, tree)
        if record is not None:
            found[backend.name] = record
        else:
            reasons[backend.name] = reason
    return found, reasons


def _read(
    layout: Layout, folder: Path, backend: Backend, arch: str, tree: str | None
) -> tuple[BackendRecord | None, str]:
    try:
        data = (folder / RECORD).read_bytes()
        record = read_document(
            BackendRecord, data, schema=_SCHEMA, origin=str(folder / RECORD), max_bytes=_MAX_BYTES
        )
        if (record.backend, record.arch, record.library) != (backend.name, arch, backend.library):
            return None, f"{folder / RECORD} tells of another library; build it again"
        if tree is not None and record.source_tree != tree:
            return None, "it was built from another source; build it again"
        if record.key != _key_now(layout, backend, record):
            return None, "its toolchain or its options have changed since; build it again"
        if not is_safe_name(record.library) or sha256_file(folder / record.library) != record.sha256:
            return None, f"{folder / record.library} is not the file that was built; build it again"
    except FileNotFoundError:
        return None, _skipped_reason(folder) or "it was not built"
    except (OSError, MalformedError, UnknownSchemaError, OpencotiError) as exc:
        return None, f"what was built cannot be read ({exc})"
    return record, ""


def _key_now(layout: Layout, backend: Backend, record: BackendRecord) -> str:
    """Return the key that a build with the same options would have now.

    The tools of one machine are not asked again: that such a library came from them, its record says.
    """
    stage = gpu_stage(
        backend,
        arch=record.arch,
        targets=backend.choose_targets(record.arch, record.asked),
        has_flash_attention=record.has_flash_attention,
        source_tree=record.source_tree,
    )
    is_image = record.engine == _IMAGE_ENGINE
    return stage.key(
        Recipe.load(layout.containers / backend.toolchain).image_id if is_image else record.toolchain_id
    )


def _skipped_path(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.skipped.json")


def write_skipped(context: Context, backend: str, *, arch: str, reason: str) -> None:
    """Keep why a backend could not be built, for the manifest of what is packaged without it."""
    pin = SourcePin.load(find_lane(context.layout, LANE).pin)
    folder = backend_folder(context.layout, backend, pin.version, arch=arch)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise storage_error(exc, f"cannot write {folder.parent}") from exc
    write_atomic(_skipped_path(folder), render_document(SkippedRecord(backend=backend, reason=reason[:2000])))


def _skipped_reason(folder: Path) -> str:
    try:
        data = _skipped_path(folder).read_bytes()
        return read_document(
            SkippedRecord, data, schema=_SKIPPED_SCHEMA, origin=str(folder), max_bytes=_MAX_BYTES
        ).reason
    except (OSError, MalformedError, UnknownSchemaError, OpencotiError):
        return ""
