"""The file of a trust root, `root-N.json`, schema `opencoti.root/1`: its model, reader and writer. Pure.

`rootKeys` are kept offline and sign nothing but roots; `signingKeys` sign releases, each with the last
sequence it is accepted for (null: in use, 0: never again). Version 0 is the root before the first release: it
has no key at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from opencoti.document import DocumentPart, MalformedError, UnknownSchemaError, read_document, render_document
from opencoti.errors import ConfigError, OpencotiError
from opencoti.minisign import PublicKey
from opencoti.trust.comment import MAX_SEQUENCE

SCHEMA = "opencoti.root/1"
MAX_ROOT_BYTES = 256 << 10
_MAX_KEYS = 64

KeyText = Annotated[str, StringConstraints(pattern=r"^RW[A-Za-z0-9+/]{54}$")]
Product = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,31}$")]
Sequence = Annotated[int, Field(ge=0, le=MAX_SEQUENCE)]


class SigningKey(DocumentPart):
    """A key that signs releases, up to and with `last_sequence` when it is retired."""

    key: KeyText
    last_sequence: Sequence | None = None

    @property
    def public(self) -> PublicKey:
        """The key itself."""
        return _public(self.key)


class RootDocument(DocumentPart):
    """One version of the list of keys."""

    schema_id: Literal["opencoti.root/1"] = Field(alias="schema", default="opencoti.root/1")
    product: Product
    version: Annotated[int, Field(ge=0, le=1_000_000)]
    threshold: Annotated[int, Field(ge=1, le=_MAX_KEYS)]
    root_keys: Annotated[tuple[KeyText, ...], Field(max_length=_MAX_KEYS)]
    signing_keys: Annotated[tuple[SigningKey, ...], Field(max_length=_MAX_KEYS)]

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        keys = list(self._all_keys())
        for key in keys:
            if key.is_development:
                raise ValueError(f"{key.name} is a one-time development key")
        if len({key.key_id for key in keys}) != len(keys) or len({key.raw for key in keys}) != len(keys):
            raise ValueError("a key or a key id stands twice; root keys must differ from signing keys")
        return self

    @model_validator(mode="after")
    def _check_threshold(self) -> Self:
        if self.version == 0 and (self.root_keys or self.signing_keys):
            raise ValueError("version 0 is the root before the first release and has no keys")
        if self.version > 0 and len(self.root_keys) < self.threshold:
            raise ValueError(f"{len(self.root_keys)} root keys can never reach threshold {self.threshold}")
        return self

    def _all_keys(self) -> Iterator[PublicKey]:
        yield from self.public_root_keys
        yield from (key.public for key in self.signing_keys)

    @property
    def public_root_keys(self) -> tuple[PublicKey, ...]:
        """The offline keys."""
        return tuple(_public(text) for text in self.root_keys)


def load_root(data: bytes, origin: str) -> RootDocument:
    """Read a root.

    Args:
        data: exact bytes of the file.
        origin: where they came from, for the message.

    Raises:
        ConfigError: `json-malformed`, `root-schema-unknown`, `root-malformed` (names the field).
    """
    try:
        return read_document(RootDocument, data, schema=SCHEMA, origin=origin, max_bytes=MAX_ROOT_BYTES)
    except UnknownSchemaError as exc:
        raise ConfigError(
            "root-schema-unknown",
            f"cannot read {origin}",
            why=str(exc),
            hint="update opencoti if the file is newer; otherwise this is no trust root",
        ) from exc
    except MalformedError as exc:
        raise ConfigError(
            "root-malformed",
            f"cannot read {origin}",
            why=str(exc),
            hint="make roots with `python -m release root`",
        ) from exc


def dump_root(root: RootDocument) -> bytes:
    """Return the bytes of a root; the same root always gives the same bytes."""
    return render_document(root)


def root_name(version: int) -> str:
    """Return the file name of a root."""
    return f"root-{version}.json"


def _public(text: str) -> PublicKey:
    try:
        return PublicKey.parse(text.encode(), "in the root")
    except OpencotiError as exc:
        # Pydantic collects ValueErrors into one report that names the field.
        raise ValueError(f"key {text[:12]}…: {exc.why}") from exc
