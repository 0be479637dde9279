"""The GPU backends of an artifact: which built ones fit, their files, and what the manifest says of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ci.backend_records import BackendRecord, read_built
from ci.backends import ggml_tree
from ci.build import BackendBuild, backend_folder
from ci.context import Context
from ci.dso.elf import ElfFacts, inspect_elf
from ci.package.bundle import Bundle, bundle_of, nothing_to_bundle
from ci.package.plan import PlannedMember
from ci.toolchains.stubs import stub_symbols
from ci.toolchains.table import Backend, Table, load_table
from opencoti.manifest import Dso, Toolchain


@dataclass(frozen=True, kw_only=True)
class GpuParts:
    """Built GPU backends.

    Attributes:
        records: by name of the backend.
        reasons: why another one is not there, by name.
        folders: where each lies.
    """

    table: Table
    containers: Path
    records: Mapping[str, BackendRecord]
    reasons: Mapping[str, str]
    folders: Mapping[str, Path]

    def libraries(self, chosen: tuple[str, ...]) -> tuple[Path, ...]:
        """Return the library of each chosen backend."""
        return tuple(self.folders[name] / self.records[name].library for name in chosen)

    def facts(self, chosen: tuple[str, ...]) -> dict[str, ElfFacts]:
        """Inspect the chosen libraries; by file name."""
        return {path.name: inspect_elf(path) for path in self.libraries(chosen)}

    def provided(self, chosen: tuple[str, ...]) -> frozenset[str]:
        """Return the symbols that the vendors' libraries provide."""
        names = (stub_symbols(self.containers, self.table.backend(name)) for name in chosen)
        return frozenset[str]().union(*names)

    def dsos(self, chosen: tuple[str, ...], facts: Mapping[str, ElfFacts]) -> tuple[Dso, ...]:
        """Return what the manifest says of each library."""
        return tuple(self._dso(name, facts[self.records[name].library]) for name in chosen)

    def toolchains(self, chosen: tuple[str, ...]) -> tuple[Toolchain, ...]:
        """Return what the manifest says of what compiled them."""
        return tuple(
            Toolchain(
                name=record.toolchain,
                engine="docker" if record.engine == "docker" else "host",
                id=record.toolchain_id,
                image_digest=record.image_digest,
            )
            for record in (self.records[name] for name in chosen)
        )

    def bundle(self, context: Context, chosen: tuple[str, ...], arch: str) -> Bundle:
        """Return the vendors' libraries of the chosen backends that have any to embed.

        Raises:
            UsageError: `bundle-unknown`, none of them has.
        """
        parts = [bundle_of(context, backend, arch) for backend in self._with_bundle(chosen)]
        return Bundle(
            libraries=tuple(path for part in parts for path in part.libraries),
            licences={name: path for part in parts for name, path in part.licences.items()},
        )

    def planned_bundle(self, chosen: tuple[str, ...]) -> Iterator[PlannedMember]:
        """Return what `bundle` would add, without fetching it. Raises as it does."""
        for part in (part for backend in self._with_bundle(chosen) for part in backend.bundle):
            for file in part.files:
                yield PlannedMember(name=file, mode=0o755, size=None, origin=f"wheel {part.wheel}")
            yield PlannedMember(
                name=f"LICENSE.{part.wheel}", mode=0o644, size=None, origin=f"wheel {part.wheel}"
            )

    def _with_bundle(self, chosen: tuple[str, ...]) -> list[Backend]:
        found = [backend for backend in map(self.table.backend, chosen) if backend.bundle]
        if not found:
            raise nothing_to_bundle(", ".join(chosen) or "an artifact without a GPU backend")
        return found

    def partial(self, chosen: tuple[str, ...]) -> tuple[str, ...]:
        """Return what trial builds left out."""
        return tuple(text for name in chosen for text in self.records[name].partial)

    def _dso(self, name: str, facts: ElfFacts) -> Dso:
        record = self.records[name]
        return Dso(
            name=record.library,
            backend=name,
            sha256=record.sha256,
            archs=facts.gpu_targets or record.features,
            needed=facts.needed,
            glibc_floor=facts.glibc_floor,
            libstdcxx_floor=facts.libstdcxx_floor,
            min_driver=self.table.backend(name).min_driver,
        )


def find_gpu(context: Context, built: BackendBuild) -> GpuParts:
    """Look for built GPU backends that fit a CPU build: the same source and the same architecture."""
    return read_gpu(context, built.source.pin.version, arch=built.arch, tree=ggml_tree(built.source))


def read_gpu(context: Context, version: str, *, arch: str, tree: str | None) -> GpuParts:
    """Look for built GPU backends; see `ci.backend_records.read_built`."""
    table = load_table(context.layout.table)
    records, reasons = read_built(context, table, version, arch=arch, tree=tree)
    return GpuParts(
        table=table,
        containers=context.layout.containers,
        records=records,
        reasons=reasons,
        folders={name: backend_folder(context.layout, name, version, arch=arch) for name in records},
    )
