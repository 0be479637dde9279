"""Staging: from a plan and what lies in `dist/` to the folder that is signed and published.

Doing it again with the same plan changes nothing and keeps signatures. Nothing is asked of the network.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ci.context import Context
from ci.locks import exclusive_lock
from ci.repository import repository_facts
from opencoti.errors import ConfigError, VerificationError, storage_error
from opencoti.files import write_atomic
from opencoti.hashing import sha256_bytes
from opencoti.index import ReleaseIndex, dump_index
from opencoti.trust.comment import INDEX_NAME
from opencoti.trust.shipped import shipped_root
from release.notes.body import NOTES_NAME, merge_body
from release.notes.make import Before, make_notes
from release.planning.consistency import require_consistent
from release.planning.local import LocalArtifact, find_artifacts, find_evidence
from release.planning.model import Plan
from release.planning.names import TRUST_FOLDER
from release.staging.content import Content, make_content
from release.staging.folder import asset_names, make_ready
from release.staging.gather import Gathered, gather
from release.staging.index import make_index
from release.staging.place import PartDigest, place_bytes, place_file, write_part


@dataclass(frozen=True, kw_only=True)
class Staged:
    """A staged release. `is_new` is False where the folder held it already."""

    folder: Path
    index: ReleaseIndex
    index_sha256: str
    asset_names: tuple[str, ...]
    is_new: bool


def stage_folder(context: Context, tag: str) -> Path:
    """Return where the release of a tag is staged."""
    return context.layout.dist / "release" / tag


def stage(context: Context, plan: Plan, *, before: Before | None = None) -> Staged:
    """Stage a release.

    Args:
        context: the checkout; artifacts are taken from `dist/llamafile`, evidence from `dist/evidence`.
        plan: what to release.
        before: the release before it, for the notes.

    Raises:
        ConfigError: `plan-inconsistent`, `stage-tree-dirty`, `stage-folder-foreign`, `plan-blocked`,
            `part-size-unfit`.
        VerificationError: `stage-tree-differs`, `stage-hash-differs`, and as `gather`.
        BuildError: as `gather`.
        BusyError: somebody stages this release right now.
        StorageError: a file cannot be read or written.
    """
    layout = context.layout
    require_consistent(plan)
    _require_planned_tree(layout.root, plan)
    gathered = gather(
        plan, find_artifacts(layout.dist / "llamafile"), find_evidence(layout.dist / "evidence")
    )
    folder = stage_folder(context, plan.tag)
    with exclusive_lock(folder.with_name(f".{plan.tag}.lock"), f"the release in {folder}"):
        content = make_content(plan, gathered, layout.root / TRUST_FOLDER, context.console)
        index = make_index(plan, gathered, content.parts)
        is_same = _write(context, folder, gathered, index, content)
        notes = make_notes(
            index,
            [item.manifest for item in gathered.artifacts],
            evidence=[proof.evidence for proof in gathered.evidence],
            before=before,
            keys=shipped_root(),
        )
        _write_notes(folder / NOTES_NAME, notes)
    return Staged(
        folder=folder,
        index=index,
        index_sha256=sha256_bytes(dump_index(index)),
        asset_names=asset_names(folder),
        is_new=not is_same,
    )


def _require_planned_tree(root: Path, plan: Plan) -> None:
    facts = repository_facts(root)
    if facts.is_dirty:
        raise ConfigError(
            "stage-tree-dirty",
            "the source has changes that no commit holds",
            why=f"it differs from commit {facts.commit[:12]}",
            hint="commit or remove them, then plan, build and stage again",
        )
    if facts.commit != plan.source.commit:
        raise VerificationError(
            "stage-tree-differs",
            "the plan is of another commit",
            why=f"it says {plan.source.commit}, this is {facts.commit}",
            hint="check out that commit, or make the plan again",
        )


def _write(context: Context, folder: Path, gathered: Gathered, index: ReleaseIndex, content: Content) -> bool:
    data = dump_index(index)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise storage_error(exc, f"cannot create {folder}") from exc
    is_same = make_ready(folder, data, {INDEX_NAME, *content.names})
    for item in gathered.artifacts:
        context.console.status(f"staging {item.manifest.name}")
        _place(item, folder, content.parts[item.manifest.name])
    for name, small in content.files.items():
        place_bytes(small, folder / name)
    place_bytes(data, folder / INDEX_NAME)
    return is_same


def _place(item: LocalArtifact, folder: Path, parts: tuple[PartDigest, ...]) -> None:
    if not parts:
        place_file(item.path, folder / item.manifest.name, item.manifest.sha256)
    offset = 0
    for part in parts:
        write_part(item.path, offset, folder / part.name, part)
        offset += part.size


def _write_notes(path: Path, generated: str) -> None:
    try:
        existing = path.read_bytes().decode("utf-8", "replace") if path.exists() else ""
    except OSError as exc:
        raise storage_error(exc, f"cannot read {path}") from exc
    text = merge_body(existing, generated)
    if text != existing:
        write_atomic(path, text.encode("utf-8"))
