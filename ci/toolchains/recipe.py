"""The description of a toolchain, `containers/<name>/recipe.toml`, and its two locks.

    wheels.lock   [[wheel]] name, version, arch, filename, sha256, size     wheels, per host architecture
    debs.lock     [[deb]]   name, version, arch, sha256, size               packages of the image

Neither holds an address: wheels come from the indexes that pip is configured for, packages from the
sources that apt is configured for.
"""

from __future__ import annotations

import platform
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ci.stages.model import digest
from ci.toolchains.wrappers import wrapper_scripts
from opencoti.errors import ConfigError
from opencoti.files import is_safe_name
from opencoti.hashing import is_sha256, sha256_file

# Machine names of the kernel → those of wheels and of Debian.
DEBIAN_ARCHS: Final = {"x86_64": "amd64", "aarch64": "arm64"}
# Raised when the code that unpacks wheels or makes the file system of the image changes what comes out.
_LAYOUT_VERSION: Final = 1


@dataclass(frozen=True, kw_only=True)
class LockedFile:
    """One downloaded file that is pinned by hash; `size` in bytes."""

    name: str
    version: str
    arch: str
    sha256: str
    size: int
    filename: str = ""


@dataclass(frozen=True, kw_only=True)
class WheelRule:
    """Which parts of a wheel go where."""

    name: str
    version: str
    source: str
    target: str
    executables: tuple[str, ...]
    drop: tuple[str, ...]

    def place(self, member: str) -> str | None:
        """Return where a member of the wheel goes, relative to the toolchain, or None to leave it out."""
        if member.endswith("/") or not member.startswith(self.source):
            return None
        inner = member.removeprefix(self.source)
        return None if inner.startswith(self.drop) else self.target + inner


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A toolchain for one host architecture, with its locks."""

    name: str
    description: str
    folder: Path
    arch: str
    rules: tuple[WheelRule, ...]
    wheels: tuple[LockedFile, ...]
    deb_names: tuple[str, ...]
    debs: tuple[LockedFile, ...]

    @property
    def id(self) -> str:
        """Hash of everything that decides what the toolchain on this machine holds."""
        return digest(
            {
                "layout": _LAYOUT_VERSION,
                "arch": self.arch,
                "wheels": [[wheel.name, wheel.version, wheel.sha256] for wheel in self.wheels],
                "rules": [
                    [rule.name, rule.source, rule.target, rule.executables, rule.drop] for rule in self.rules
                ],
                "wrappers": wrapper_scripts(self.arch),
            }
        )

    @property
    def image_id(self) -> str:
        """Hash of everything that decides what the image holds: the recipe of the image."""
        return digest(
            {
                "toolchain": self.id,
                "dockerfile": sha256_file(self.folder / "Dockerfile"),
                "debs": [[deb.name, deb.version, deb.sha256] for deb in self.debs],
                "deb_names": self.deb_names,
            }
        )

    @classmethod
    def load(cls, folder: Path, arch: str | None = None, *, needs_lock: bool = True) -> Recipe:
        """Read the recipe and the locks of one toolchain.

        Args:
            folder: `containers/<name>`.
            arch: host architecture; this machine's when None.
            needs_lock: False while the locks are being written.

        Raises:
            ConfigError: `toolchain-unknown`, `recipe-malformed`, `lock-malformed`.
        """
        arch = arch or host_arch()
        if not (folder / "recipe.toml").is_file():
            known = ", ".join(sorted(path.parent.name for path in folder.parent.glob("*/recipe.toml")))
            raise ConfigError(
                "toolchain-unknown", f"there is no toolchain {folder.name}", hint=f"known: {known}"
            )
        data = _read_toml(folder / "recipe.toml", "recipe-malformed")
        try:
            rules = tuple(_rule(entry) for entry in data["wheel"])
            recipe = cls(
                name=str(data["name"]),
                description=str(data["description"]),
                folder=folder,
                arch=arch,
                rules=rules,
                wheels=_locked(folder / "wheels.lock", "wheel", arch),
                deb_names=tuple(data["debs"]),
                debs=_locked(folder / "debs.lock", "deb", DEBIAN_ARCHS[arch]),
            )
        except (KeyError, TypeError) as exc:
            raise _malformed(
                "recipe-malformed", folder / "recipe.toml", f"field {exc} is missing or wrong"
            ) from exc
        if needs_lock:
            _check_complete(recipe)
        return recipe


def host_arch() -> str:
    """Return the architecture of this machine, as the kernel names it.

    Raises:
        ConfigError: `host-arch-unsupported`.
    """
    machine = platform.machine()
    if machine not in DEBIAN_ARCHS:
        raise ConfigError(
            "host-arch-unsupported",
            f"no toolchain is pinned for {machine} machines",
            hint=f"build on {' or '.join(DEBIAN_ARCHS)}, or use --engine host --toolchain system",
        )
    return machine


def lock_text(table: str, entries: Sequence[LockedFile], header: str) -> str:
    """Return the text of a lock file, sorted, with one `[[table]]` per file."""
    blocks = [
        "\n".join(f"{key} = {_toml_value(value)}" for key, value in _fields(entry).items())
        for entry in sorted(entries, key=lambda entry: (entry.arch, entry.name))
    ]
    return "".join(
        [*(f"# {line}\n" for line in header.splitlines()), *(f"\n[[{table}]]\n{b}\n" for b in blocks)]
    )


def load_lock(path: Path, table: str) -> tuple[LockedFile, ...]:
    """Read every entry of a lock, of all architectures; a lock that is not there has none.

    Raises:
        ConfigError: `lock-malformed`, naming the file, the entry and the field.
    """
    if not path.is_file():
        return ()
    data = _read_toml(path, "lock-malformed")
    entries = tuple(_locked_file(entry, path) for entry in data.get(table, ()))
    if len({(entry.name, entry.arch) for entry in entries}) != len(entries):
        raise _malformed("lock-malformed", path, "a name stands twice for one architecture")
    return entries


def _locked(path: Path, table: str, arch: str) -> tuple[LockedFile, ...]:
    return tuple(entry for entry in load_lock(path, table) if entry.arch == arch)


def _check_complete(recipe: Recipe) -> None:
    locked = {wheel.name: wheel.version for wheel in recipe.wheels}
    for rule in recipe.rules:
        if locked.get(rule.name) != rule.version:
            raise _malformed(
                "lock-malformed",
                recipe.folder / "wheels.lock",
                f"{rule.name} {rule.version} of recipe.toml is not locked for {recipe.arch}",
            )


def _rule(entry: Mapping[str, Any]) -> WheelRule:
    return WheelRule(
        name=str(entry["name"]),
        version=str(entry["version"]),
        source=str(entry["from"]),
        target=str(entry["to"]),
        executables=tuple(entry["executables"]),
        drop=tuple(entry["drop"]),
    )


def _locked_file(entry: Mapping[str, Any], path: Path) -> LockedFile:
    try:
        locked = LockedFile(
            name=str(entry["name"]),
            version=str(entry["version"]),
            arch=str(entry["arch"]),
            sha256=str(entry["sha256"]),
            size=int(entry["size"]),
            filename=str(entry.get("filename", "")),
        )
    except (KeyError, TypeError, ValueError) as exc:
        raise _malformed("lock-malformed", path, f"entry {entry!r}: field {exc} is missing or wrong") from exc
    if not is_sha256(locked.sha256):
        raise _malformed("lock-malformed", path, f"sha256 of {locked.name} is not 64 lowercase hex digits")
    if locked.filename and not is_safe_name(locked.filename):
        raise _malformed("lock-malformed", path, f"file name {locked.filename!r} is not a plain name")
    return locked


def _fields(entry: LockedFile) -> dict[str, str | int]:
    fields: dict[str, str | int] = {"name": entry.name, "version": entry.version, "arch": entry.arch}
    if entry.filename:
        fields["filename"] = entry.filename
    return fields | {"sha256": entry.sha256, "size": entry.size}


def _toml_value(value: str | int) -> str:
    return str(value) if isinstance(value, int) else f'"{value}"'


def _read_toml(path: Path, error_id: str) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise _malformed(error_id, path, str(exc)) from exc


def _malformed(error_id: str, path: Path, why: str) -> ConfigError:
    return ConfigError(
        error_id,
        f"cannot use {path}",
        why=why,
        hint=f"`python -m ci images {path.parent.name} --lock` writes locks",
    )
