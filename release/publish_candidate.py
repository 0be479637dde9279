"""What is about to be published: a staged folder in which everything was checked before any remote is asked.

Order: list of files and their hashes, index, plan, artifacts, evidence, signatures. The result says so by its
type: only `load_candidate` makes one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from opencoti.errors import ConfigError, VerificationError, storage_error
from opencoti.evidence import load_evidence
from opencoti.hashing import READ_SIZE_BYTES, sha256_bytes, sha256_file
from opencoti.index import ReleasedArtifact, ReleaseIndex
from opencoti.manifest import MANIFEST_SUFFIX, Manifest, load_manifest
from opencoti.minisign import SIGNATURE_SUFFIX
from opencoti.trust.chain import RootLink, walk
from opencoti.trust.comment import INDEX_NAME
from opencoti.trust.document import load_root
from opencoti.trust.keys import TrustedKeys
from opencoti.trust.shipped import shipped_root
from release.notes.body import BEGIN, END, merge_body
from release.planning.limits import GITHUB, asset_problems
from release.planning.model import PLAN_NAME, Plan, PlannedAsset, load_plan
from release.remote.model import LocalFile, NewRelease
from release.staging.folder import read_index
from release.sums import NOTES_NAME, SUMS_NAME, check_sums, parse_sums
from release.verify import verify_file

_FULL_COMMIT = re.compile(r"[0-9a-f]{40}")
# What clients ask for first is sent last, so that an unfinished draft looks unfinished.
_LAST = (SUMS_NAME, SUMS_NAME + SIGNATURE_SUFFIX, INDEX_NAME, INDEX_NAME + SIGNATURE_SUFFIX)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A staged release that passed every check. `files` are in the order in which they are sent."""

    folder: Path
    index: ReleaseIndex
    commit: str
    files: tuple[LocalFile, ...]
    notes: str
    keys: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def tag(self) -> str:
        """Tag of the release."""
        return self.index.tag

    def as_new(self, existing_body: str = "") -> NewRelease:
        """Return what the release shall say; of a text that is there only the generated part changes.

        Raises:
            ConfigError: `notes-markers-broken`, `notes-too-long`.
        """
        body = self.notes or existing_body
        if existing_body and BEGIN in self.notes and END in self.notes:
            generated = self.notes.partition(BEGIN)[2].partition(END)[0]
            body = merge_body(existing_body, generated)
        title = f"{self.index.product} {self.index.tag} ({self.index.version_string})"
        return NewRelease(tag=self.tag, title=title, body=body, commit=self.commit)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the user named. None is taken from the index.

    Attributes:
        keys: who may have signed.
        is_github: the limits of GitHub hold.
        allow_development: take one-time keys for GitHub too.
    """

    tag: str
    repo: str | None
    keys: TrustedKeys
    now: datetime
    is_github: bool
    allow_development: bool = False


def load_candidate(folder: Path, asked: Asked) -> Candidate:
    """Check a staged release and return it.

    Raises:
        ConfigError: `not-staged`, `sums-missing`, `sums-malformed`, `sums-folder`, `plan-malformed`,
            `plan-blocked`, `asset-empty`; as `asset_problems`; a document is malformed.
        VerificationError: `sums-differ`, `publish-other-release`, `publish-expired`, `publish-plan-differs`,
            `publish-commit-unfit`, `publish-not-whole`, `publish-unproven`, `publish-development-key`;
            whatever a client would refuse.
        StorageError: a file cannot be read.
    """
    index = read_index(folder)
    check_sums(folder)
    _require_asked(index, asked)
    _require_fresh(index, asked.now)
    plan = _plan(folder, index)
    files = tuple(_files(folder))
    _require_limits(files, asked)
    by_name = {file.name: file for file in files}
    manifests = [_artifact(folder, artifact, plan, by_name) for artifact in index.artifacts]
    _require_evidence(folder, index, plan, by_name)
    keys, warnings = _require_signed(folder, index, asked)
    assert all(manifest.git_commit == plan.source.commit for manifest in manifests)
    return Candidate(
        folder=folder,
        index=index,
        commit=plan.source.commit,
        files=tuple(sorted(files, key=lambda file: _LAST.index(file.name) if file.name in _LAST else -1)),
        notes=_notes(folder),
        keys=keys,
        warnings=warnings,
    )


def _files(folder: Path) -> Iterator[LocalFile]:
    """Yield every file of the release: what the list names, the list, and the signatures of all these."""
    path = folder / SUMS_NAME
    try:
        digests = parse_sums(path.read_bytes(), str(path)) | {SUMS_NAME: sha256_file(path)}
        for name in sorted(item.name for item in folder.iterdir() if item.suffix == SIGNATURE_SUFFIX):
            if name.removesuffix(SIGNATURE_SUFFIX) not in digests:
                raise _not_whole(folder, f"{name} is the signature of nothing here")
            digests[name] = sha256_file(folder / name)
        for name, digest in digests.items():
            size = (folder / name).stat().st_size
            yield LocalFile(name=name, path=folder / name, size=size, sha256=digest)
    except OSError as exc:
        raise storage_error(exc, f"cannot read {folder}") from exc


def _require_asked(index: ReleaseIndex, asked: Asked) -> None:
    for what, found, wanted in (("tag", index.tag, asked.tag), ("repository", index.repo, asked.repo)):
        if wanted is not None and found != wanted:
            raise VerificationError(
                "publish-other-release",
                f"the staged release is not of {what} {wanted}",
                why=f"its index says {found}",
                hint="name the folder and the tag of the same release, or plan and stage again",
            )


def _require_fresh(index: ReleaseIndex, now: datetime) -> None:
    if index.expires_at <= now:
        raise VerificationError(
            "publish-expired",
            f"release {index.tag} is out of date before it is public",
            why=f"its index expires at {index.expires}",
            hint="plan, stage and sign it again",
        )


def _plan(folder: Path, index: ReleaseIndex) -> Plan:
    path = folder / PLAN_NAME
    try:
        data = path.read_bytes()
    except FileNotFoundError as exc:
        raise _not_whole(folder, f"there is no {PLAN_NAME}") from exc
    except OSError as exc:
        raise storage_error(exc, f"cannot read {path}") from exc
    plan = load_plan(data, str(path))
    said = (plan.product, plan.repo, plan.tag, plan.version_string, plan.sequence, plan.expires)
    index_says = (index.product, index.repo, index.tag, index.version_string, index.sequence, index.expires)
    if sha256_bytes(data) != index.plan_sha256 or said != index_says:
        raise VerificationError(
            "publish-plan-differs",
            f"{path} is not the plan of this release",
            why=f"the index names sha256 {index.plan_sha256}, this is {sha256_bytes(data)}",
            hint="stage the release again",
        )
    if plan.problems:
        raise ConfigError(
            "plan-blocked",
            f"the plan of {plan.tag} cannot be carried out",
            why=f"[{plan.problems[0].error}] {plan.problems[0].what}",
            hint=plan.problems[0].hint,
        )
    _require_commit(plan.source.commit, is_dirty=plan.source.is_dirty, what=str(path))
    return plan


def _require_commit(commit: str, *, is_dirty: bool, what: str) -> None:
    """Refuse everything but a clean, full commit (case B35)."""
    if not _FULL_COMMIT.fullmatch(commit):
        raise _unfit_commit(what, f"{commit[:60]!r} is no full commit id of 40 hex digits")
    if is_dirty:
        raise _unfit_commit(what, f"the tree had changes that commit {commit[:12]} does not hold")


def _require_limits(files: Iterable[LocalFile], asked: Asked) -> None:
    """Refuse what GitHub would not take (case B33), before anything is there."""
    files = tuple(files)
    for file in files:
        if file.size == 0:
            raise ConfigError(
                "asset-empty", f"{file.name} is empty", why="GitHub takes no empty file", hint="stage again"
            )
    planned = [PlannedAsset(name=file.name, kind="file", size=file.size) for file in files]
    for problem in asset_problems(planned, GITHUB):
        if asked.is_github:
            raise problem


def _artifact(folder: Path, artifact: ReleasedArtifact, plan: Plan, files: dict[str, LocalFile]) -> Manifest:
    """Check one artifact: its manifest, its pieces, its chunk table, and whose build it is."""
    pieces = [(part.name, part.size, part.sha256) for part in artifact.parts]
    pieces = pieces or [(artifact.name, artifact.size, artifact.sha256)]
    for name, size, sha256 in pieces:
        if (file := files.get(name)) is None or (file.size, file.sha256) != (size, sha256):
            raise _not_whole(folder, f"{name} is missing, or not what the index says")
    name = artifact.name + MANIFEST_SUFFIX
    if (file := files.get(name)) is None or file.sha256 != artifact.manifest.sha256:
        raise _not_whole(folder, f"{name} is missing, or not what the index says")
    manifest = load_manifest(file.path.read_bytes(), str(file.path))
    if (manifest.size, manifest.sha256) != (artifact.size, artifact.sha256):
        raise _not_whole(folder, f"{name} and the index describe different files")
    chunks = files.get(manifest.chunks.file)
    if chunks is None or chunks.sha256 != manifest.chunks.sha256:
        raise _not_whole(folder, f"{manifest.chunks.file} is missing, or not what {name} says")
    if artifact.parts and _joined_hash(folder, [item[0] for item in pieces]) != artifact.sha256:
        raise _not_whole(folder, f"the parts of {artifact.name} do not make the whole")
    _require_commit(manifest.git_commit, is_dirty=manifest.git_dirty, what=name)
    if manifest.git_commit != plan.source.commit:
        raise _unfit_commit(
            name, f"it was built from {manifest.git_commit}, the plan is of {plan.source.commit}"
        )
    return manifest


def _joined_hash(folder: Path, names: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for name in names:
        try:
            with open(folder / name, "rb") as file:
                while block := file.read(READ_SIZE_BYTES):
                    digest.update(block)
        except OSError as exc:
            raise storage_error(exc, f"cannot read {folder / name}") from exc
    return digest.hexdigest()


def _require_evidence(folder: Path, index: ReleaseIndex, plan: Plan, files: dict[str, LocalFile]) -> None:
    """Every proof that the plan requires is there, of these very bytes, and passed; or is waived."""
    proven: set[tuple[str, str]] = set()
    for item in index.evidence:
        file = files.get(item.name)
        if file is None or file.sha256 != item.sha256:
            raise _not_whole(folder, f"{item.name} is missing, or not what the index says")
        evidence = load_evidence(file.path.read_bytes(), str(file.path))
        if not evidence.passed or evidence.artifact.sha256 != item.artifact_sha256:
            raise _unproven(item.name, "it says that the test failed, or is of other bytes")
        if evidence.is_of_a_device:
            proven.add((item.artifact_sha256, f"{evidence.kind}:{evidence.backend}"))
    waived = {waiver.name for waiver in index.waivers}
    for artifact in index.artifacts:
        for kind in plan.required_evidence:
            for backend in artifact.requires.backends:
                name = f"{kind}:{backend.backend}"
                if (artifact.sha256, name) not in proven and name not in waived:
                    raise _unproven(artifact.name, f"nothing proves {name}, and nobody waived it")


def _require_signed(
    folder: Path, index: ReleaseIndex, asked: Asked
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Check every signature and every root as a client would; return the names of the keys and warnings."""
    documents = [INDEX_NAME, *(item.manifest.name for item in index.artifacts), SUMS_NAME]
    names: list[str] = []
    warnings: list[str] = []
    for name in documents:
        done = verify_file(folder / name, keys=asked.keys, repo=index.repo, tag=index.tag, now=asked.now)
        if done.key.is_development and asked.is_github and not asked.allow_development:
            raise VerificationError(
                "publish-development-key",
                f"{name} is signed with the one-time key {done.key.name}",
                why="no client accepts such a key, and a public release cannot be signed again",
                hint="sign with the release key, or insist with --allow-development-key",
            )
        names.append(done.key.name)
        warnings.extend(done.warnings)
    _check_roots(folder)
    return tuple(dict.fromkeys(names)), tuple(warnings)


