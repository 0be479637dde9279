"""Packaging the ape lane: the engine, its GPU libraries under the names that it looks for, a model if wanted.

Our zip writer does what upstream's zipalign does and more: see docs/reference/artifact.md. How an artifact is
put together is `ci.package.artifact`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ci.ape.records import ApeBackendRecord, read_record
from ci.ape.stages import HOST
from ci.build import BackendBuild, backend_folder, host_arch
from ci.context import Context
from ci.dso.elf import inspect_elf
from ci.package.artifact import PackageInputs
from ci.package.backends import BackendChoice, choose_backends
from ci.package.command import (
    PackagedSet,
    PackageOptions,
    assemble_set,
    check_request,
    patches_of,
    read_args,
    source_of,
)
from ci.package.tag import read_tag
from ci.repository import repository_facts
from ci.toolchains.host import COSMOCC
from ci.toolchains.table import load_table
from opencoti.errors import ConfigError, UsageError
from opencoti.manifest import Dso, HostBinary, Toolchain

# Member name to path in the patched tree. The first must be there, the others where upstream has them.
LICENCES: Final[Mapping[str, str]] = {
    "LICENSE.llamafile": "LICENSE",
    "LICENSE.llama.cpp": "llama.cpp/LICENSE",
}


@dataclass(frozen=True, kw_only=True)
class Libraries:
    """The GPU libraries that are there, and why others are not."""

    records: Mapping[str, ApeBackendRecord]
    reasons: Mapping[str, str]
    folders: Mapping[str, Path]

    def choose(self, options: PackageOptions) -> BackendChoice:
        """Decide on the backends. Raises like `choose_backends`."""
        return choose_backends(
            options.backends,
            built=["cpu", *self.records],
            is_cpu_only=options.is_cpu_only,
            reasons=self.reasons,
            flavor=options.flavor,
        )

    def paths(self, chosen: tuple[str, ...]) -> tuple[Path, ...]:
        """Return the files of the chosen backends."""
        return tuple(self.folders[name] / self.records[name].library for name in chosen)


def package_set(context: Context, built: BackendBuild, options: PackageOptions) -> PackagedSet:
    """Assemble the engine artifact and, with a model, the one that holds both.

    Raises:
        UsageError: `ape-cublas`, the libraries of this lane need none of CUDA's own.
        ConfigError: `ape-licence-missing`.
        OpencotiError: an input is missing, or the result cannot be written.
    """
    check_ape_request(options)
    libraries = find_libraries(context, built.source.pin.version, tree=built.source.tree)
    choice = libraries.choose(options)
    for item in choice.skipped:
        context.console.warn(f"{item.backend} is not in the artifact: {item.reason}")
    return assemble_set(context, _inputs(context, built, options, choice, libraries), options)


def check_ape_request(options: PackageOptions) -> None:
    """Refuse what can be seen to be wrong before anything is built. Raises like `check_request`."""
    check_request(options)
    if options.is_bundled:
        raise UsageError(
            "ape-cublas",
            "--cublas bundle is for lane elf",
            why="the CUDA library of lane ape is built with TinyBLAS and needs none of CUDA's own libraries",
        )


def find_libraries(context: Context, version: str, *, tree: str | None) -> Libraries:
    """Look for built GPU libraries of this version, from this patched source."""
    records: dict[str, ApeBackendRecord] = {}
    reasons: dict[str, str] = {}
    for backend in load_table(context.layout.table).gpu:
        record, why = read_record(context.layout, backend, version, arch=host_arch(), tree=tree)
        if record is None:
            reasons[backend.name] = why
        else:
            records[backend.name] = record
    return Libraries(
        records=records,
        reasons=reasons,
        folders={name: backend_folder(context.layout, name, version, arch=host_arch()) for name in records},
    )


def _inputs(
    context: Context,
    built: BackendBuild,
    options: PackageOptions,
    choice: BackendChoice,
    libraries: Libraries,
) -> PackageInputs:
    repository = repository_facts(context.layout.root)
    engine = built.folder / HOST
    return PackageInputs(
        loader=engine,
        entry=engine,
        libraries=libraries.paths(choice.gpu),
        licences=_licences(context, built.source.folder),
        args=None if options.model else read_args(options),
        version_string=built.version_string,
        tag=read_tag(context.layout.opencoti_tag),
        arch=built.arch,
        flavor=options.flavor,
        lane="ape",
        git_commit=repository.commit,
        git_dirty=repository.is_dirty,
        sources=(source_of(built),),
        patches=patches_of(built),
        patch_set_hash=built.source.patch_set_hash,
        toolchains=(_toolchain(built), *(_script_toolchain(libraries.records[name]) for name in choice.gpu)),
        host_binary=HostBinary(name=HOST),
        cpu_variants=(),
        dsos=tuple(_dso(context, name, libraries) for name in choice.gpu),
        skipped_backends=choice.skipped,
        partial=tuple(f"{name}: built with the tools of one machine" for name in choice.gpu),
        is_cpu_only=choice.is_cpu_only,
    )


def _licences(context: Context, tree: Path) -> dict[str, Path | bytes]:
    found: dict[str, Path | bytes] = {
        name: tree / path for name, path in LICENCES.items() if (tree / path).is_file()
    }
    if next(iter(LICENCES)) not in found:
        raise ConfigError(
            "ape-licence-missing",
            "the source of lane ape has no LICENSE",
            why=f"an artifact passes it on; looked for {tree / 'LICENSE'}",
            hint="the submodule is not upstream's repository",
        )
    return {**found, "LICENSE.opencoti": context.layout.root / "LICENSE"}


def _toolchain(built: BackendBuild) -> Toolchain:
    return Toolchain(
        name=COSMOCC,
        engine="docker" if built.result.engine == "docker" else "host",
        id=built.result.toolchain_id,
        image_digest=built.result.toolchain.get("image_id"),
    )


def _script_toolchain(record: ApeBackendRecord) -> Toolchain:
    return Toolchain(name=record.toolchain, engine="host", id=record.toolchain_id)


def _dso(context: Context, name: str, libraries: Libraries) -> Dso:
    record = libraries.records[name]
    facts = inspect_elf(libraries.folders[name] / record.library)
    return Dso(
        name=record.library,
        backend=name,
        sha256=record.sha256,
        archs=record.targets,
        needed=facts.needed,
        glibc_floor=facts.glibc_floor,
        libstdcxx_floor=facts.libstdcxx_floor,
        min_driver=load_table(context.layout.table).backend(name).min_driver,
    )
