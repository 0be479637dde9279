"""What the pipeline calls to package: gathers built files and measured facts, then assembles.

Always the bare engine; with a model, an artifact with both as well. Builds the loader when it is missing;
everything else was built by the stages before. What would be done without doing it is `planning`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ci.build import BackendBuild
from ci.cachefile import kept_file
from ci.context import Context
from ci.dso.elf import ElfFacts, inspect_elf
from ci.dso.rules import check_elf, rules_for_file, unresolved
from ci.package.arguments import embedder_args, reads_models_in_place
from ci.package.artifact import Packaged, PackageInputs, assemble
from ci.package.backends import BackendChoice, choose_backends
from ci.package.bundle import Bundle
from ci.package.content import model_member
from ci.package.gpu import GpuParts, find_gpu
from ci.package.loader import build_loader, loader_source_hash
from ci.package.naming import Lane, size_warnings
from ci.package.tag import read_tag
from ci.repository import repository_facts
from ci.sources.vendoring import origin_text
from ci.stages import elf
from ci.toolchains.host import find_toolchain
from opencoti.errors import BuildError, ConfigError, UsageError
from opencoti.manifest import Dso, HostBinary, Patch, Source, Toolchain

# Member name to path in the pinned tree: the licences of everything that is linked into the engine.
UPSTREAM_LICENCES = {
    "LICENSE.llama.cpp": "LICENSE",
    "LICENSE.nlohmann-json": "licenses/LICENSE-jsonhpp",
    "LICENSE.cpp-httplib": "vendor/cpp-httplib/LICENSE",
}


@dataclass(frozen=True, kw_only=True)
class PackageOptions:
    """The words of `python -m ci package`.

    Attributes:
        args_file: `.args` of the artifact with a model if there is one, else of the bare engine.
        model: GGUF to embed.
        mmproj: its multimodal projector.
        backends: what `--backends` named, None for all that there are.
        arch: what it is to run on, None for the architecture of this machine.
        is_bundled: embed the vendor's libraries (cuBLAS) too.
        flavor: suffix of a second artifact of one version; `cuda12` also picks that generation of CUDA.
    """

    out: Path | None = None
    args_file: Path | None = None
    model: Path | None = None
    mmproj: Path | None = None
    backends: tuple[str, ...] | None = None
    arch: str | None = None
    flavor: str | None = None
    is_cpu_only: bool = False
    is_bundled: bool = False

    @property
    def models(self) -> tuple[Path, ...]:
        """The model files."""
        return tuple(path for path in (self.model, self.mmproj) if path is not None)


@dataclass(frozen=True, kw_only=True)
class PackagedSet:
    """What one call of `package` made."""

    engine: Packaged
    embedder: Packaged | None = None


def package(context: Context, built: BackendBuild, options: PackageOptions) -> Packaged:
    """Assemble the engine artifact alone; see `package_set`."""
    return package_set(context, built, replace(options, model=None, mmproj=None)).engine


def package_set(context: Context, built: BackendBuild, options: PackageOptions) -> PackagedSet:
    """Assemble the engine artifact and, with a model, the one that holds both.

    An artifact that is exactly what the inputs give is left alone.

    Raises:
        OpencotiError: an input is missing, or the result cannot be written.
    """
    check_request(options)
    gpu = find_gpu(context, built)
    choice = choose_backends(
        options.backends,
        built=[built.backend, *gpu.records],
        is_cpu_only=options.is_cpu_only,
        reasons=gpu.reasons,
        flavor=options.flavor,
    )
    for item in choice.skipped:
        context.console.warn(f"{item.backend} is not in the artifact: {item.reason}")
    return assemble_set(context, _inputs(context, built, options, choice, gpu), options)


def assemble_set(context: Context, inputs: PackageInputs, options: PackageOptions) -> PackagedSet:
    """Assemble the engine artifact from its inputs and, with a model, the one that holds both."""
    out = options.out or context.layout.dist / "llamafile"
    engine = _assemble(context, inputs, out)
    if options.model is None:
        return PackagedSet(engine=engine)
    return PackagedSet(engine=engine, embedder=_assemble(context, _with_model(inputs, options), out))


def check_request(options: PackageOptions) -> None:
    """Refuse what can be seen to be wrong before anything is built.

    Raises:
        UsageError: `mmproj-without-model`; `member-unreadable`.
        ConfigError: `model-not-gguf`, `model-name-refused`, `args-unreadable`.
    """
    if options.mmproj is not None and options.model is None:
        raise UsageError(
            "mmproj-without-model",
            f"--mmproj {options.mmproj} has no model to go with",
            hint="add --with-model PATH",
        )
    for path in options.models:
        model_member(path)
    read_args(options)


def _assemble(context: Context, inputs: PackageInputs, out: Path) -> Packaged:
    done = assemble(inputs, out, context.console)
    for text in size_warnings(done.artifact.name, done.size, inputs.lane):
        context.console.warn(text)
    return done


def _with_model(inputs: PackageInputs, options: PackageOptions) -> PackageInputs:
    """Return the inputs of the artifact with the model, from those of the bare engine."""
    assert options.model is not None
    return replace(
        inputs,
        product="embedder",
        models=options.models,
        parts=frozenset({options.model.name} if reads_models_in_place(inputs.entry) else ()),
        args=embedder_arguments(inputs.entry, options, lane=inputs.lane),
    )


def embedder_arguments(engine: Path, options: PackageOptions, *, lane: Lane = "elf") -> bytes:
    """Return the `.args` of the artifact with a model: the file that was given, or generated ones."""
    assert options.model is not None
    given = read_args(options)
    if given is not None:
        return given
    mmproj = options.mmproj.name if options.mmproj else None
    return embedder_args(engine, lane=lane, model=options.model.name, mmproj=mmproj)


def _inputs(
    context: Context,
    built: BackendBuild,
    options: PackageOptions,
    choice: BackendChoice,
    gpu: GpuParts,
) -> PackageInputs:
    facts = {
        name: inspect_elf(built.folder / name, with_instructions=True)
        for name in elf.product_names(built.arch)
    }
    gpu_facts = gpu.facts(choice.gpu)
    bundle = gpu.bundle(context, choice.gpu, built.arch) if options.is_bundled else Bundle()
    require_sound(facts, built.arch, beside=gpu_facts, provided=gpu.provided(choice.gpu))
    variants = elf.variant_names(built.arch)
    repository = repository_facts(context.layout.root)
    return PackageInputs(
        loader=_loader(context, built.arch),
        entry=built.folder / elf.SERVER,
        libraries=(
            *(built.folder / name for name in (*elf.CORE_LIBRARIES, *variants)),
            *gpu.libraries(choice.gpu),
            *bundle.libraries,
        ),
        licences={**_licences(context, built), **bundle.licences},
        args=None if options.model else read_args(options),
        version_string=built.version_string,
        tag=read_tag(context.layout.opencoti_tag),
        arch=built.arch,
        git_commit=repository.commit,
        git_dirty=repository.is_dirty,
        sources=(source_of(built),),
        patches=patches_of(built),
        patch_set_hash=built.source.patch_set_hash,
        toolchains=(*_toolchains(built), *gpu.toolchains(choice.gpu)),
        host_binary=_host_binary(facts[elf.SERVER]),
        cpu_variants=elf.CPU_VARIANTS[built.arch],
        dsos=(
            *(_dso(name, facts[name], built) for name in variants),
            *gpu.dsos(choice.gpu, gpu_facts),
        ),
        skipped_backends=choice.skipped,
        partial=gpu.partial(choice.gpu),
        flavor=options.flavor,
        is_cpu_only=choice.is_cpu_only,
    )


def require_sound(
    facts: Mapping[str, ElfFacts],
    arch: str,
    *,
    beside: Mapping[str, ElfFacts] | None = None,
    provided: frozenset[str] = frozenset(),
) -> None:
    """Refuse products for another processor, that break the rules of their kind, or do not fit together.

    Args:
        facts: the products of the CPU build, by file name.
        arch: the architecture that they must be for.
        beside: GPU libraries, whose own rules were checked when they were built.
        provided: symbols that libraries of the user's machine provide.

    Raises:
        BuildError: `product-unsound`; names the file and the rule.
    """
    problems = [
        problem
        for name, found in facts.items()
        if (rules := rules_for_file(name, arch)) is not None
        for problem in check_elf(found, rules)
    ]
    problems += unresolved([*facts.values(), *(beside or {}).values()], provided=provided)
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise BuildError(
            "product-unsound",
            "a built file is not what it must be",
            why=f"{problems[0]}{more}",
            hint="see `python -m ci inspect` on the files in dist/backends",
        )


def _loader(context: Context, arch: str) -> Path:
    """Return the compiled loader, from the cache when sources and compiler are the same."""

    def make(path: Path) -> None:
        zig = find_toolchain("zig", context.layout).prepare(context.console).parent / "zig" / "zig"
        context.console.info("compiling the loader")
        build_loader(zig, path, arch=arch, cache=context.layout.cache / "tool-cache" / "loader")

    return kept_file(loader_path(context, arch), make)


def loader_path(context: Context, arch: str) -> Path:
    """Return where the loader of these sources and this compiler lies, or will lie."""
    toolchain = find_toolchain("zig", context.layout)
    key = f"{loader_source_hash()[:16]}-{toolchain.id[:16]}"
    return context.layout.cache / "loaders" / key / f"loader-{arch}"


def _licences(context: Context, built: BackendBuild) -> dict[str, Path | bytes]:
    licences: dict[str, Path | bytes] = {
        name: built.source.folder / path for name, path in UPSTREAM_LICENCES.items()
    }
    licences["LICENSE.opencoti"] = context.layout.root / "LICENSE"
    return licences


def read_args(options: PackageOptions) -> bytes | None:
    """Return the bytes of `--with-args`, None without it. Raises `ConfigError` (`args-unreadable`)."""
    if options.args_file is None:
        return None
    try:
        return options.args_file.read_bytes()
    except OSError as exc:
        raise ConfigError(
            "args-unreadable", f"cannot read {options.args_file}", why=exc.strerror or str(exc)
        ) from exc


def source_of(built: BackendBuild) -> Source:
    """Return what the manifest says of the source."""
    pin = built.source.pin
    return Source(
        name=pin.name,
        origin=origin_text(pin),
        commit=pin.commit,
        tag=pin.tag,
        tree=built.source.base_tree,
        patched_tree=built.source.tree,
    )


def patches_of(built: BackendBuild) -> tuple[Patch, ...]:
    """Return what the manifest says of the patches."""
    return tuple(
        Patch(
            series=built.source.pin.name,
            name=patch.name,
            sha256=patch.sha256,
            title=patch.title,
            tree=patch.tree,
        )
        for patch in built.source.patches
    )


def _toolchains(built: BackendBuild) -> tuple[Toolchain, ...]:
    record = built.result.toolchain
    return (
        Toolchain(
            name="zig",
            engine="docker" if built.result.engine == "docker" else "host",
            id=built.result.toolchain_id,
            image_digest=record.get("image_id"),
        ),
    )


def _host_binary(facts: ElfFacts) -> HostBinary:
    return HostBinary(name=elf.SERVER, needed=facts.needed, glibc_floor=facts.glibc_floor)


def _dso(name: str, facts: ElfFacts, built: BackendBuild) -> Dso:
    return Dso(
        name=name,
        backend="cpu",
        sha256=built.result.files[f"bin/{name}"],
        needed=facts.needed,
        glibc_floor=facts.glibc_floor,
        libstdcxx_floor=facts.libstdcxx_floor,
    )
