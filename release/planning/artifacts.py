"""Which artifacts a release will hold, and whether those that lie in `dist/` are good for it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ci.package.backends import KNOWN
from ci.package.naming import artifact_name
from release.planning.limits import split
from release.planning.local import LocalArtifact, LocalEvidence
from release.planning.model import PlannedArtifact, PlannedBackend, PlannedEvidence
from release.planning.request import Request, flavored


@dataclass(frozen=True, kw_only=True)
class Cut:
    """What every artifact of the release shares.

    Attributes:
        hosts: architectures that a backend is built for; one that is not named is built for all.
    """

    version_string: str
    opencoti_tag: str
    commit: str
    host_arch: str
    hosts: Mapping[str, Collection[str]] = field(default_factory=dict)


def plan_artifacts(request: Request, cut: Cut, found: Sequence[LocalArtifact]) -> tuple[PlannedArtifact, ...]:
    """Return the artifacts of the release, by name.

    Without `--backends` these are the packaged ones of this version, else one for the CPU. With it, they are
    those that it names; an artifact with a model, which only `package --with-model` makes, comes along.

    Raises:
        UsageError: `flavor-unknown`.
    """
    mine = [item for item in found if item.manifest.version_string == cut.version_string]
    by_name = {item.manifest.name: item for item in mine}
    wanted = list(_wanted(request, cut, mine))
    named = {item.name for item in wanted}
    wanted += [_known(item, request, cut) for item in mine if _is_extra(item, request, named)]
    done = [_filled(item, by_name.get(item.name), request, cut) for item in wanted]
    return tuple(sorted(done, key=lambda item: item.name))


def why_unfit(local: LocalArtifact, request: Request, cut: Cut) -> str:
    """Say why a packaged artifact cannot be released as it is; empty when it can."""
    manifest = local.manifest
    if local.size is None:
        return "the file is not there, only its manifest"
    if local.size != manifest.size:
        return f"the file has {local.size} bytes, its manifest says {manifest.size}"
    if manifest.version_string != cut.version_string:
        return f"it is {manifest.version_string}"
    if manifest.git_commit != cut.commit:
        return f"it was packaged from commit {manifest.git_commit[:12]}"
    if manifest.git_dirty:
        return "it was packaged from a tree with changes"
    if manifest.lane != request.lane:
        return f"it is of lane {manifest.lane}"
    if manifest.partial:
        return f"it is partial: {', '.join(manifest.partial)}"
    waived = {waiver.name for waiver in request.waivers}
    for item in manifest.skipped_backends:
        if f"backend:{item.backend}" not in waived:
            return f"backend {item.backend} was skipped: {item.reason}"
    return ""


def plan_backends(
    artifacts: Iterable[PlannedArtifact], request: Request, found: Iterable[LocalArtifact]
) -> tuple[PlannedBackend, ...]:
    """Return every known backend, in or out, with the reason."""
    holders: dict[str, list[str]] = {}
    for artifact in artifacts:
        for name in artifact.backends:
            holders.setdefault(name, []).append(artifact.name)
    skipped = {item.backend: item.reason for local in found for item in local.manifest.skipped_backends}
    waived = {waiver.name: waiver.reason for waiver in request.waivers}
    rows = []
    for name in KNOWN:
        reason = f"in {', '.join(holders[name])}" if name in holders else "not asked for"
        if name not in holders and f"backend:{name}" in waived:
            reason = f"waived: {waived[f'backend:{name}']}"
        elif name not in holders and name in skipped:
            reason = f"skipped: {skipped[name]}"
        rows.append(PlannedBackend(backend=name, is_in=name in holders, reason=reason))
    return tuple(rows)


def plan_evidence(
    artifacts: Iterable[PlannedArtifact], request: Request, found: Iterable[LocalEvidence]
) -> tuple[PlannedEvidence, ...]:
    """Return every proof that the release must have, and whether it is there for these very bytes."""
    found = tuple(found)
    return tuple(
        _evidence(artifact, f"{kind}:{backend}", request, found)
        for artifact in artifacts
        for kind in request.kinds
        for backend in artifact.backends
    )


def _evidence(
    artifact: PlannedArtifact, name: str, request: Request, found: Iterable[LocalEvidence]
) -> PlannedEvidence:
    mine = [
        item
        for item in found
        if item.name == name and artifact.sha256 is not None
        and item.evidence.artifact.sha256 == artifact.sha256
        # What was emulated proves no device; a release says so by waiving the proof.
        and item.evidence.is_of_a_device
    ]  # fmt: skip
    state: Literal["present", "missing", "failed", "waived"] = "present"
    if any(not item.evidence.passed for item in mine):
        state = "failed"
    elif not mine:
        state = "waived" if any(waiver.name == name for waiver in request.waivers) else "missing"
    files = tuple(item.path.name for item in mine)
    return PlannedEvidence(name=name, artifact=artifact.name, state=state, files=files)


def _wanted(request: Request, cut: Cut, mine: Sequence[LocalArtifact]) -> Iterable[PlannedArtifact]:
    backends = request.backends
    if backends is None and request.archs is None and not request.flavors and mine:
        return [_known(item, request, cut) for item in mine]
    return [
        _planned(cut, request, arch=arch, flavor=flavor, backends=names)
        for arch in request.archs or (cut.host_arch,)
        for flavor, names in _sets_for(arch, backends or ("cpu",), request.flavors, cut)
    ]


def _sets_for(
    arch: str, backends: Sequence[str], flavors: Iterable[str], cut: Cut
) -> Iterator[tuple[str | None, tuple[str, ...]]]:
    """Yield flavor and backends of each artifact for an architecture: those that are built for it."""

    def here(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(name for name in names if arch in cut.hosts.get(name, (arch,)))

    yield None, here(backends)
    for flavor in flavors:
        names = here(flavored(backends, flavor))
        if flavor in names:
            yield flavor, names


def _planned(
    cut: Cut, request: Request, *, arch: str, flavor: str | None, backends: tuple[str, ...]
) -> PlannedArtifact:
    name = artifact_name(version_string=cut.version_string, arch=arch, lane=request.lane, flavor=flavor)
    return PlannedArtifact(
        name=name, product="llamafile", arch=arch, flavor=flavor, backends=backends, state="to build"
    )


def _known(local: LocalArtifact, request: Request, cut: Cut) -> PlannedArtifact:
    manifest = local.manifest
    return PlannedArtifact(
        name=manifest.name,
        product="embedder" if _is_embedder(local) else "llamafile",
        arch=manifest.arch,
        flavor=manifest.flavor,
        backends=local.backends,
        state="to build",
    )


def _is_extra(local: LocalArtifact, request: Request, named: set[str]) -> bool:
    return _is_embedder(local) and local.manifest.name not in named


def _is_embedder(local: LocalArtifact) -> bool:
    return local.manifest.name.startswith("opencoti-embedder-")


def _filled(
    item: PlannedArtifact, local: LocalArtifact | None, request: Request, cut: Cut
) -> PlannedArtifact:
    """Add what is known of the packaged file, if there is one."""
    if local is None:
        return item
    why = why_unfit(local, request, cut)
    if not why and set(local.backends) != set(item.backends):
        why = f"it has {', '.join(local.backends)}"
    if why:
        return item.model_copy(update={"state": "stale", "reason": why})
    manifest = local.manifest
    parts = split(manifest.name, manifest.size, request.limits)
    return item.model_copy(
        update={"state": "packaged", "size": manifest.size, "sha256": manifest.sha256, "parts": parts}
    )
