"""The engine's answers as types. What is not named here is ignored; what is named must be of its type."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from opencoti.client.failures import malformed, stream_error
from opencoti.errors import OpencotiError


class _Payload(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())


P = TypeVar("P", bound=_Payload)


class CachedTokens(_Payload):
    """How many tokens of a prompt were there already."""

    cached_tokens: int = Field(default=0, ge=0)


class Usage(_Payload):
    """Token counts of one request."""

    prompt_tokens: int = Field(default=0, ge=0)
    completion_tokens: int = Field(default=0, ge=0)
    prompt_tokens_details: CachedTokens | None = None


class Timings(_Payload):
    """The engine's own figures: tokens reused (`cache_n`), computed (`prompt_n`) and made (`predicted_n`)."""

    cache_n: int = Field(default=0, ge=0)
    prompt_n: int = Field(default=0, ge=0)
    prompt_ms: float | None = None
    predicted_n: int = Field(default=0, ge=0)
    predicted_ms: float | None = None
    predicted_per_second: float | None = None


class SessionReport(_Payload):
    """What became of a session in one turn, from engines that know sessions.

    `reused` and `reprocessed` are tokens of the prompt. `restored_from` says where the reused ones were:
    `slot`, `copy` (of another slot), `memory` or `disk`; None if there were none.
    """

    id: str  # the name in the interface
    reused: int = Field(default=0, ge=0)
    reprocessed: int = Field(default=0, ge=0)
    restored_from: str | None = None


class AnswerMessage(_Payload):
    """What the model said."""

    role: str = "assistant"
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: tuple[dict[str, Any], ...] | None = None


class ChatChoice(_Payload):
    """One answer; the engine gives one unless asked for more."""

    message: AnswerMessage
    finish_reason: str | None = None


class ChatCompletion(_Payload):
    """The answer to `/v1/chat/completions`."""

    choices: tuple[ChatChoice, ...] = Field(min_length=1)
    model: str = ""
    usage: Usage | None = None
    timings: Timings | None = None
    session: SessionReport | None = None

    @property
    def text(self) -> str:
        """Text of the first answer."""
        return self.choices[0].message.content or ""

    @property
    def finish_reason(self) -> str | None:
        """Why it ended: `stop`, `length`, `tool_calls`."""
        return self.choices[0].finish_reason


class TextChoice(_Payload):
    """One continuation."""

    text: str
    finish_reason: str | None = None


class TextCompletion(_Payload):
    """The answer to `/v1/completions`, and one event of its stream."""

    choices: tuple[TextChoice, ...] = Field(min_length=1)
    model: str = ""
    usage: Usage | None = None
    timings: Timings | None = None
    session: SessionReport | None = None

    @property
    def text(self) -> str:
        """Text of the first continuation."""
        return self.choices[0].text

    @property
    def finish_reason(self) -> str | None:
        """Why it ended."""
        return self.choices[0].finish_reason


class Delta(_Payload):
    """A piece of an answer."""

    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: tuple[dict[str, Any], ...] | None = None


class ChunkChoice(_Payload):
    """A piece of one answer."""

    delta: Delta = Delta()
    finish_reason: str | None = None


class ChatChunk(_Payload):
    """One event of a streamed chat completion; the last one has counts and no choices."""

    choices: tuple[ChunkChoice, ...] = ()
    model: str = ""
    usage: Usage | None = None
    timings: Timings | None = None
    session: SessionReport | None = None

    @property
    def text(self) -> str:
        """The new text, often one token."""
        return (self.choices[0].delta.content or "") if self.choices else ""

    @property
    def finish_reason(self) -> str | None:
        """Why the answer ended; None before that."""
        return self.choices[0].finish_reason if self.choices else None


class Embedding(_Payload):
    """The vector of one text."""

    index: int = Field(ge=0)
    embedding: tuple[float, ...] = Field(min_length=1)


class Embeddings(_Payload):
    """The answer to `/v1/embeddings`."""

    data: tuple[Embedding, ...]
    model: str = ""


class Model(_Payload):
    """One served model."""

    id: str  # the name in the interface


class Models(_Payload):
    """The answer to `/v1/models`."""

    data: tuple[Model, ...]


class Identity(_Payload):
    """Which build it is; `features` names what the patch series adds to the interface."""

    version_string: str = ""
    features: tuple[str, ...] = ()


class Props(_Payload):
    """What is used of `/props`."""

    total_slots: int = Field(default=1, ge=1)
    model_path: str = ""
    opencoti: Identity = Identity()


class Prompt(_Payload):
    """The answer to `/apply-template`."""

    prompt: str


def parse(kind: type[P], body: bytes, path: str) -> P:
    """Return an answer as its type.

    Raises:
        VerificationError: `answer-malformed`.
    """
    try:
        return kind.model_validate_json(body)
    except ValidationError as exc:
        raise _malformed(exc, body, path) from exc


def parse_event(kind: type[P], data: bytes, path: str) -> P:
    """Return one event of a stream as its type.

    Raises:
        NetworkError: `engine-failed`, the event is an error.
        VerificationError: `answer-malformed`.
    """
    # The keys of an error are no keys of an event, so most events are parsed once only.
    if data.startswith((b'{"error"', b'{"code"')):
        raise _event_error(data, path)
    try:
        return kind.model_validate_json(data)
    except ValidationError as exc:
        raise _malformed(exc, data, path) from exc


def _event_error(data: bytes, path: str) -> OpencotiError:
    import json

    try:
        return stream_error(json.loads(data), path)
    except (ValueError, RecursionError):
        return malformed(path, data[:200].decode("utf-8", "replace"))


def _malformed(exc: ValidationError, data: bytes, path: str) -> OpencotiError:
    first = exc.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    return malformed(path, f"{where + ': ' if where else ''}{first['msg']}; it begins {data[:80]!r}")
