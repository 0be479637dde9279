"""The plan for people. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from release.planning.model import Plan, PlannedArtifact


def render_plan(plan: Plan) -> str:
    """Return the plan as text: what, from what, what is there, what will be run, what stops it."""
    lines = [
        f"release    {plan.product} {plan.tag} of {plan.repo}, number {plan.sequence}, lane {plan.lane}",
        f"version    {plan.version_string}",
        f"time       {plan.created}, expires {plan.expires}",
        f"source     commit {plan.source.commit}{_state_of_source(plan)}",
        *(f"pin        {pin.name} {pin.tag}-g{pin.commit[:7]}, series {pin.patch_set_hash[:12]}"
          for pin in plan.pins),
        f"remote     {plan.remote.where}: {_remote(plan)}",
        "",
        *(line for artifact in plan.artifacts for line in _artifact(artifact)),
        "",
        *(f"backend    {'in ' if row.is_in else 'out'} {row.backend}: {row.reason}" for row in plan.backends),
        *(f"image      {row.name} {row.arch}: recipe {row.recipe[:12]}, {row.digest or 'no digest yet'}"
          for row in plan.images),
        *(f"evidence   {row.name} of {row.artifact}: {row.state}{_names(row.files)}"
          for row in plan.evidence),
        *(f"waiver     {row.name}: {row.reason}" for row in plan.waivers),
        "",
        f"{len(plan.assets)} assets of at most {plan.limits.max_assets}, "
        f"each at most {plan.limits.asset_max_bytes} bytes",
        *(f"  {_size(asset.size):>14}  {asset.name}  ({asset.kind})" for asset in plan.assets),
        "",
        *(f"{phase.name:<10} {' '.join(phase.argv)}" for phase in plan.phases),
        "",
        *_problems(plan),
        f"plan sha256 {plan.sha256}",
    ]  # fmt: skip
    return "\n".join(lines)


def _state_of_source(plan: Plan) -> str:
    words = [", with changes"] if plan.source.is_dirty else [", clean"]
    return "".join([*words, ", frozen"] if plan.source.is_frozen else words)


def _remote(plan: Plan) -> str:
    remote = plan.remote
    tag = {
        "none": "this tag is new",
        "draft": f"a draft of this tag has {len(remote.assets)} assets",
        "published": "this tag is released",
        "burned": "this tag is used up",
    }[remote.tag_state]
    before = f"the newest release is {remote.previous_tag}" if remote.previous_tag else "no release yet"
    return f"{before} (number {remote.highest_sequence}); {tag}"


def _artifact(artifact: PlannedArtifact) -> Iterator[str]:
    why = f" ({artifact.reason})" if artifact.reason else ""
    yield f"artifact   {artifact.name}: {artifact.state}{why}, {_size(artifact.size)} bytes"
    if artifact.sha256:
        yield f"           sha256 {artifact.sha256}"
    for part in artifact.parts:
        yield f"           part {part.name}: {part.size} bytes"


def _names(names: tuple[str, ...]) -> str:
    return f" ({', '.join(names)})" if names else ""


def _size(size: int | None) -> str:
    return "?" if size is None else str(size)


def _problems(plan: Plan) -> Iterator[str]:
    for problem in plan.problems:
        yield f"STOP       [{problem.error}] {problem.what}{f': {problem.why}' if problem.why else ''}"
        if problem.hint:
            yield f"           next: {problem.hint}"
