"""The GPU libraries of the ape lane: upstream's script, judged, inspected, recorded beside the library."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ci.ape.build import check_options, ggml_commit, load_version, prepare
from ci.ape.records import ApeBackendRecord, write_record
from ci.ape.script_log import ObjectCount, check_script
from ci.ape.sideload import side_load
from ci.ape.stages import SCRIPTS, script_output, script_stage
from ci.ape.toolchain import ScriptToolchain
from ci.build import BuildOptions, backend_folder, host_arch, publish
from ci.context import Context
from ci.dso.elf import ElfFacts, inspect_elf
from ci.dso.rules import check_elf, gpu_rules, role_of, unresolved
from ci.engines.host import HostEngine
from ci.engines.model import Engine
from ci.patches.apply import AppliedTree
from ci.paths import Layout
from ci.stages.runner import StageResult, run_stage
from ci.toolchains.host import HostToolchain
from ci.toolchains.stubs import stub_symbols
from ci.toolchains.table import Backend, load_table
from opencoti.errors import BuildError, MissingError, OpencotiError, storage_error

_SHARED_SCRIPT: Final = "build-functions.sh"


@dataclass(frozen=True, kw_only=True)
class BuiltLibrary:
    """A GPU library in its folder."""

    record: ApeBackendRecord
    result: StageResult
    folder: Path

    @property
    def path(self) -> Path:
        """The library."""
        return self.folder / self.record.library


def build_library(
    context: Context, backend: Backend, options: BuildOptions, *, engine: Engine | None = None
) -> BuiltLibrary:
    """Build one GPU library with upstream's script, judge what it did, and put it into `dist/backends`.

    Raises:
        UsageError: an option that this lane does not have.
        MissingError: `ape-engine-host-only`, or the toolkit cannot be had.
        BuildError: the script failed, or says that it did not and did; `ape-library-unsound`.
    """
    check_options(context.layout, options)
    source = prepare(context)
    takes_output = _takes_output(source.folder, backend)
    stage = script_stage(
        backend,
        arch=host_arch(),
        source_tree=source.tree,
        ggml_commit=ggml_commit(context, source),
        takes_output=takes_output,
    )
    counts: list[ObjectCount] = []

    def accept(out: Path, log: Path) -> None:
        counts.append(check_script(backend.kind, log, out / "home"))
        library = out / script_output(backend, takes_output=takes_output)
        _require_sound(inspect_elf(library), backend, context.layout)

    # The objects are not kept, so a finished stage would have none to count: the record has their number.
    result = run_stage(
        stage,
        engine or _host_engine(context, options),
        layout=context.layout,
        source=source.folder,
        console=context.console,
        jobs=options.jobs,
        use_cache=options.use_cache,
        accept=accept,
    )
    folder = publish(
        result, backend_folder(context.layout, backend.name, source.pin.version, arch=host_arch())
    )
    record = _record(backend, source, result, folder, counts)
    write_record(folder, record)
    if not record.targets and backend.kind != "vulkan":
        context.console.warn(f"{record.library} holds code for no GPU that could be read out of it")
    return BuiltLibrary(record=record, result=result, folder=folder)


def build_libraries(
    context: Context, options: BuildOptions, *, engine: Engine | None = None
) -> tuple[list[BuiltLibrary], dict[str, str]]:
    """Build every GPU library that can be built here; return them, and why the others are not there.

    Raises:
        BuildError: `ape-no-library-built`, not one succeeded.
    """
    built: list[BuiltLibrary] = []
    skipped: dict[str, str] = {}
    for backend in load_table(context.layout.table).gpu:
        try:
            built.append(build_library(context, backend, options, engine=engine))
        except OpencotiError as error:
            skipped[backend.name] = str(error)
            context.console.warn(f"backend {backend.name} is skipped: {error}")
    if not built:
        raise BuildError(
            "ape-no-library-built",
            "no GPU library of lane ape could be built",
            why="; ".join(f"{name}: {reason}" for name, reason in skipped.items()),
            hint="`python -m ci doctor` shows what is missing",
        )
    return built, skipped


def mirror_to_home(
    context: Context, built: list[BuiltLibrary], *, environ: Mapping[str, str] | None = None
) -> tuple[Path, ...]:
    """Copy built libraries to where an engine of this version looks; see `ci.ape.sideload`."""
    version = load_version(context.layout)
    paths = [item.path for item in built]
    return side_load(paths, version, context.console, environ=os.environ if environ is None else environ)


def _takes_output(tree: Path, backend: Backend) -> bool:
    """Tell whether a script, or what it shares with the others, knows `--output`."""
    folder = tree / "llamafile"
    files = [folder / name for name in (SCRIPTS[backend.kind].name, _SHARED_SCRIPT)]
    try:
        return any(b"--output)" in path.read_bytes() for path in files if path.is_file())
    except OSError as exc:
        raise storage_error(exc, f"cannot read the scripts in {folder}") from exc


def _host_engine(context: Context, options: BuildOptions) -> Engine:
    if options.engine == "docker":
        raise MissingError(
            "ape-engine-host-only",
            "GPU libraries of lane ape are built by engine host",
            why="upstream's scripts call bash, find, gcc and g++, which the images do not hold",
            hint="leave --engine docker out: toolkits of this machine are used (OPENCOTI_CUDA_PATH, …)",
        )
    table = load_table(context.layout.table)

    def find(name: str, layout: Layout) -> HostToolchain:
        return ScriptToolchain(table.backend(name.removeprefix("ape-")), layout)

    return HostEngine(context.layout, find=find)


def _record(
    backend: Backend, source: AppliedTree, result: StageResult, folder: Path, counts: list[ObjectCount]
) -> ApeBackendRecord:
    script = SCRIPTS[backend.kind]
    (sha256,) = result.files.values()
    return ApeBackendRecord(
        backend=backend.name,
        arch=host_arch(),
        source_tree=source.tree,
        library=script.library,
        sha256=sha256,
        toolchain=backend.toolchain,
        toolchain_id=result.toolchain_id,
        objects=counts[-1].linked if counts else None,
        targets=inspect_elf(folder / script.library).gpu_targets,
    )


def _require_sound(facts: ElfFacts, backend: Backend, layout: Layout) -> None:
    """Refuse a library that is not what the engine can load: see `ci.dso.rules`."""
    role = role_of(SCRIPTS[backend.kind].library)
    assert role in ("cuda", "hip", "vulkan")
    rules = gpu_rules(
        role,
        arch=host_arch(),
        targets=(),
        needed=backend.needed,
        # The C library of this machine is what it is; the manifest says which.
        glibc_ceiling=facts.glibc_floor or backend.glibc,
        lane="ape",
    )
    rules = replace(rules, targets=None)  # upstream's scripts have their own lists
    problems = [
        *check_elf(facts, rules),
        # It stands alone: the engine lends it nothing.
        *unresolved([facts], provided=stub_symbols(layout.containers, backend)),
    ]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise BuildError(
            "ape-library-unsound",
            f"the library of {backend.name} is not what the engine can load",
            why=f"{problems[0]}{more}",
            hint="what nothing exports is mostly in a source of ggml's core that the scripts do not compile",
        )
