"""The content of a staged release: its small files whole, the parts of large ones by their digests.

Reads, and writes nothing. Names are checked here, before anything is placed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from opencoti.console import Console
from opencoti.errors import ConfigError, VerificationError, storage_error
from opencoti.manifest import CHUNKS_SUFFIX
from opencoti.minisign import SIGNATURE_SUFFIX
from opencoti.trust.comment import INDEX_NAME
from release.planning.limits import asset_problems, split
from release.planning.local import LocalArtifact
from release.planning.model import PLAN_NAME, Plan, PlannedAsset, dump_plan
from release.planning.names import ROOT_PATTERNS, SBOM_SUFFIX, provenance_name
from release.sbom import render_sbom
from release.staging.gather import Gathered
from release.staging.place import PartDigest, hash_parts
from release.sums import NOTES_NAME, SUMS_NAME


@dataclass(frozen=True, kw_only=True)
class Content:
    """Everything but the index.

    Attributes:
        files: small files by name.
        parts: of each artifact, by its name; empty for one in one piece.
        large: names of artifacts and parts as they will lie in the folder.
    """

    files: Mapping[str, bytes]
    parts: Mapping[str, tuple[PartDigest, ...]]
    large: frozenset[str]

    @property
    def names(self) -> set[str]:
        """All names."""
        return {*self.files, *self.large}


def make_content(plan: Plan, gathered: Gathered, trust_folder: Path, console: Console) -> Content:
    """Return what will be staged.

    Raises:
        ConfigError: `part-size-unfit`; as `asset_problems`.
        VerificationError: `evidence-name-taken`, `stage-hash-differs`.
        StorageError: a file cannot be read.
    """
    parts = {item.manifest.name: _hash_parts(item, plan, console) for item in gathered.artifacts}
    large = frozenset(name for item in gathered.artifacts for name in _large_names(item, parts))
    files = _small_files(plan, gathered) | _roots(trust_folder)
    evidence = {proof.path.name: proof.data for proof in gathered.evidence}
    _require_names(plan, files, large, evidence)
    return Content(files=files | evidence, parts=parts, large=large)


def _hash_parts(item: LocalArtifact, plan: Plan, console: Console) -> tuple[PartDigest, ...]:
    manifest = item.manifest
    parts = split(manifest.name, manifest.size, plan.limits)
    if parts and plan.limits.part_bytes % manifest.chunks.chunk_size:
        raise ConfigError(
            "part-size-unfit",
            f"parts of {plan.limits.part_bytes} bytes cannot carry {manifest.name}",
            why=f"a part must hold whole chunks of {manifest.chunks.chunk_size} bytes",
            hint="plan with another --part-size",
        )
    if not parts:
        return ()
    console.info(f"{manifest.name}: {len(parts)} parts")
    return hash_parts(item.path, [(part.name, part.size) for part in parts], manifest.sha256)


def _large_names(item: LocalArtifact, parts: Mapping[str, tuple[PartDigest, ...]]) -> list[str]:
    name = item.manifest.name
    return [part.name for part in parts[name]] or [name]


def _small_files(plan: Plan, gathered: Gathered) -> dict[str, bytes]:
    """Return what is made or read whole: plan, manifests, chunk tables, bills of materials."""
    files = {PLAN_NAME: dump_plan(plan)}
    for item in gathered.artifacts:
        name = item.manifest.name
        files[item.manifest_name] = item.manifest_bytes
        files[name + CHUNKS_SUFFIX] = item.chunks_path.read_bytes()
        files[name + SBOM_SUFFIX] = render_sbom(item.manifest)
    return files


def _require_names(
    plan: Plan, small: Mapping[str, bytes], large: Collection[str], evidence: Mapping[str, bytes]
) -> None:
    """Refuse evidence that would take the place of another file: its name comes from another machine."""
    added = (INDEX_NAME, SUMS_NAME, NOTES_NAME, provenance_name(plan.tag))
    taken = {name.casefold() for name in (*small, *large, *added)}
    for name in evidence:
        if name.casefold() in taken or name.endswith(SIGNATURE_SUFFIX):
            raise VerificationError(
                "evidence-name-taken",
                f"evidence {name} cannot be published under this name",
                why="another file of the release has it",
                hint="give the file in dist/evidence another name",
            )
    assets = [PlannedAsset(name=name, kind="file", size=len(data)) for name, data in evidence.items()]
    assets += [PlannedAsset(name=name, kind="file", size=len(data)) for name, data in small.items()]
    assets += [PlannedAsset(name=name, kind="file") for name in (*large, *added[:2], *added[3:])]
    for problem in asset_problems(assets, plan.limits):
        raise problem


def _roots(folder: Path) -> dict[str, bytes]:
    """Return the trust roots with their signatures: clients that have an older one follow them."""
    try:
        return {
            path.name: path.read_bytes()
            for name in ROOT_PATTERNS
            for path in sorted(folder.glob(name))
            if not path.name.startswith("root-0.")  # has no key, and every client has it
        }
    except OSError as exc:
        raise storage_error(exc, f"cannot read {folder}") from exc
