"""The table of quants as data: `quants.json`, or a file of the user's in the same form (`opencoti.quants/1`).

Sizes are in bytes, scores in percent of HumanEval+. A row may lack the SHA-256 of its file; whoever downloads
it says then what it must hash to.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from pydantic import Field, model_validator

from opencoti.document import DocumentPart, MalformedError, UnknownSchemaError, read_document
from opencoti.errors import ConfigError, UsageError, storage_error

if TYPE_CHECKING:
    from opencoti.models.shape import ModelShape

SCHEMA: Final = "opencoti.quants/1"
_MAX_BYTES: Final = 1 << 20
_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
Family = Literal["plain", "cd"]


class Quant(DocumentPart):
    """One file of the model: how big, how good, for which card (in GB, as cards are sold)."""

    name: str = Field(pattern=_NAME)
    size_bytes: int = Field(gt=0)
    humaneval_plus: float | None = Field(ge=0, le=100)
    card_gb: int = Field(gt=0)
    family: Family
    is_reference: bool = False
    note: str = Field(max_length=200)
    url: str = Field(max_length=2000)
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")


class TableShape(DocumentPart):
    """The shape of the model in few numbers: every n-th layer looks back without a window."""

    architecture: str
    block_count: int = Field(gt=0, le=1024)
    windowed_every: int = Field(gt=0)
    full_head_dim: int = Field(gt=0, le=4096)
    full_kv_heads: int = Field(gt=0, le=1024)
    windowed_head_dim: int = Field(gt=0, le=4096)
    windowed_kv_heads: int = Field(gt=0, le=1024)
    window: int = Field(ge=0)
    context: int = Field(gt=0)

    def as_shape(self) -> ModelShape:
        """Return it in the form that the arithmetic of the cache takes."""
        from opencoti.models.shape import LayerShape, ModelShape

        full, narrow = (
            self.full_head_dim * self.full_kv_heads,
            self.windowed_head_dim * self.windowed_kv_heads,
        )
        every = self.windowed_every
        windowed = [at % every < every - 1 for at in range(self.block_count)]
        return ModelShape(
            architecture=self.architecture,
            layers=tuple(
                LayerShape(
                    key_width=narrow if is_windowed else full,
                    value_width=narrow if is_windowed else full,
                    is_windowed=is_windowed,
                )
                for is_windowed in windowed
            ),
            window=self.window,
            context=self.context,
            head_dim=max(self.full_head_dim, self.windowed_head_dim),
        )


class QuantTable(DocumentPart):
    """All quants of one model.

    `shape` is used before the model's own file is there, `working_bytes` is what the engine needs besides
    weights and cache (its own default for what it leaves free of each GPU).
    """

    schema_: str = Field(alias="schema")
    model: str = Field(pattern=_NAME)
    publisher: str = Field(max_length=200)
    default: str
    ollama: str = Field(default="", max_length=200)
    shape_from: str = Field(default="", max_length=500)
    shape: TableShape
    working_bytes: int = Field(ge=0)
    quants: tuple[Quant, ...] = Field(min_length=1, max_length=200, strict=False)

    @model_validator(mode="after")
    def _names_are_unique(self) -> QuantTable:
        names = [quant.name.lower() for quant in self.quants]
        if len(set(names)) != len(names):
            raise ValueError("two quants have one name")
        if self.default.lower() not in names:
            raise ValueError("the default is not among the quants")
        return self

    def named(self, name: str) -> Quant:
        """Return a quant by its name, in any case. Raises `UsageError` (`quant-unknown`)."""
        for quant in self.quants:
            if quant.name.lower() == name.lower():
                return quant
        names = [quant.name for quant in self.quants]
        near = difflib.get_close_matches(name.upper(), names, n=2, cutoff=0.4)
        raise UsageError(
            "quant-unknown",
            f"there is no quant {name[:60]!r} of {self.model}",
            why=f"did you mean {' or '.join(near)}?" if near else "",
            hint=f"known are: {', '.join(names)}",
        )

    @property
    def default_quant(self) -> Quant:
        """The quant for cards that have room for it, and nothing else known."""
        return self.named(self.default)


def load_table(path: Path | None = None) -> QuantTable:
    """Read a table, the shipped one without a path.

    Raises:
        ConfigError: `quants-malformed`, `json-malformed`.
        StorageError: it cannot be read.
    """
    path = Path(__file__).with_name("quants.json") if path is None else path
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as exc:
        raise storage_error(exc, f"cannot read {path}") from exc
    try:
        return read_document(QuantTable, data, schema=SCHEMA, origin=str(path), max_bytes=_MAX_BYTES)
    except (UnknownSchemaError, MalformedError) as exc:
        raise ConfigError(
            "quants-malformed",
            f"cannot use the table {path}",
            why=str(exc),
            hint="correct it, or leave out --table",
        ) from exc
