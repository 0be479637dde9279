"""The table `vendors/patches/<series>/features.toml`: by which signs a binary shows which patches it has."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from opencoti.errors import ConfigError

TABLE_NAME = "features.toml"
MAX_TEXT = 500
_MAX_TABLE_BYTES = 1 << 20


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as exc:
        raise ValueError(f"{text!r} is no regular expression: {exc}") from exc
    return text


# Printable ASCII: what `strings` shows.
_Text = Annotated[str, StringConstraints(pattern=r"^[\x20-\x7e]+$", min_length=4, max_length=MAX_TEXT)]
_Pattern = Annotated[str, StringConstraints(min_length=1, max_length=MAX_TEXT), AfterValidator(_pattern)]


class _Row(BaseModel):
    """Common rules: immutable, exact types, no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Mark(_Row):
    """A text or a symbol to look for; exactly one of them."""

    string: _Text | None = None
    symbol: _Pattern | None = None

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if (self.string is None) == (self.symbol is None):
            raise ValueError("give either `string` or `symbol`")
        return self

    def __str__(self) -> str:
        return f"string {self.string!r}" if self.string is not None else f"symbol {self.symbol!r}"


class Part(Mark):
    """A piece of upstream code, and how a file shows that it holds it."""

    of: Annotated[str, StringConstraints(min_length=1, max_length=200)]


class Sign(Mark):
    """What only the patch brings into a part."""

    part: str
    count: Annotated[int, Field(ge=1, le=1_000_000)] = 1


class PatchSigns(_Row):
    """The signs of one patch, or why it leaves none."""

    sign: tuple[Sign, ...] = ()
    invisible: Annotated[str, StringConstraints(min_length=1, max_length=200)] | None = None

    @model_validator(mode="after")
    def _check_either(self) -> Self:
        if bool(self.sign) == bool(self.invisible):
            raise ValueError("give either signs or `invisible`")
        return self


class Features(_Row):
    """The whole table."""

    schema_id: Literal["opencoti.features/1"] = Field(alias="schema")
    part: dict[str, Part]
    patch: dict[str, PatchSigns]

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        for name, signs in self.patch.items():
            for sign in signs.sign:
                if sign.part not in self.part:
                    raise ValueError(f"patch {name} has a sign in part {sign.part!r}, which is not listed")
        return self

    def undescribed(self, patches: Iterable[str]) -> tuple[str, ...]:
        """Return the patch files (`NNNN-name.patch`) that the table says nothing about."""
        return tuple(name for name in patches if name.removesuffix(".patch") not in self.patch)


def load_features(path: Path) -> Features:
    """Read a table.

    Raises:
        ConfigError: `features-missing`; `features-malformed`, names the entry.
    """
    try:
        data = path.read_bytes()
    except OSError as exc:
        raise ConfigError(
            "features-missing",
            f"cannot read {path}",
            why=exc.strerror or str(exc),
            hint="the table belongs to the patch series: see docs/reference/features.md",
        ) from exc
    return parse_features(data, str(path))


def parse_features(data: bytes, origin: str) -> Features:
    """Read the text of a table. Raises `ConfigError` (`features-malformed`)."""
    if len(data) > _MAX_TABLE_BYTES:
        raise _malformed(origin, f"it has more than {_MAX_TABLE_BYTES} bytes")
    try:
        document = tomllib.loads(data.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as exc:
        raise _malformed(origin, str(exc)) from exc
    try:
        return Features.model_validate(document, strict=False)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])[:200]
        raise _malformed(origin, f"{where}: {first['msg']}".removeprefix(": ")) from exc


def _malformed(origin: str, why: str) -> ConfigError:
    return ConfigError(
        "features-malformed", f"cannot use {origin}", why=why, hint="see docs/reference/features.md"
    )
