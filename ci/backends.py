"""GPU backends: built from the `ggml` folder of the patched source, measured, recorded beside the library."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ci.backend_records import BackendRecord, write_record
from ci.build import BuildOptions, backend_folder, prepare_source, publish, target_arch
from ci.context import Context
from ci.dso.elf import ElfFacts, inspect_elf
from ci.dso.rules import Rules, check_elf, gpu_rules, role_of
from ci.engines import select_engine
from ci.git import Repository
from ci.patches.apply import AppliedTree
from ci.stages.gpu import SUBTREE, gpu_stage
from ci.stages.runner import StageResult, run_stage
from ci.toolchains.stubs import stub_symbols
from ci.toolchains.table import Backend, Kind
from opencoti.errors import BuildError, MissingError

# A library that zig made takes `new` and `delete` from the first one that has them; those of the engine are
# made by zig too.
_ALLOCATION: Final = ("_Znw", "_Zna", "_Zdl", "_Zda")
# What ggml's own library exports to its backends.
_GGML_PREFIXES: Final = ("ggml_", "gguf_", "quantize_", "dequantize_")


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
    write_record(folder, record)
    return BuiltBackend(record=record, result=result, folder=folder)


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
        key=result.key,
        source_tree=tree,
        library=backend.library,
        sha256=result.files[f"bin/{backend.library}"],
        engine=result.engine,
        toolchain=backend.toolchain,
        toolchain_id=result.toolchain_id,
        image_digest=result.toolchain.get("image_id"),
        asked=options.archs,
        has_flash_attention=options.has_flash_attention,
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
