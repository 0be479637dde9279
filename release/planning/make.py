"""Making a plan: facts of the checkout, of `dist/` and of the remote put together. Writes nothing.

What would stop the release is collected, not raised, so that one run names all of it before anything is
compiled. Only what leaves nothing to plan (no pin, no tag, no commit, an unreadable remote) is raised.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from ci.build import host_arch
from ci.context import Context
from ci.package.tag import read_tag
from ci.patches.series import patch_set_hash, read_series
from ci.pins import SourcePin
from ci.repository import RepositoryFacts, repository_facts
from ci.sources.lanes import find_lane
from ci.sources.vendoring import origin_text
from ci.toolchains.table import load_table
from opencoti.errors import ConfigError, OpencotiError, VerificationError
from opencoti.hashing import sha256_file
from opencoti.trust.comment import render_time
from release.planning.artifacts import Cut, plan_artifacts, plan_backends, plan_evidence
from release.planning.assets import plan_assets
from release.planning.limits import asset_problems, check_limits
from release.planning.local import LocalArtifact, find_artifacts, find_evidence, find_recipes, recipe_hash
from release.planning.model import (
    Plan,
    PlannedArtifact,
    PlannedImage,
    PlannedPin,
    PlannedSource,
    SeenRemote,
    problem_of,
)
from release.planning.names import ROOT_PATTERNS, TRUST_FOLDER
from release.planning.phases import plan_phases
from release.planning.remote_readers import require_sequence
from release.planning.remote_view import RemoteFacts
from release.planning.request import Request
from release.planning.used_tags import read_used_tags


@dataclass(frozen=True, kw_only=True)
class _Facts:
    """What was looked at."""

    repository: RepositoryFacts
    pin: SourcePin
    series: Path
    tag: str
    artifacts: tuple[LocalArtifact, ...]
    remote: RemoteFacts
    is_used: bool


def release_tag(context: Context, request: Request) -> str:
    """Return the tag of the release: the one that was asked for, else that of the next cut.

    Raises:
        ConfigError: `tag-missing`, `tag-malformed`.
    """
    return request.tag or read_tag(context.layout.opencoti_tag)


def make_plan(context: Context, request: Request, remote: RemoteFacts) -> Plan:
    """Return the plan of a release.

    Raises:
        ConfigError: `pin-missing`, `pin-malformed`, `tag-missing`, `tag-malformed`, `no-commit`,
            `part-size-unfit`, `sequence-not-higher`; a manifest or evidence file is malformed.
        MissingError: `lane-missing`, `arch-unsupported`.
        UsageError: `flavor-unknown`.
    """
    check_limits(request.limits)
    layout, lane = context.layout, find_lane(context.layout, request.lane)
    facts = _Facts(
        repository=repository_facts(layout.root),
        pin=SourcePin.load(lane.pin),
        series=lane.series,
        tag=release_tag(context, request),
        artifacts=find_artifacts(layout.dist / "llamafile"),
        remote=remote,
        is_used=release_tag(context, request) in read_used_tags(layout.root),
    )
    cut = Cut(
        version_string=f"opencoti-{facts.pin.version}-{read_tag(layout.opencoti_tag)}",
        opencoti_tag=read_tag(layout.opencoti_tag),
        commit=facts.repository.commit,
        host_arch=host_arch(),
        hosts=_hosts(layout.table),
    )
    artifacts = plan_artifacts(request, cut, facts.artifacts)
    evidence = plan_evidence(artifacts, request, find_evidence(layout.dist / "evidence"))
    assets = plan_assets(facts.tag, artifacts, evidence, roots=_roots(layout.root / TRUST_FOLDER))
    problems = [*_problems(facts, cut, artifacts), *asset_problems(assets, request.limits)]
    return Plan(
        product=request.product,
        repo=request.repo,
        tag=facts.tag,
        version_string=cut.version_string,
        opencoti_tag=cut.opencoti_tag,
        lane=request.lane,
        sequence=require_sequence(request.sequence, remote.highest_sequence),
        created=render_time(request.now),
        expires=render_time(request.now + timedelta(days=request.days)),
        source=_source(facts.repository, layout.root),
        pins=(_pin(facts),),
        backends=plan_backends(artifacts, request, facts.artifacts),
        artifacts=artifacts,
        assets=assets,
        images=_images(layout.containers, artifacts, facts.artifacts),
        required_evidence=request.kinds,
        evidence=evidence,
        waivers=request.waivers,
        limits=request.limits,
        remote=_seen(remote),
        phases=plan_phases(request, facts.tag, artifacts, host_arch=cut.host_arch),
        problems=tuple(problem_of(problem) for problem in problems),
    )


def _hosts(table: Path) -> dict[str, tuple[str, ...]]:
    """Return which architectures each backend is built for; nothing where a checkout has no table."""
    if not table.is_file():
        return {}
    return {backend.name: backend.hosts for backend in load_table(table).backends}


def _problems(facts: _Facts, cut: Cut, artifacts: Sequence[PlannedArtifact]) -> Iterator[OpencotiError]:
    if facts.repository.is_dirty:
        yield ConfigError(
            "plan-tree-dirty",
            "the source has changes that no commit holds",
            why=f"it differs from commit {facts.repository.commit[:12]}",
            hint="commit or remove them: what is released must be what a commit says",
        )
    yield from _tag_problems(facts, cut)
    yield from _reuse_problems(facts.remote, cut, artifacts)


def _tag_problems(facts: _Facts, cut: Cut) -> Iterator[OpencotiError]:
    """Yield what is wrong with the tag on the remote (cases B32 and B35)."""
    remote, tag = facts.remote, facts.tag
    if remote.tag_state == "published":
        yield VerificationError(
            "plan-tag-released",
            f"tag {tag} is released on {remote.where}",
            why="a published release never changes",
            hint="bump vendors/llamafile/OPENCOTI_TAG, and commit that",
        )
    if remote.tag_state == "burned" or (facts.is_used and remote.tag_state != "published"):
        yield VerificationError(
            "plan-tag-burned",
            f"tag {tag} cannot be released again on {remote.where}",
            why="it was used for an immutable release, and such a name is used up even if that is deleted",
            hint="bump vendors/llamafile/OPENCOTI_TAG, and commit that",
        )
    if len(remote.drafts) > 1:
        yield VerificationError(
            "plan-duplicate-drafts",
            f"{remote.where} has {len(remote.drafts)} drafts of tag {tag}",
            why=f"their ids are {', '.join(remote.drafts)}",
            hint="look which one is right, and delete the others",
        )
    if remote.tag_commit not in (None, cut.commit):
        yield VerificationError(
            "plan-tag-elsewhere",
            f"tag {tag} of {remote.where} is on another commit",
            why=f"it is on {remote.tag_commit}, this is {cut.commit}",
            hint="check out that commit, or bump vendors/llamafile/OPENCOTI_TAG",
        )


def _reuse_problems(
    remote: RemoteFacts, cut: Cut, artifacts: Sequence[PlannedArtifact]
) -> Iterator[OpencotiError]:
    """Yield artifacts whose name was released for other bytes, or for bytes that cannot be known yet."""
    released = {
        item.name: (item.sha256, surveyed.index.tag)
        for surveyed in remote.surveyed
        for item in surveyed.index.artifacts
        if surveyed.index.version_string == cut.version_string
    }
    for artifact in artifacts:
        before = released.get(artifact.name)
        if before is not None and artifact.sha256 != before[0]:
            what = "it is not packaged yet" if artifact.sha256 is None else f"this one is {artifact.sha256}"
            yield VerificationError(
                "opencoti-tag-reused",
                f"{artifact.name} was released before, as {before[1]}",
                why=f"its bytes were {before[0]}, and {what}",
                hint="bump vendors/llamafile/OPENCOTI_TAG: it names bytes, and these are others",
            )


def _roots(folder: Path) -> list[str]:
    return [
        path.name
        for pattern in ROOT_PATTERNS
        for path in sorted(folder.glob(pattern))
        if not path.name.startswith("root-0.")
    ]


def _source(repository: RepositoryFacts, root: Path) -> PlannedSource:
    return PlannedSource(
        commit=repository.commit, is_dirty=repository.is_dirty, is_frozen=not (root / ".git").exists()
    )


def _pin(facts: _Facts) -> PlannedPin:
    pin = facts.pin
    return PlannedPin(
        name=pin.name,
        origin=origin_text(pin),
        commit=pin.commit,
        tag=pin.tag,
        tree=pin.tree,
        pin_sha256=sha256_file(pin.path),
        patch_set_hash=patch_set_hash(read_series(facts.series)),
    )


def _images(
    containers: Path, artifacts: Sequence[PlannedArtifact], found: Sequence[LocalArtifact]
) -> tuple[PlannedImage, ...]:
    archs = tuple(sorted({artifact.arch for artifact in artifacts}))
    digests = {
        (tool.name, local.manifest.arch): tool.image_digest
        for local in found
        for tool in local.manifest.toolchains
        if any(artifact.sha256 == local.manifest.sha256 for artifact in artifacts)
    }
    return tuple(
        PlannedImage(
            name=recipe.name,
            arch=recipe.arch,
            recipe=recipe_hash(recipe),
            digest=digests.get((recipe.name, recipe.arch)),
        )
        for recipe in find_recipes(containers, archs)
    )


def _seen(remote: RemoteFacts) -> SeenRemote:
    return SeenRemote(
        where=remote.where,
        highest_sequence=remote.highest_sequence,
        tag_state=remote.tag_state,
        tag_commit=remote.tag_commit,
        previous_tag=remote.previous.index.tag if remote.previous else None,
        assets=remote.asset_names,
    )
