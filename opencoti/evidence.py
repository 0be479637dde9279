"""Evidence: what was measured with one artifact on one device, `opencoti.evidence/1`.

Bound to the artifact by its SHA-256. It says what passed and, as plainly, what was not tested. Written by
the tests on devices, read by the release; does no I/O.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from opencoti.document import DocumentPart, MalformedError, UnknownSchemaError, read_document, render_document
from opencoti.errors import ConfigError

SCHEMA = "opencoti.evidence/1"
_MAX_EVIDENCE_BYTES = 1 << 20

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Token = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,31}$")]
Text = Annotated[str, StringConstraints(min_length=1, max_length=4000)]
Timestamp = Annotated[str, StringConstraints(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]
Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]
PositiveSeconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class TestedArtifact(DocumentPart):
    """The file that was tested."""

    __test__ = False  # no test class, whatever its name

    name: Text
    sha256: Sha256
    size: Count


class Accelerator(DocumentPart):
    """A device that computed beside the processor; `is_software`: the processor itself plays it."""

    name: Text
    is_software: bool
    driver: Text | None = None


class Device(DocumentPart):
    """The machine it was tested on; `emulator` is what played a processor that it does not have."""

    cpu_model: Text
    cpu_features: tuple[Text, ...] = ()
    kernel: Text
    glibc: Text | None = None
    driver: Text | None = None
    emulator: Text | None = None
    accelerators: tuple[Accelerator, ...] = ()


class MappedFile(DocumentPart):
    """A library that the running engine had mapped; `path` starts with `~` for the scratch HOME."""

    path: Text
    inode: Count
    sha256: Sha256


class BuildIdentity(DocumentPart):
    """What the running engine says it was built from."""

    version_string: Text
    patch_set: Text
    upstream_commit: Text


class Offload(DocumentPart):
    """Layers that computed on the device, the output among them; `splits`: parts that the graph fell into."""

    device: Text
    layers: Count
    splits: Count


class Divergence(DocumentPart):
    """Where another token was more probable than to the CPU, and how close the two were."""

    position: Count
    margin: Annotated[float, Field(ge=0)]


class Comparison(DocumentPart):
    """Greedy tokens beside those of the CPU, each after the CPU's own tokens before it.

    Of `tokens` that were compared, `equal` are the same. Differences and margins are of natural logarithms
    of probabilities; `limit` is how large they may be.
    """

    tokens: Count
    equal: Count
    max_difference: Annotated[float, Field(ge=0)]
    limit: Annotated[float, Field(ge=0)]
    divergences: tuple[Divergence, ...] = ()


class SmokeResult(DocumentPart):
    """What the engine did; times in seconds."""

    version_s: Seconds
    ready_s: Seconds
    chat_s: Seconds
    embedding_s: Seconds
    stop_s: Seconds
    total_s: Seconds
    prompt_tokens: Count
    completion_tokens: Count
    tokens_per_second: Annotated[float, Field(ge=0)] | None = None
    text_sha256: Sha256
    embedding_width: Count
    exit_code: int
    identity: BuildIdentity | None = None
    cpu_variant: Text | None = None
    dsos: tuple[MappedFile, ...] = ()
    drivers: tuple[MappedFile, ...] = ()
    offload: Offload | None = None
    comparison: Comparison | None = None


class ModelFile(DocumentPart):
    """The model that was computed with."""

    name: Text
    sha256: Sha256
    size: Count


class BenchSample(DocumentPart):
    """One measured request: the engine's own times, and `wall_s` from outside, which is never shorter."""

    prompt_s: PositiveSeconds
    completion_s: PositiveSeconds
    wall_s: PositiveSeconds


