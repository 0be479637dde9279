"""The files that a release will have on the remote. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from opencoti.manifest import CHUNKS_SUFFIX, MANIFEST_SUFFIX
from opencoti.minisign import SIGNATURE_SUFFIX
from opencoti.trust.comment import INDEX_NAME
from release.planning.model import PLAN_NAME, PlannedArtifact, PlannedAsset, PlannedEvidence
from release.planning.names import SBOM_SUFFIX, provenance_name
from release.sums import SUMS_NAME


def plan_assets(
    tag: str,
    artifacts: Sequence[PlannedArtifact],
    evidence: Sequence[PlannedEvidence],
    *,
    roots: Sequence[str] = (),
) -> tuple[PlannedAsset, ...]:
    """Return every file of the release, sorted by name."""
    found = [asset for artifact in artifacts for asset in _of_artifact(artifact)]
    proofs = {name for item in evidence for name in item.files}
    missing = {
        f"{item.artifact}.{item.name.replace(':', '-')}.json" for item in evidence if item.state == "missing"
    }
    found += [PlannedAsset(name=name, kind="evidence") for name in proofs | missing]
    found += [PlannedAsset(name=name, kind="root") for name in roots]
    found.append(PlannedAsset(name=INDEX_NAME, kind="index"))
    found.append(PlannedAsset(name=INDEX_NAME + SIGNATURE_SUFFIX, kind="signature"))
    found.append(PlannedAsset(name=SUMS_NAME, kind="sums"))
    found.append(PlannedAsset(name=SUMS_NAME + SIGNATURE_SUFFIX, kind="signature"))
    found.append(PlannedAsset(name=PLAN_NAME, kind="plan"))
    found.append(PlannedAsset(name=provenance_name(tag), kind="provenance"))
    return tuple(sorted(found, key=lambda asset: asset.name))


def _of_artifact(artifact: PlannedArtifact) -> Iterator[PlannedAsset]:
    if artifact.parts:
        yield from (PlannedAsset(name=part.name, kind="part", size=part.size) for part in artifact.parts)
    else:
        yield PlannedAsset(name=artifact.name, kind="artifact", size=artifact.size)
    yield PlannedAsset(name=artifact.name + MANIFEST_SUFFIX, kind="manifest")
    yield PlannedAsset(name=artifact.name + MANIFEST_SUFFIX + SIGNATURE_SUFFIX, kind="signature")
    yield PlannedAsset(name=artifact.name + CHUNKS_SUFFIX, kind="chunks")
    yield PlannedAsset(name=artifact.name + SBOM_SUFFIX, kind="sbom")
