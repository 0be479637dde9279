"""What the JSON documents of this project have in common: manifest, release index, evidence, trust root.

Owns the rules of their models and how one is read and written. It knows no document; each module turns the
two errors here into its own, which name what to do.
"""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from opencoti.jsonio import parse_strict, render_json


class DocumentPart(BaseModel):
    """Common rules: immutable, exact types, camelCase in JSON, unknown fields kept."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="allow", frozen=True, strict=True
    )


PartT = TypeVar("PartT", bound=DocumentPart)


class UnknownSchemaError(ValueError):
    """The document names another schema; the text says which."""


class MalformedError(ValueError):
    """The document breaks a rule of its model; the text names the first field and what is wrong with it.

    Attributes:
        count: how many rules it breaks.
    """

    def __init__(self, text: str, count: int) -> None:
        super().__init__(text)
        self.count = count


def read_document(model: type[PartT], data: bytes, *, schema: str, origin: str, max_bytes: int) -> PartT:
    """Read a document strictly.

    Args:
        model: what it must be.
        data: exact bytes of the file.
        schema: the one value of its field `schema` that is taken.
        origin: where the bytes came from, for the message.
        max_bytes: a longer one is not looked at.

    Raises:
        ConfigError: `json-malformed`.
        UnknownSchemaError: it is of another schema.
        MalformedError: it breaks the rules of `model`.
    """
    document = parse_strict(data, origin, max_bytes=max_bytes)
    found = document.get("schema") if isinstance(document, dict) else None
    if found != schema:
        raise UnknownSchemaError(f"its schema is {str(found)[:60]!r}, this program reads {schema}")
    try:
        return model.model_validate_json(data)
    except ValidationError as exc:
        raise _malformed(exc) from exc


def render_document(document: DocumentPart) -> bytes:
    """Return the bytes of a document; the same document always gives the same bytes."""
    return render_json(document.model_dump(mode="json", by_alias=True))


def _malformed(exc: ValidationError) -> MalformedError:
    first = exc.errors(include_url=False, include_context=False, include_input=False)[0]
    field = ".".join(str(part) for part in first["loc"])[:200]
    text = first["msg"].removeprefix("Value error, ")
    return MalformedError((f"{field}: " if field else "") + text, exc.error_count())