class BenchResult(DocumentPart):
    """How fast it was.

    Each request processed `prompt_tokens` and then made `completion_tokens`, the first of which comes with
    the prompt. `cached_tokens` were taken over from an earlier request and count as no work. Rates are tokens
    per second, the median of the samples.
    """

    model: ModelFile
    threads: Count
    prompt_tokens: Annotated[int, Field(ge=1)]
    completion_tokens: Annotated[int, Field(ge=2)]
    cached_tokens: Count
    warm_ups: Count
    samples: Annotated[tuple[BenchSample, ...], Field(min_length=1)]
    prompt_per_second: Rate
    completion_per_second: Rate
    identity: BuildIdentity | None = None
    cpu_variant: Text | None = None
    dsos: tuple[MappedFile, ...] = ()
    drivers: tuple[MappedFile, ...] = ()
    offload: Offload | None = None

    @model_validator(mode="after")
    def _check_work(self) -> Self:
        if self.cached_tokens:
            raise ValueError("cached tokens are no work: such a request measures nothing")
        if any(sample.prompt_s + sample.completion_s > sample.wall_s for sample in self.samples):
            raise ValueError("a request cannot have been shorter than what it is made of")
        return self


class LoadResult(DocumentPart):
    """What was found in a backend library without a device.

    `entry` is the function that it offers, `stubs` are the libraries that were stood in for, `real` those
    that were not.
    """

    dso: MappedFile
    entry: Text
    archs: tuple[Text, ...] = ()
    stubs: tuple[Text, ...] = ()
    real: tuple[Text, ...] = ()


class Failure(DocumentPart):
    """Why it did not pass: the error as `--json` prints it."""

    error: Text
    what: Text
    why: str = ""


class Evidence(DocumentPart):
    """One test of one artifact on one device; `test_version` counts changes of what is tested.

    Kind `bench` says how fast it computes. Kind `load` is what can be said of a backend on a machine without
    its device: it is no smoke test.
    """

    schema_id: Literal["opencoti.evidence/1"] = Field(alias="schema", default="opencoti.evidence/1")
    kind: Literal["smoke", "bench", "load"]
    test_version: Count = 0
    artifact: TestedArtifact
    device: Device
    backend: Token
    commands: tuple[tuple[str, ...], ...] = ()
    started: Timestamp
    passed: bool
    result: SmokeResult | None = None
    measured: BenchResult | None = None
    loaded: LoadResult | None = None
    failure: Failure | None = None
    not_tested: tuple[Text, ...] = ()

    @model_validator(mode="after")
    def _check_outcome(self) -> Self:
        result = {"smoke": self.result, "bench": self.measured, "load": self.loaded}[self.kind]
        if self.passed and (result is None or self.failure is not None):
            raise ValueError("evidence of a passed test has a result and no failure")
        if self.kind == "load" and not self.not_tested:
            raise ValueError("evidence without a device says what was not tested")
        if not self.passed and self.failure is None:
            raise ValueError("evidence of a failed test says why")
        if self.measured is not None and (self.measured.offload is None) != (self.backend == "cpu"):
            raise ValueError("a device that was measured is one that the layers were on")
        return self

    @property
    def is_of_a_device(self) -> bool:
        """Whether real hardware did it; what emulates a processor or a device proves nothing of one."""
        played = any(item.is_software for item in self.device.accelerators)
        return self.device.emulator is None and not played


def load_evidence(data: bytes, origin: str = "the evidence") -> Evidence:
    """Read evidence.

    Args:
        data: exact bytes of the file.
        origin: where they came from, for the message.

    Raises:
        ConfigError: `json-malformed`, `evidence-schema-unknown`, `evidence-malformed` (names the field).
    """
    try:
        return read_document(Evidence, data, schema=SCHEMA, origin=origin, max_bytes=_MAX_EVIDENCE_BYTES)
    except UnknownSchemaError as exc:
        raise ConfigError(
            "evidence-schema-unknown",
            f"cannot read {origin}",
            why=str(exc),
            hint="update opencoti if the file is newer; otherwise this is no evidence",
        ) from exc
    except MalformedError as exc:
        raise ConfigError(
            "evidence-malformed",
            f"cannot read {origin}",
            why=str(exc),
            hint="run the test again",
        ) from exc


def dump_evidence(evidence: Evidence) -> bytes:
    """Return the bytes of an evidence file; the same evidence always gives the same bytes."""
    return render_document(evidence)
