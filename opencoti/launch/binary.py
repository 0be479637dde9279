"""Finding the engine: an explicit path, the environment, the pin and its cache, a checkout's build, PATH.

The first place that names one decides; a place that names a wrong one is an error and no reason to go on.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from opencoti.errors import ConfigError, MissingError, UsageError, VerificationError, storage_error

if TYPE_CHECKING:
    from opencoti.console import Console
    from opencoti.fetch.settings import Settings
    from opencoti.fetch.source import Request
    from opencoti.pins import ArtifactPin

LOCAL_VARIABLE: Final = "OPENCOTI_LLAMAFILE_LOCAL"


@dataclass(frozen=True, kw_only=True)
class Product:
    """A kind of artifact that is looked for.

    Attributes:
        label: what messages call it.
        stem: how the names of its files begin.
        variable: names a file on disk, whose hash still has to be the pinned one.
        programs: names on PATH.
        pin_package: package that holds the shipped pin.
    """

    label: str
    stem: str
    variable: str
    programs: tuple[str, ...]
    pin_package: str


ENGINE: Final = Product(
    label="engine",
    stem="opencoti-llamafile",
    variable=LOCAL_VARIABLE,
    programs=("opencoti-llamafile", "llamafile", "llama-server"),
    pin_package="opencoti.fetch",
)


@dataclass(frozen=True, kw_only=True)
class Binary:
    """An engine on disk, and what named it."""

    path: Path
    named_by: str


@dataclass(frozen=True, kw_only=True)
class Search:
    """Where to look.

    Attributes:
        environ: the environment.
        explicit: path that the user gave.
        pin: pin file, the shipped one if None.
        checkout: root of a source checkout, None if there is none.
        allow_fetch: download what the pin names.
        product: the kind of artifact.
    """

    environ: Mapping[str, str]
    explicit: Path | None = None
    pin: Path | None = None
    checkout: Path | None = None
    allow_fetch: bool = False
    product: Product = ENGINE


def find_binary(search: Search, console: Console) -> Binary:
    """Return the engine to start.

    Raises:
        MissingError: `engine-not-found`; says what was tried.
        UsageError: `engine-path-wrong`, a named file is not there.
        VerificationError: `hash-mismatch`, a named file is not the pinned one.
        ConfigError: a pin or variable is malformed.
        OpencotiError: as `opencoti.fetch.get.fetch`, where it may download.
    """
    if search.explicit is not None:
        return Binary(path=_require_file(search.explicit, "--binary"), named_by="--binary")
    found, tried = find_named(search, console)
    if found is not None:
        return found
    is_released = not isinstance(_pin(search), ConfigError)
    fetching = "`python -m opencoti.fetch` gets one, or " if is_released else ""
    building = "" if is_released else "; `./noxw -s quickstart` in a source checkout builds one"
    raise MissingError(
        "engine-not-found",
        "no engine was found on this machine",
        why="; ".join(tried),
        hint=f"{fetching}name one with --binary FILE or {search.product.variable}{building}",
    )


def find_named(search: Search, console: Console) -> tuple[Binary | None, list[str]]:
    """Return the artifact that a place names, and the places that name none. Raises as `find_binary`."""
    tried: list[str] = []
    for place in (_from_environ, _from_pin, _from_checkout, _from_path):
        found = place(search, console, tried)
        if found is not None:
            return found, tried
    return None, tried


def checkout_root() -> Path | None:
    """Return the source checkout that this package runs from, None if it is installed."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "vendors" / "pin").is_dir() else None


Place = Callable[[Search, "Console", list[str]], Binary | None]


def _from_environ(search: Search, console: Console, tried: list[str]) -> Binary | None:
    variable = search.product.variable
    value = search.environ.get(variable, "")
    if not value:
        tried.append(f"{variable} is not set")
        return None
    path = _require_file(Path(value), variable)
    pin = _pin(search)
    if isinstance(pin, ConfigError):
        console.info(f"{path.name}: not verified, {pin.what}")
    else:
        _require_hash(path, pin.sha256, search.product)
    return Binary(path=path, named_by=variable)


def _from_pin(search: Search, console: Console, tried: list[str]) -> Binary | None:
    pin = _pin(search)
    if isinstance(pin, ConfigError):
        tried.append(pin.what)
        return None
    from opencoti.fetch.settings import Settings
    from opencoti.fetch.source import request_for_pin

    settings = Settings.from_environ(search.environ)
    path = _from_cache(request_for_pin(pin, settings), settings, console, allow_fetch=search.allow_fetch)
    if path is None:
        tried.append(f"{pin.asset} of {pin.read_from} is not in {settings.artifacts}")
        return None
    return Binary(path=path, named_by=pin.read_from)


def _from_cache(request: Request, settings: Settings, console: Console, *, allow_fetch: bool) -> Path | None:
    if allow_fetch:
        from opencoti.fetch.get import fetch

        return fetch(request, settings, console).path
    from opencoti.fetch.store import Slot, inspect

    slot = Slot(folder=settings.artifacts / request.sha256[:12], name=request.name)
    return slot.final if inspect(slot).sha256 == request.sha256 else None


def _from_checkout(search: Search, console: Console, tried: list[str]) -> Binary | None:
    if search.checkout is None:
        tried.append("this is no source checkout")
        return None
    folder = search.checkout / "dist" / "llamafile"
    found = sorted(_built(folder, search.product), key=lambda path: path.stat().st_mtime_ns)
    if not found:
        tried.append(f"no {search.product.stem} for this machine in {folder}")
        return None
    return Binary(path=found[-1], named_by="the build of this checkout")


def _built(folder: Path, product: Product) -> list[Path]:
    """Return the artifacts without a flavor for this machine; names end in system and architecture."""
    suffixes = tuple(f"-linux-{name}" for name in {platform.machine(), "any"})
    return [path for path in folder.glob(f"{product.stem}-*.llamafile") if path.stem.endswith(suffixes)]


def _from_path(search: Search, console: Console, tried: list[str]) -> Binary | None:
    import shutil

    path = search.environ.get("PATH", os.defpath)
    for name in search.product.programs:
        found = shutil.which(name, path=path)
        if found:
            return Binary(path=Path(found).absolute(), named_by="PATH")
    tried.append(f"none of {', '.join(search.product.programs)} is on PATH")
    return None


def _pin(search: Search) -> ArtifactPin | ConfigError:
    """Return the pin; the error where nothing has been released yet, since that is no mistake."""
    from opencoti.pins import ArtifactPin

    try:
        if search.pin is not None:
            return ArtifactPin.load(search.pin)
        return ArtifactPin.load_shipped(search.product.pin_package)
    except ConfigError as error:
        if error.error_id != "no-release":
            raise
        return error


def _require_file(path: Path, named_by: str) -> Path:
    absolute = Path(os.path.abspath(path))
    if not absolute.is_file():
        raise UsageError(
            "engine-path-wrong",
            f"{named_by} names {path}, which is no file",
            hint=f"correct {named_by}, or leave it out",
        )
    return absolute


def _require_hash(path: Path, sha256: str, product: Product) -> None:
    from opencoti.hashing import sha256_file

    try:
        found = sha256_file(path)
    except OSError as exc:
        raise storage_error(exc, f"cannot read {path}") from exc
    if found != sha256:
        raise VerificationError(
            "hash-mismatch",
            f"{path} is not the pinned {product.label}",
            why=f"expected sha256 {sha256}, found {found}",
            hint=f"{product.variable} replaces the path and never the hash; --binary takes any file",
        )
