"""What goes into a release: the artifacts and the evidence that the plan asks for, or the reason why not.

Nothing is written here. Everything that would make a partial, a wrong or an unproven release ends here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from opencoti.errors import BuildError, ConfigError, VerificationError
from opencoti.hashing import sha256_bytes
from opencoti.index import Waiver
from opencoti.manifest import Manifest
from release.planning.local import LocalArtifact, LocalEvidence
from release.planning.model import Plan


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """Everything that a release consists of.

    Attributes:
        waivers: those that were needed.
    """

    artifacts: tuple[LocalArtifact, ...]
    evidence: tuple[LocalEvidence, ...]
    waivers: tuple[Waiver, ...]


def gather(plan: Plan, artifacts: Sequence[LocalArtifact], evidence: Sequence[LocalEvidence]) -> Gathered:
    """Choose what the plan asks for from what lies in `dist/`.

    Raises:
        ConfigError: `plan-blocked`.
        BuildError: `artifact-not-packaged`, `artifact-not-planned`, `artifact-partial`, `backend-skipped`,
            `artifact-backends-differ`.
        VerificationError: `artifact-of-another-commit`, `artifact-of-dirty-tree`, `artifact-of-other-cut`,
            `artifact-not-as-planned`, `chunks-unfit`, `evidence-of-other-bytes`, `evidence-failed`,
            `evidence-missing`.
    """
    _require_open(plan)
    chosen = _artifacts(plan, artifacts)
    for item in chosen:
        _check(item.manifest, plan)
        _require_planned(item, plan)
        _check_chunks(item)
    proofs, waivers = _evidence(plan, chosen, evidence)
    return Gathered(artifacts=chosen, evidence=proofs, waivers=waivers)


def _require_open(plan: Plan) -> None:
    if plan.problems:
        first = plan.problems[0]
        raise ConfigError(
            "plan-blocked",
            f"the plan of {plan.tag} cannot be carried out",
            why=f"[{first.error}] {first.what}",
            hint=first.hint,
        )


def _artifacts(plan: Plan, found: Sequence[LocalArtifact]) -> tuple[LocalArtifact, ...]:
    by_name = {item.manifest.name: item for item in found}
    wanted = [artifact.name for artifact in plan.artifacts]
    for name in wanted:
        if name not in by_name or by_name[name].size is None:
            raise BuildError(
                "artifact-not-packaged",
                f"{name} is missing",
                why="the plan asks for it, and a release is whole or not at all",
                hint="run the commands of the plan up to `package`",
            )
    for item in found:
        is_mine = item.manifest.version_string == plan.version_string
        if is_mine and item.manifest.name not in wanted:
            raise BuildError(
                "artifact-not-planned",
                f"{item.path} is of this version, and not in the plan",
                hint="make the plan again, or remove the file",
            )
    return tuple(by_name[name] for name in sorted(wanted))


def _check(manifest: Manifest, plan: Plan) -> None:
    if manifest.git_dirty:
        raise VerificationError(
            "artifact-of-dirty-tree",
            f"{manifest.name} was packaged from a tree with changes",
            why="no commit says what is in it",
            hint="commit, and package again",
        )
    if manifest.git_commit != plan.source.commit:
        raise VerificationError(
            "artifact-of-another-commit",
            f"{manifest.name} was packaged from another commit",
            why=f"its manifest says {manifest.git_commit}, the plan {plan.source.commit}",
            hint="package again from the planned commit",
        )
    said = (manifest.version_string, manifest.lane, manifest.opencoti_tag)
    planned = (plan.version_string, plan.lane, plan.opencoti_tag)
    if said != planned:
        raise VerificationError(
            "artifact-of-other-cut",
            f"{manifest.name} belongs to another release",
            why=f"its manifest says {' '.join(said)}, the plan {' '.join(planned)}",
            hint="package again",
        )
    _check_whole(manifest, plan)


def _check_whole(manifest: Manifest, plan: Plan) -> None:
    if manifest.partial:
        raise BuildError(
            "artifact-partial",
            f"{manifest.name} is a partial build",
            why=f"it was built with {', '.join(manifest.partial)}",
            hint="build again without these options",
        )
    for item in manifest.skipped_backends:
        if not plan.is_waived(f"backend:{item.backend}"):
            raise BuildError(
                "backend-skipped",
                f"{manifest.name} lacks backend {item.backend}",
                why=item.reason,
                hint=f"build it, or plan with --waive backend:{item.backend}=REASON",
            )


def _require_planned(item: LocalArtifact, plan: Plan) -> None:
    """Refuse other bytes than were planned, where they were known, and other backends that nobody waived."""
    manifest = item.manifest
    planned = next(artifact for artifact in plan.artifacts if artifact.name == manifest.name)
    if planned.sha256 not in (None, manifest.sha256):
        raise VerificationError(
            "artifact-not-as-planned",
            f"{manifest.name} has other bytes than when the release was planned",
            why=f"planned was sha256 {planned.sha256}, its manifest says {manifest.sha256}",
            hint="make the plan again",
        )
    wanted = {name for name in planned.backends if not plan.is_waived(f"backend:{name}")}
    if not wanted <= set(item.backends) <= set(planned.backends):
        raise BuildError(
            "artifact-backends-differ",
            f"{manifest.name} has other backends than were planned",
            why=f"it has {', '.join(item.backends)}; planned were {', '.join(planned.backends)}",
            hint="package again with the command of the plan",
        )


def _check_chunks(item: LocalArtifact) -> None:
    try:
        found = sha256_bytes(item.chunks_path.read_bytes())
    except OSError as exc:
        found = exc.strerror or "nothing"
    if found != item.manifest.chunks.sha256:
        raise VerificationError(
            "chunks-unfit",
            f"{item.chunks_path} is not the chunk table of its artifact",
            why=f"expected sha256 {item.manifest.chunks.sha256}, found {found}",
            hint="package again",
        )


def _evidence(
    plan: Plan, artifacts: Sequence[LocalArtifact], found: Sequence[LocalEvidence]
) -> tuple[tuple[LocalEvidence, ...], tuple[Waiver, ...]]:
    digests = {item.manifest.name: item.manifest.sha256 for item in artifacts}
    mine = []
    for proof in found:
        tested = proof.evidence.artifact
        if tested.sha256 in digests.values():
            mine.append(proof)
        elif tested.name in digests:
            raise VerificationError(
                "evidence-of-other-bytes",
                f"{proof.path} is of another {tested.name}",
                why=f"it tested sha256 {tested.sha256}, the artifact has {digests[tested.name]}",
                hint="run the test again, or remove the file",
            )
    for proof in mine:
        _require_passed(proof)
    missing = {name for item in artifacts for name in _missing(plan, item, mine)}
    waived = tuple(waiver for waiver in plan.waivers if waiver.name in missing | _skipped(artifacts))
    return tuple(sorted(mine, key=lambda proof: proof.path.name)), waived


def _skipped(artifacts: Iterable[LocalArtifact]) -> set[str]:
    return {f"backend:{skipped.backend}" for item in artifacts for skipped in item.manifest.skipped_backends}


def _require_passed(proof: LocalEvidence) -> None:
    failure = proof.evidence.failure
    if failure is not None:
        raise VerificationError(
            "evidence-failed",
            f"{proof.path} says that {proof.name} failed",
            why=f"[{failure.error}] {failure.what}",
            hint="mend it; a failed test cannot be waived",
        )


def _missing(plan: Plan, item: LocalArtifact, found: Iterable[LocalEvidence]) -> Iterable[str]:
    """Yield what is not proven of an artifact, and is waived; raise if it is not."""
    proven = {
        proof.name
        for proof in found
        if proof.evidence.artifact.sha256 == item.manifest.sha256 and proof.evidence.is_of_a_device
    }
    for name in (f"{kind}:{backend}" for kind in plan.required_evidence for backend in item.backends):
        if name in proven:
            continue
        if not plan.is_waived(name):
            raise VerificationError(
                "evidence-missing",
                f"nothing proves {name} of {item.manifest.name}",
                why="dist/evidence has no file for these very bytes, or only one of an emulated device",
                hint=f"run the test, or plan with --waive {name}=REASON, which will be public",
            )
        yield name