def _check_roots(folder: Path) -> None:
    """Walk the roots that are published along from the one that ships, as a client will."""
    shipped = shipped_root()
    links = []
    try:
        for path in sorted(folder.glob("root-*.json")):
            version = load_root(path.read_bytes(), str(path)).version
            if version > shipped.version:
                signatures = path.with_name(path.name + SIGNATURE_SUFFIX).read_bytes()
                links.append((version, RootLink(data=path.read_bytes(), signatures=signatures)))
    except OSError as exc:
        raise storage_error(exc, f"cannot read the roots in {folder}") from exc
    if links:
        walk(shipped, [link for _, link in sorted(links, key=lambda pair: pair[0])])


def _notes(folder: Path) -> str:
    path = folder / NOTES_NAME
    try:
        return path.read_bytes().decode("utf-8", "replace") if path.exists() else ""
    except OSError as exc:
        raise storage_error(exc, f"cannot read {path}") from exc


def _not_whole(folder: Path, why: str) -> VerificationError:
    return VerificationError(
        "publish-not-whole",
        f"{folder} does not hold a whole release",
        why=why,
        hint="stage, sign and sum the release again: it is public as a whole or not at all",
    )


def _unproven(what: str, why: str) -> VerificationError:
    return VerificationError(
        "publish-unproven",
        f"{what} is not proven to work",
        why=why,
        hint="test it and stage again, or plan with --waive, which will be public",
    )


def _unfit_commit(what: str, why: str) -> VerificationError:
    return VerificationError(
        "publish-commit-unfit",
        f"{what} names no commit that a tag could be on",
        why=why,
        hint="commit, push, and build, plan and stage again from that commit",
    )
