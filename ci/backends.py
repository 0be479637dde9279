"""GPU backends: built from the `ggml` folder of the patched source, measured, recorded beside the library.

`dist/backends/<backend>/<ver>/` holds the library and `build.json`, which says what it came from; `package`
takes the library only while that is still so. `<ver>.skipped.json` says why a backend could not be built.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, StringConstraints

from ci.build import LANE, BuildOptions, backend_folder, prepare_source, publish, target_arch
from ci.context import Context
from ci.dso.elf import ElfFacts, inspect_elf
from ci.dso.rules import Rules, check_elf, gpu_rules, role_of
from ci.engines import select_engine
from ci.git import Repository
from ci.patches.apply import AppliedTree
from ci.pins import SourcePin
from ci.sources.lanes import find_lane
from ci.stages.gpu import SUBTREE, gpu_stage
from ci.stages.runner import StageResult, run_stage
from ci.toolchains.stubs import stub_symbols
from ci.toolchains.table import Backend, Kind, Table, load_table
from opencoti.document import DocumentPart, MalformedError, UnknownSchemaError, read_document, render_document
from opencoti.errors import BuildError, MissingError, OpencotiError, storage_error
from opencoti.files import is_safe_name, write_atomic
from opencoti.hashing import sha256_file

RECORD: Final = "build.json"
_SCHEMA: Final = "opencoti.backend-build/1"
_SKIPPED_SCHEMA: Final = "opencoti.backend-skipped/1"
_MAX_BYTES: Final = 1 << 20
# A library that zig made takes `new` and `delete` from the first one that has them; those of the engine are
# made by zig too.
_ALLOCATION: Final = ("_Znw", "_Zna", "_Zdl", "_Zda")
# What ggml's own library exports to its backends.
_GGML_PREFIXES: Final = ("ggml_", "gguf_", "quantize_", "dequantize_")
_Text = Annotated[str, StringConstraints(max_length=2000)]


class BackendRecord(DocumentPart):
    """What a built backend came from and what was measured in it.

    Attributes:
        source_tree: git tree id of the `ggml` folder.
        partial: what a trial left out, as its options say it.
    """

    schema_id: str = Field(alias="schema", default=_SCHEMA)
    backend: _Text
    arch: _Text
    source_tree: _Text
    library: _Text
    sha256: _Text
    engine: _Text
    toolchain: _Text
    toolchain_id: _Text
    image_digest: _Text | None = None
    targets: tuple[_Text, ...] = ()
    features: tuple[_Text, ...] = ()
    partial: tuple[_Text, ...] = ()


class SkippedRecord(DocumentPart):
    """Why a backend is not there."""

    schema_id: str = Field(alias="schema", default=_SKIPPED_SCHEMA)
    backend: _Text
    reason: _Text


@dataclass(frozen=True, kw_only=True)
class BuiltBackend:
    """A GPU backend in its folder."""

    record: BackendRecord
    result: StageResult
    folder: Path


def build_gpu(context: Context, backend: Backend, options: BuildOptions) -> BuiltBackend:
    """Build one GPU backend, inspect it, and put it into `dist/backends`.

    Raises:
        UsageError: `--archs` asks for what the toolchain is not proved for.
        MissingError: `backend-arch-unsupported`, or its toolchain cannot be had.
        BuildError: it does not compile; `backend-unsound`, it differs from the table.
    """
    arch = target_arch(options)
    if arch not in backend.hosts:
        raise MissingError(
            "backend-arch-unsupported",
            f"there is no build of {backend.name} for {arch} machines",
            hint=f"it is built for {' and '.join(backend.hosts)}",
        )
    targets = backend.choose_targets(arch, options.archs)
    engine = select_engine(options.engine, context.layout, context.console)
    source = prepare_source(context)
    tree = ggml_tree(source)
    stage = gpu_stage(
        backend,
        arch=arch,
        targets=targets,
        has_flash_attention=options.has_flash_attention,
        source_tree=tree,
    )
    result = run_stage(
        stage,
        engine,
        layout=context.layout,
        source=source.folder / SUBTREE,
        console=context.console,
        jobs=options.jobs,
        use_cache=options.use_cache,
    )
    facts = inspect_elf(result.folder / "bin" / backend.library)
    is_pinned = result.toolchain.get("kind") == "image"
    provided = stub_symbols(context.layout.containers, backend)
    _require_sound(facts, backend, arch, targets, provided, is_pinned=is_pinned)
    folder = publish(result, backend_folder(context.layout, backend.name, source.pin.version, arch=arch))
    record = _record(backend, arch, tree, result, facts, options)
    write_atomic(folder / RECORD, render_document(record))
    with suppress(OSError):
        _skipped_path(folder).unlink()
    return BuiltBackend(record=record, result=result, folder=folder)


def build_all(context: Context, options: BuildOptions) -> tuple[list[BuiltBackend], dict[str, str]]:
    """Build every GPU backend that can be built here; return them, and the reasons of the others by name.

    A backend that fails is skipped with a warning, and the reason is kept for the manifest.

    Raises:
        BuildError: `no-backend-built`, not one succeeded.
    """
    built: list[BuiltBackend] = []
    skipped: dict[str, str] = {}
    for backend in load_table(context.layout.table).gpu:
        try:
            built.append(build_gpu(context, backend, options))
        except OpencotiError as error:
            skipped[backend.name] = str(error)
            context.console.warn(f"backend {backend.name} is skipped: {error}")
            _write_skipped(context, backend, options, str(error))
    if not built:
        raise BuildError(
            "no-backend-built",
            "no GPU backend could be built",
            why="; ".join(f"{name}: {reason}" for name, reason in skipped.items()),
            hint="`python -m ci doctor` shows what is missing",
        )
    return built, skipped


def rules_of(backend: Backend, arch: str, targets: Sequence[str]) -> Rules:
    """Return what the table says about the library of a backend, for the devices it was built for."""
    role = role_of(backend.library)
    assert role in ("cuda", "hip", "vulkan")
    return gpu_rules(
        role,
        arch=arch,
        targets=targets,
        needed=backend.needed,
        glibc_ceiling=backend.glibc,
        libstdcxx_ceiling=backend.libstdcxx,
    )


def ggml_tree(source: AppliedTree) -> str:
    """Return the git tree id of the folder that GPU backends are compiled from."""
    found = Repository(git_dir=source.folder / ".git").resolve(f"{source.tree}:{SUBTREE}")
    assert found is not None
    return found


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
        record, reason = _read(folder, backend, arch, tree)
        if record is not None:
            found[backend.name] = record
        else:
            reasons[backend.name] = reason
    return found, reasons


def _read(folder: Path, backend: Backend, arch: str, tree: str | None) -> tuple[BackendRecord | None, str]:
    try:
        data = (folder / RECORD).read_bytes()
        record = read_document(
            BackendRecord, data, schema=_SCHEMA, origin=str(folder / RECORD), max_bytes=_MAX_BYTES
        )
        if (record.backend, record.arch, record.library) != (backend.name, arch, backend.library):
            return None, f"{folder / RECORD} tells of another library; build it again"
        if tree is not None and record.source_tree != tree:
            return None, "it was built from another source; build it again"
        if not is_safe_name(record.library) or sha256_file(folder / record.library) != record.sha256:
            return None, f"{folder / record.library} is not the file that was built; build it again"
    except FileNotFoundError:
        return None, _skipped_reason(folder) or "it was not built"
    except (OSError, MalformedError, UnknownSchemaError, OpencotiError) as exc:
        return None, f"what was built cannot be read ({exc})"
    return record, ""


def _record(
    backend: Backend, arch: str, tree: str, result: StageResult, facts: ElfFacts, options: BuildOptions
) -> BackendRecord:
    partial = [f"{backend.name}: --archs {','.join(options.archs)}"] if options.archs else []
    if not options.has_flash_attention and backend.kind != "vulkan":
        partial.append(f"{backend.name}: --no-fa")
    if result.toolchain.get("kind") != "image":
        partial.append(f"{backend.name}: built with the tools of one machine")
    measured = result.toolchain.get("features")
    return BackendRecord(
        backend=backend.name,
        arch=arch,
        source_tree=tree,
        library=backend.library,
        sha256=result.files[f"bin/{backend.library}"],
        engine=result.engine,
        toolchain=backend.toolchain,
        toolchain_id=result.toolchain_id,
        image_digest=result.toolchain.get("image_id"),
        targets=facts.gpu_targets,
        features=backend.features if measured is None else tuple(filter(None, measured.split(","))),
        partial=tuple(partial),
    )


def borrowed_symbols(undefined: Iterable[str], provided: frozenset[str], *, kind: Kind) -> list[str]:
    """Return what a library needs that neither ggml, nor the vendor, nor a versioned system library gives it.

    Such a symbol was lent by something at the link that will not be there when the engine loads it.
    """
    known = (*_GGML_PREFIXES, *(_ALLOCATION if kind == "vulkan" else ()))
    return [name for name in undefined if not name.startswith(known) and name not in provided]


def _require_sound(
    facts: ElfFacts,
    backend: Backend,
    arch: str,
    targets: tuple[str, ...],
    provided: frozenset[str],
    *,
    is_pinned: bool,
) -> None:
    rules = rules_of(backend, arch, targets)
    if not is_pinned:
        # The C library of this machine is newer than that of the images; the record says where it was built.
        rules = replace(rules, glibc_ceiling=facts.glibc_floor or rules.glibc_ceiling)
    problems = [str(problem) for problem in check_elf(facts, rules)]
    problems += [
        f"{facts.path.name}: nothing gives it {name}"
        for name in borrowed_symbols(facts.undefined, provided, kind=backend.kind)
    ]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise BuildError(
            "backend-unsound",
            f"the library of {backend.name} is not what the table says",
            why=f"{problems[0]}{more}",
            hint=f"see `python -m ci inspect {facts.path}` and containers/toolchains.toml",
        )


def _skipped_path(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.skipped.json")


def _write_skipped(context: Context, backend: Backend, options: BuildOptions, reason: str) -> None:
    pin = SourcePin.load(find_lane(context.layout, LANE).pin)
    folder = backend_folder(context.layout, backend.name, pin.version, arch=target_arch(options))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise storage_error(exc, f"cannot write {folder.parent}") from exc
    write_atomic(
        _skipped_path(folder), render_document(SkippedRecord(backend=backend.name, reason=reason[:2000]))
    )


def _skipped_reason(folder: Path) -> str:
    try:
        data = _skipped_path(folder).read_bytes()
        return read_document(
            SkippedRecord, data, schema=_SKIPPED_SCHEMA, origin=str(folder), max_bytes=_MAX_BYTES
        ).reason
    except (OSError, MalformedError, UnknownSchemaError, OpencotiError):
        return ""
