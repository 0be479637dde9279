"""`containers/toolchains.toml`, the one table of backends: what each is built with and for which devices."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from opencoti.errors import ConfigError, UsageError

Kind = Literal["cpu", "cuda", "hip", "vulkan"]
# `75`, `120f`, `90+ptx` (NVIDIA) or `gfx90a` (AMD); anything else, such as the text of an error, never
# reaches a compiler (case B13).
_TARGET: Final = r"^(\d{2,3}[af]?(\+ptx)?|gfx[0-9a-f]{3,4})$"
_VERSION: Final = r"^\d+(\.\d+)*$"
# Names of files, folders and extensions: they become parts of paths and of command lines.
Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+-]*$")]
Target = Annotated[str, StringConstraints(pattern=_TARGET)]
Version = Annotated[str, StringConstraints(pattern=_VERSION)]
HostArch = Literal["x86_64", "aarch64"]


class BundledWheel(BaseModel):
    """Libraries of a vendor that may be embedded: file names, and the wheel that holds them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    wheel: Word
    files: tuple[Word, ...]


class Backend(BaseModel):
    """One row of the table. The file itself says what each key means."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Word
    title: str
    kind: Kind
    toolchain: Word
    toolkit: Version
    library: Word | Literal[""] = ""
    hosts: tuple[HostArch, ...] = ("x86_64", "aarch64")
    targets: dict[HostArch, tuple[Target, ...]] = Field(default_factory=dict)
    features: tuple[Word, ...] = ()
    absent_features: tuple[Word, ...] = ()
    definitions: tuple[str, ...] = ()
    needed: tuple[Word, ...] = ()
    glibc: Version
    libstdcxx: Version | None = None
    min_driver: Version | None = None
    bundle: tuple[BundledWheel, ...] = ()
    probe: Word | Literal[""] = ""

    @model_validator(mode="after")
    def _check_whole(self) -> Self:
        """Refuse a row without what its kind cannot be built or proved without."""
        if self.kind == "cpu":
            return self
        if not self.library or not self.probe:
            raise ValueError("library and probe are needed")
        if self.kind == "cuda" and not any(name.startswith("libcublas.") for name in self.needed):
            raise ValueError("needed must name libcublas.so.N, which is linked against")
        if self.kind != "vulkan" and (bare := [host for host in self.hosts if not self.targets.get(host)]):
            raise ValueError(f"targets.{bare[0]} is needed, since it stands in hosts")
        for host, targets in self.targets.items():
            if len({target.removesuffix("+ptx") for target in targets}) != len(targets):
                raise ValueError(f"targets.{host} names a device twice")
        return self

    def targets_for(self, arch: str) -> tuple[str, ...]:
        """Return the devices that a full build for hosts of `arch` covers; empty where it needs no list."""
        return next((targets for host, targets in self.targets.items() if host == arch), ())

    def declared_for(self, arch: str) -> tuple[str, ...]:
        """Return what the probe must show, sorted: targets, or features of the shader compiler."""
        shown = (self.probe, *self.features) if self.kind == "vulkan" else self.targets_for(arch)
        return tuple(sorted(shown))

    def choose_targets(self, arch: str, asked: Sequence[str] | None) -> tuple[str, ...]:
        """Return the devices to build for: all, or those asked for.

        `90` asks for what the table has under this number, be it `90` or `90+ptx`.

        Raises:
            UsageError: `target-malformed`, `target-unknown`, `targets-empty`, `targets-without-meaning`.
        """
        known = self.targets_for(arch)
        if asked is None:
            return known
        if not known:
            raise UsageError(
                "targets-without-meaning",
                f"--archs has no meaning for {self.name}",
                why="it has no list of devices",
            )
        if not asked:
            raise UsageError(
                "targets-empty",
                "--archs names no device",
                hint=f"name some of {', '.join(known)}, or leave it out for all",
            )
        chosen = []
        for target in asked:
            if not re.fullmatch(_TARGET, target):
                raise UsageError(
                    "target-malformed",
                    f"--archs: {target[:80]!r} is no device architecture",
                    hint=f"write it as in {', '.join(known)}",
                )
            match = [name for name in known if target in (name, name.removesuffix("+ptx"))]
            if not match:
                raise UsageError(
                    "target-unknown",
                    f"--archs: {self.name} for {arch} hosts has no {target}",
                    why=f"toolchain {self.toolchain} ({self.toolkit}) is proved for {', '.join(known)}",
                    hint="choose of these, or another backend (`containers/toolchains.toml`)",
                )
            chosen += match
        return tuple(name for name in known if name in chosen)


class Table(BaseModel):
    """Every backend, in the order of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    backends: tuple[Backend, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all backends."""
        return tuple(backend.name for backend in self.backends)

    @property
    def gpu(self) -> tuple[Backend, ...]:
        """Every backend but the CPU's."""
        return tuple(backend for backend in self.backends if backend.kind != "cpu")

    def backend(self, name: str) -> Backend:
        """Return one backend.

        Raises:
            UsageError: `backend-not-in-table`.
        """
        for backend in self.backends:
            if backend.name == name:
                return backend
        raise UsageError(
            "backend-not-in-table", f"there is no backend {name}", hint=f"known: {', '.join(self.names)}"
        )

    def of_toolchain(self, name: str) -> tuple[Backend, ...]:
        """Return the backends that a toolchain builds."""
        return tuple(backend for backend in self.backends if backend.toolchain == name)


def load_table(path: Path) -> Table:
    """Read the table.

    Raises:
        ConfigError: `table-malformed`, naming the row and the key.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        raise _malformed(path, str(exc)) from exc
    return Table(backends=tuple(_row(name, row, path) for name, row in data.items()))


def _row(name: str, row: object, path: Path) -> Backend:
    if not isinstance(row, dict) or "name" in row:
        raise _malformed(path, f"{name[:80]}: is no table, or has a name besides that of its head")
    try:
        return Backend.model_validate({"name": name, **row})
    except ValidationError as exc:
        first = exc.errors()[0]
        place = ".".join(str(part) for part in (name[:80], *first["loc"]))
        raise _malformed(path, f"{place}: {first['msg'].removeprefix('Value error, ')}") from exc


def _malformed(path: Path, why: str) -> ConfigError:
    return ConfigError(
        "table-malformed", f"cannot use {path}", why=why, hint="the head of the file says what each key means"
    )
