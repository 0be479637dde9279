"""Whether a plan agrees with itself: whoever edits one decides anew, and must let `plan` do it. Pure.

What follows from something else in the plan is derived again and compared, as are the words that become
public. A plan that `plan` made always passes.
"""

from __future__ import annotations

from collections.abc import Iterator

from opencoti.errors import ConfigError
from release.planning.assets import plan_assets
from release.planning.limits import check_limits, split
from release.planning.model import Plan, PlannedArtifact
from release.planning.request import is_reason


def require_consistent(plan: Plan) -> None:
    """Refuse a plan that contradicts itself.

    Raises:
        ConfigError: `plan-inconsistent`, `part-size-unfit`.
    """
    check_limits(plan.limits)
    for why in _contradictions(plan):
        raise ConfigError(
            "plan-inconsistent",
            f"the plan of {plan.tag} contradicts itself",
            why=why,
            hint="it was edited: make it anew with `python -m release plan --json`",
        )


def _contradictions(plan: Plan) -> Iterator[str]:
    names = [artifact.name for artifact in plan.artifacts]
    if names != sorted(set(names)):
        yield "its artifacts are not sorted, or one is there twice"
    for artifact in plan.artifacts:
        yield from _of_artifact(plan, artifact)
    yield from _of_backends(plan)
    yield from _of_evidence(plan)
    roots = [asset.name for asset in plan.assets if asset.kind == "root"]
    if plan.assets != plan_assets(plan.tag, plan.artifacts, plan.evidence, roots=roots):
        yield "its assets are not those of its artifacts and its evidence"
    for waiver in plan.waivers:
        if not is_reason(waiver.reason):
            yield f"the reason of waiver {waiver.name!r} is no line of text"


def _of_artifact(plan: Plan, artifact: PlannedArtifact) -> Iterator[str]:
    is_known = artifact.size is not None and artifact.sha256 is not None
    if is_known != (artifact.state == "packaged") or (artifact.size is None) != (artifact.sha256 is None):
        yield f"{artifact.name} is {artifact.state}, and size and SHA-256 say otherwise"
    parts = split(artifact.name, artifact.size, plan.limits) if artifact.size is not None else ()
    if artifact.parts != parts:
        yield f"the parts of {artifact.name} are not those of a file of {artifact.size} bytes"


def _of_backends(plan: Plan) -> Iterator[str]:
    held = {backend for artifact in plan.artifacts for backend in artifact.backends}
    if held != {row.backend for row in plan.backends if row.is_in}:
        yield "the backends that are in it are not those of its artifacts"


def _of_evidence(plan: Plan) -> Iterator[str]:
    wanted = [
        (artifact.name, f"{kind}:{backend}")
        for artifact in plan.artifacts
        for kind in plan.required_evidence
        for backend in artifact.backends
    ]
    if [(row.artifact, row.name) for row in plan.evidence] != wanted:
        yield "its evidence is not what it requires of its artifacts"
