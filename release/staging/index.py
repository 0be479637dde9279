"""The unsigned release index of what was gathered. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opencoti.hashing import sha256_bytes
from opencoti.index import EvidenceReference, ManifestReference, Part, ReleasedArtifact, ReleaseIndex
from release.planning.local import LocalArtifact, LocalEvidence
from release.planning.model import Plan
from release.staging.gather import Gathered
from release.staging.place import PartDigest
from release.staging.requirements import requirements_of


def make_index(plan: Plan, gathered: Gathered, parts: Mapping[str, Sequence[PartDigest]]) -> ReleaseIndex:
    """Return the index; `parts` holds those of each artifact that has some, by its name."""
    return ReleaseIndex(
        product=plan.product,
        repo=plan.repo,
        tag=plan.tag,
        version_string=plan.version_string,
        lane=plan.lane,
        sequence=plan.sequence,
        created=plan.created,
        expires=plan.expires,
        plan_sha256=plan.sha256,
        artifacts=tuple(_artifact(item, parts.get(item.manifest.name, ())) for item in gathered.artifacts),
        evidence=tuple(_evidence(item) for item in gathered.evidence),
        waivers=gathered.waivers,
    )


def _artifact(item: LocalArtifact, parts: Sequence[PartDigest]) -> ReleasedArtifact:
    manifest = item.manifest
    return ReleasedArtifact(
        name=manifest.name,
        size=manifest.size,
        sha256=manifest.sha256,
        manifest=ManifestReference(name=item.manifest_name, sha256=sha256_bytes(item.manifest_bytes)),
        flavor=manifest.flavor,
        parts=tuple(Part(name=part.name, size=part.size, sha256=part.sha256) for part in parts),
        requires=requirements_of(manifest),
    )


def _evidence(item: LocalEvidence) -> EvidenceReference:
    return EvidenceReference(
        name=item.path.name,
        sha256=item.sha256,
        kind=item.evidence.kind,
        backend=item.evidence.backend,
        artifact_sha256=item.evidence.artifact.sha256,
    )
