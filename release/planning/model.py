"""The plan of a release, `opencoti.plan/1`: everything that the later phases will do, decided once.

`plan.json` of a release is exactly what `python -m release plan --json` printed; the index carries the
SHA-256 of its bytes. Does no I/O. Sizes are bytes; None means that something is still to be built.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator

from opencoti.document import DocumentPart, MalformedError, UnknownSchemaError, read_document, render_document
from opencoti.errors import ConfigError, OpencotiError
from opencoti.hashing import sha256_bytes
from opencoti.index import Repo, Sequence, Tag, Timestamp, Waiver
from opencoti.manifest import FileName, GitId, Sha256, Size, Text, Token, VersionString
from opencoti.trust.comment import parse_time

SCHEMA: Final = "opencoti.plan/1"
PLAN_NAME: Final = "plan.json"
_MAX_BYTES = 4 << 20
# What was merely seen while planning. Two plans that differ in nothing else decide the same.
_SEEN = ("created", "expires", "artifacts", "assets", "evidence", "images", "remote")


class PlanPart(DocumentPart):
    """Common rules of the parts."""


class PlannedSource(PlanPart):
    """The commit that is released. `is_frozen`: it comes from a source tarball, without git."""

    commit: GitId
    is_dirty: bool
    is_frozen: bool


class PlannedPin(PlanPart):
    """The upstream source, and the SHA-256 of its pin file and of its patch series."""

    name: Text
    origin: Text
    commit: GitId
    tag: Text
    tree: GitId | None
    pin_sha256: Sha256
    patch_set_hash: Sha256


class PlannedBackend(PlanPart):
    """A backend, and why it is in the release or not."""

    backend: Token
    is_in: bool
    reason: Text


class PlannedPart(PlanPart):
    """A slice of an artifact."""

    name: FileName
    size: Size


class PlannedArtifact(PlanPart):
    """One engine file. `reason` says why a file that lies there is no good."""

    name: FileName
    product: Literal["llamafile", "embedder"]
    arch: Token
    flavor: Token | None
    backends: tuple[Token, ...]
    state: Literal["packaged", "stale", "to build"]
    reason: str = ""
    size: Size | None = None
    sha256: Sha256 | None = None
    parts: tuple[PlannedPart, ...] = ()


class PlannedAsset(PlanPart):
    """One file of the release, as the remote will list it."""

    name: Text
    kind: Token
    size: Size | None = None


class PlannedImage(PlanPart):
    """A toolchain image: the hash of its recipe, and its digest where an artifact was built in it."""

    name: Token
    arch: Token
    recipe: Sha256
    digest: Text | None = None


class PlannedEvidence(PlanPart):
    """One proof that the release must have, such as `smoke:cpu` of one artifact."""

    name: Text
    artifact: FileName
    state: Literal["present", "missing", "failed", "waived"]
    files: tuple[FileName, ...] = ()


class PlannedLimits(PlanPart):
    """What the remote takes: assets of at most `asset_max_bytes`, `max_assets` of them."""

    asset_max_bytes: Annotated[int, Field(ge=1)]
    part_bytes: Annotated[int, Field(ge=1)]
    max_assets: Annotated[int, Field(ge=1)]


class SeenRemote(PlanPart):
    """What is on the remote already. `tag_state` is that of the release of this tag."""

    where: Text
    highest_sequence: Annotated[int, Field(ge=0)]
    tag_state: Literal["none", "draft", "published", "burned"]
    tag_commit: GitId | None = None
    previous_tag: Tag | None = None
    assets: tuple[Text, ...] = ()


class Phase(PlanPart):
    """One command, to be run in the top folder of the source."""

    name: Token
    argv: tuple[Text, ...]


class Problem(PlanPart):
    """What stops the release: an error as `--json` prints it."""

    error: Text
    exit_code: int = Field(alias="exit_code")
    what: Text
    why: str = ""
    hint: str = ""


class Plan(DocumentPart):
    """One release, decided. A plan with problems cannot be staged."""

    schema_id: Literal["opencoti.plan/1"] = Field(alias="schema", default="opencoti.plan/1")
    product: Token
    repo: Repo
    tag: Tag
    version_string: VersionString
    opencoti_tag: Token
    lane: Literal["ape", "elf"]
    sequence: Sequence
    created: Timestamp
    expires: Timestamp
    source: PlannedSource
    pins: Annotated[tuple[PlannedPin, ...], Field(min_length=1)]
    backends: tuple[PlannedBackend, ...]
    artifacts: Annotated[tuple[PlannedArtifact, ...], Field(min_length=1)]
    assets: tuple[PlannedAsset, ...]
    images: tuple[PlannedImage, ...] = ()
    required_evidence: tuple[Token, ...]
    evidence: tuple[PlannedEvidence, ...] = ()
    waivers: tuple[Waiver, ...] = ()
    limits: PlannedLimits
    remote: SeenRemote
    phases: tuple[Phase, ...]
    problems: tuple[Problem, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.expires <= self.created:
            raise ValueError("expires is not after created")
        return self

    @property
    def sha256(self) -> str:
        """SHA-256 of the plan's bytes."""
        return sha256_bytes(dump_plan(self))

    def is_waived(self, name: str) -> bool:
        """Tell whether a proof of this name may be missing."""
        return any(waiver.name == name for waiver in self.waivers)

    def decisions(self) -> dict[str, Any]:
        """Return what was decided, without what was only seen."""
        data = self.model_dump(mode="json", by_alias=True, exclude=set(_SEEN))
        created, expires = (parse_time(text, "the plan") for text in (self.created, self.expires))
        lasts_s = int((expires - created).total_seconds())
        return data | {"artifacts": [item.name for item in self.artifacts], "lasts_s": lasts_s}


def problem_of(error: OpencotiError) -> Problem:
    """Return an error as a part of a plan."""
    return Problem.model_validate(error.as_dict())


def load_plan(data: bytes, origin: str = "the plan") -> Plan:
    """Read a plan.

    Args:
        data: exact bytes of the file.
        origin: where they came from, for the message.

    Raises:
        ConfigError: `json-malformed`, `plan-malformed` (names the field).
    """
    try:
        return read_document(Plan, data, schema=SCHEMA, origin=origin, max_bytes=_MAX_BYTES)
    except (UnknownSchemaError, MalformedError) as exc:
        raise ConfigError(
            "plan-malformed",
            f"cannot read {origin}",
            why=str(exc),
            hint="make it with `python -m release plan --json > plan.json`",
        ) from exc


def dump_plan(plan: Plan) -> bytes:
    """Return the bytes of a plan; the same plan always gives the same bytes."""
    return render_document(plan)
