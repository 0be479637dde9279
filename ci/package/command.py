"""What the pipeline calls to package: gathers built files and measured facts, then assembles.

Builds the loader when it is missing; everything else was built by the stages before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ci.build import BackendBuild
from ci.context import Context
from ci.dso.elf import ElfFacts, inspect_elf
from ci.dso.rules import check_elf, role_of, rules_for, unresolved
from ci.package.artifact import Packaged, PackageInputs, assemble
from ci.package.loader import build_loader, loader_source_hash
from ci.package.tag import read_tag
from ci.repository import repository_facts
from ci.sources.vendoring import origin_text
from ci.stages import elf
from ci.toolchains.host import find_toolchain
from opencoti.errors import BuildError, ConfigError
from opencoti.manifest import Dso, HostBinary, Patch, Source, Toolchain

# Member name to path in the pinned tree: the licences of everything that is linked into the engine.
_UPSTREAM_LICENCES = {
    "LICENSE.llama.cpp": "LICENSE",
    "LICENSE.nlohmann-json": "licenses/LICENSE-jsonhpp",
    "LICENSE.cpp-httplib": "vendor/cpp-httplib/LICENSE",
}


@dataclass(frozen=True, kw_only=True)
class PackageOptions:
    """The words of `python -m ci package`."""

    out: Path | None = None
    args_file: Path | None = None
    is_cpu_only: bool = True


def package(context: Context, built: BackendBuild, options: PackageOptions) -> Packaged:
    """Assemble the engine artifact, unless the one in place is exactly what the inputs give.

    Raises:
        OpencotiError: an input is missing, or the result cannot be written.
    """
    out = options.out or context.layout.dist / "llamafile"
    return assemble(_inputs(context, built, options), out, context.console)


def _inputs(context: Context, built: BackendBuild, options: PackageOptions) -> PackageInputs:
    facts = {name: inspect_elf(built.folder / name) for name in elf.product_names(built.arch)}
    require_sound(facts)
    variants = elf.variant_names(built.arch)
    repository = repository_facts(context.layout.root)
    return PackageInputs(
        loader=_loader(context, built.arch),
        entry=built.folder / elf.SERVER,
        libraries=tuple(built.folder / name for name in (*elf.CORE_LIBRARIES, *variants)),
        licences=_licences(context, built),
        args=_args(options),
        version_string=built.version_string,
        tag=read_tag(context.layout.opencoti_tag),
        arch=built.arch,
        git_commit=repository.commit,
        git_dirty=repository.is_dirty,
        sources=(_source(built),),
        patches=_patches(built),
        patch_set_hash=built.source.patch_set_hash,
        toolchains=_toolchains(context, built),
        host_binary=_host_binary(facts[elf.SERVER]),
        cpu_variants=elf.CPU_VARIANTS[built.arch],
        dsos=tuple(_dso(name, facts[name], built) for name in variants),
        is_cpu_only=options.is_cpu_only,
    )


def require_sound(facts: Mapping[str, ElfFacts]) -> None:
    """Refuse products that differ from the rules of their kind, or that cannot be loaded together.

    Raises:
        BuildError: `product-unsound`; names the file and the rule.
    """
    problems = [
        problem
        for name, found in facts.items()
        if (role := role_of(name)) is not None
        for problem in check_elf(found, rules_for(role))
    ]
    problems += unresolved(facts.values())
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
    toolchain = find_toolchain("zig", context.layout)
    path = (
        context.layout.cache
        / "loaders"
        / f"{loader_source_hash()[:16]}-{toolchain.id[:16]}"
        / f"loader-{arch}"
    )
    if not path.is_file():
        zig = toolchain.prepare(context.console).parent / "zig" / "zig"
        context.console.info("compiling the loader")
        build_loader(zig, path, arch=arch, cache=context.layout.cache / "tool-cache" / "loader")
    return path


def _licences(context: Context, built: BackendBuild) -> dict[str, Path | bytes]:
    licences: dict[str, Path | bytes] = {
        name: built.source.folder / path for name, path in _UPSTREAM_LICENCES.items()
    }
    licences["LICENSE.opencoti"] = context.layout.root / "LICENSE"
    return licences


def _args(options: PackageOptions) -> bytes | None:
    if options.args_file is None:
        return None
    try:
        return options.args_file.read_bytes()
    except OSError as exc:
        raise ConfigError(
            "args-unreadable", f"cannot read {options.args_file}", why=exc.strerror or str(exc)
        ) from exc


def _source(built: BackendBuild) -> Source:
    pin = built.source.pin
    return Source(
        name=pin.name,
        origin=origin_text(pin),
        commit=pin.commit,
        tag=pin.tag,
        tree=built.source.base_tree,
        patched_tree=built.source.tree,
    )


def _patches(built: BackendBuild) -> tuple[Patch, ...]:
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


def _toolchains(context: Context, built: BackendBuild) -> tuple[Toolchain, ...]:
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
