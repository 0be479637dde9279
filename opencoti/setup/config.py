"""What setup writes down: the finished configuration, and what is decided already while it is not finished.

Two files of one form in the system's place for settings (`~/.config/opencoti`): `config.json`
(`opencoti.config/1`) and `setup.json` (`opencoti.setup/1`), which is removed at the end.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from pydantic import Field

from opencoti.document import DocumentPart, MalformedError, UnknownSchemaError, read_document, render_document
from opencoti.errors import ConfigError, storage_error
from opencoti.files import write_atomic

if TYPE_CHECKING:
    from typing import Self

CONFIG_SCHEMA: Final = "opencoti.config/1"
PROGRESS_SCHEMA: Final = "opencoti.setup/1"
CONFIG_NAME: Final = "config.json"
PROGRESS_NAME: Final = "setup.json"
_MAX_BYTES: Final = 1 << 20
Origin = Literal["file", "ollama", "download"]


class ModelChoice(DocumentPart):
    """The model file. `size_bytes` and `mtime_ns` tell whether it is still the one that was looked at."""

    path: str
    origin: Origin
    name: str
    sha256: str | None = None
    size_bytes: int
    mtime_ns: int

    @classmethod
    def of_file(cls, path: Path, *, origin: Origin, name: str, sha256: str | None) -> Self:
        """Describe a file. Raises `StorageError`."""
        try:
            found = path.stat()
        except OSError as exc:
            raise storage_error(exc, f"cannot read {path}") from exc
        return cls(
            path=str(path),
            origin=origin,
            name=name,
            sha256=sha256,
            size_bytes=found.st_size,
            mtime_ns=found.st_mtime_ns,
        )

    def is_unchanged(self) -> bool:
        """Tell whether the file is still there, as it was."""
        with suppress(OSError):
            found = os.stat(self.path)
            return (found.st_size, found.st_mtime_ns) == (self.size_bytes, self.mtime_ns)
        return False


class FirstAnswer(DocumentPart):
    """What the test prompt brought."""

    answer: str
    tokens: int | None
    seconds: float
    libraries: tuple[str, ...] = Field(default=(), strict=False)


class Config(DocumentPart):
    """A finished configuration. `engine` is empty where the launcher is to find it each time."""

    schema_: str = Field(alias="schema", default=CONFIG_SCHEMA)
    model: ModelChoice
    arguments: tuple[str, ...] = Field(strict=False)
    gpu: str = "auto"
    engine: str = ""
    reason: str = ""
    test: FirstAnswer


class Progress(DocumentPart):
    """What is decided already."""

    schema_: str = Field(alias="schema", default=PROGRESS_SCHEMA)
    source: str = ""
    model: ModelChoice | None = None


DocumentT = TypeVar("DocumentT", Config, Progress)


def config_folder() -> Path:
    """Return the folder. Raises `ConfigError` (`no-config-folder`)."""
    import platformdirs

    try:
        return platformdirs.user_config_path("opencoti", appauthor=False).expanduser()
    except RuntimeError as exc:
        raise ConfigError(
            "no-config-folder",
            "cannot tell where to keep the configuration",
            why=str(exc),
            hint="set HOME, or XDG_CONFIG_HOME to a folder",
        ) from exc


def load_config(folder: Path | None = None) -> Config | None:
    """Read the configuration; None where there is none.

    Raises:
        ConfigError: `config-malformed`, `json-malformed`, `no-config-folder`.
        StorageError: it cannot be read.
    """
    return _load(Config, (folder or config_folder()) / CONFIG_NAME, CONFIG_SCHEMA)


def load_progress(folder: Path) -> Progress:
    """Read what is decided already; nothing where there is nothing usable."""
    with suppress(ConfigError):
        return _load(Progress, folder / PROGRESS_NAME, PROGRESS_SCHEMA) or Progress()
    return Progress()


def save(document: Config | Progress, folder: Path) -> Path:
    """Write a document, whole or not at all; return its path. Raises `StorageError`."""
    path = folder / (CONFIG_NAME if isinstance(document, Config) else PROGRESS_NAME)
    write_atomic(path, render_document(document), mode=0o600)
    return path


def forget_progress(folder: Path) -> None:
    """Remove what was decided. Raises `StorageError`."""
    try:
        (folder / PROGRESS_NAME).unlink(missing_ok=True)
    except OSError as exc:
        raise storage_error(exc, f"cannot remove {folder / PROGRESS_NAME}") from exc


def _load(model: type[DocumentT], path: Path, schema: str) -> DocumentT | None:
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise storage_error(exc, f"cannot read {path}") from exc
    try:
        return read_document(model, data, schema=schema, origin=str(path), max_bytes=_MAX_BYTES)
    except (UnknownSchemaError, MalformedError) as exc:
        raise ConfigError(
            "config-malformed",
            f"cannot use {path}",
            why=str(exc),
            hint="`python -m opencoti.setup --again` writes it anew",
        ) from exc
