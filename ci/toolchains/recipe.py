"""The description of a toolchain, `containers/<name>/recipe.toml`, with its locks.

A toolchain is a tree below `/opt/toolchain` (on the host: a folder of the build cache) made of parts of
wheels and archives and of the files that lie in `containers/<name>/tree/`; its image has Debian packages
around it. One recipe may extend another: it then has everything of that one too, and its own files win.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ci.stages.model import digest
from ci.toolchains.lockfile import LockedFile, load_lock, malformed, read_toml
from ci.toolchains.wrappers import wrapper_scripts
from opencoti.errors import ConfigError
from opencoti.files import is_safe_name
from opencoti.hashing import sha256_file

# Machine names of the kernel → those of wheels and of Debian.
DEBIAN_ARCHS: Final = {"x86_64": "amd64", "aarch64": "arm64"}
# Raised when the code that unpacks wheels or makes the file system of the image changes what comes out.
_LAYOUT_VERSION: Final = 3


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
class ArchiveRule:
    """A zip of its publisher, in no package index: address, hash, and where it goes."""

    name: str
    version: str
    url: str
    sha256: str
    target: str


@dataclass(frozen=True, kw_only=True)
class DebGroup:
    """Debian packages of one release, without their dependencies.

    Attributes:
        suite: the release ("bullseye").
        target: folder of the image that they are unpacked below; empty for its root.
        drop: patterns of paths that are left out; a pattern that ends in a slash takes what lies below.
        keep: patterns of what is kept of the files that no image usually needs.
    """

    suite: str
    names: tuple[str, ...]
    target: str = ""
    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OverlayFile:
    """A file of ours in the toolchain: path relative to it, and where it comes from."""

    path: str
    source: Path
    is_executable: bool


@dataclass(frozen=True, kw_only=True)
class ProveStep:
    """A command line run in the folder of the tools, and what it must show."""

    run: str
    shows: str


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A toolchain for one host architecture, with its locks."""

    name: str
    description: str
    folder: Path
    arch: str
    archs: tuple[str, ...]
    rules: tuple[WheelRule, ...]
    wheels: tuple[LockedFile, ...]
    archives: tuple[ArchiveRule, ...]
    deb_groups: tuple[DebGroup, ...]
    debs: tuple[LockedFile, ...]
    overlay: tuple[OverlayFile, ...]
    prove: tuple[ProveStep, ...]
    is_abstract: bool = False
    base: Recipe | None = None

    @property
    def dockerfile(self) -> Path:
        """The recipe's own Dockerfile, else that of the recipe it extends."""
        own = self.folder / "Dockerfile"
        return self.base.dockerfile if self.base and not own.is_file() else own

    @property
    def own_rules(self) -> tuple[WheelRule, ...]:
        """The wheels that this recipe itself names, which its own lock holds."""
        return self.rules[len(self.base.rules) if self.base else 0 :]

    @property
    def own_deb_groups(self) -> tuple[DebGroup, ...]:
        """The packages that this recipe itself names."""
        return self.deb_groups[len(self.base.deb_groups) if self.base else 0 :]

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
                "archives": [[archive.sha256, archive.target] for archive in self.archives],
                "wrappers": wrapper_scripts(),
                "overlay": [
                    [file.path, file.is_executable, sha256_file(file.source)] for file in self.overlay
                ],
            }
        )

    @property
    def image_id(self) -> str:
        """Hash of everything that decides what the image holds: the recipe of the image."""
        return digest(
            {
                "toolchain": self.id,
                "dockerfile": sha256_file(self.dockerfile),
                "debs": [[deb.name, deb.version, deb.sha256] for deb in self.debs],
                "groups": [
                    [group.suite, group.names, group.target, group.drop, group.keep]
                    for group in self.deb_groups
                ],
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
            ConfigError: `toolchain-unknown`, `recipe-malformed`, `lock-malformed`,
                `toolchain-arch-unsupported`.
        """
        recipe = _read(folder, arch or host_arch())
        if recipe.arch not in recipe.archs:
            raise ConfigError(
                "toolchain-arch-unsupported",
                f"there is no toolchain {recipe.name} for {recipe.arch} hosts",
                hint=f"build it on {' or '.join(recipe.archs)}",
            )
        if needs_lock:
            _check_complete(recipe)
        return recipe


def recipe_names(containers: Path) -> list[str]:
    """Return the names of every toolchain that has a recipe, those that are only extended among them."""
    return sorted(path.parent.name for path in containers.glob("*/recipe.toml"))


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


def _read(folder: Path, arch: str, within: tuple[str, ...] = ()) -> Recipe:
    file = folder / "recipe.toml"
    if not file.is_file():
        known = ", ".join(recipe_names(folder.parent))
        raise ConfigError("toolchain-unknown", f"there is no toolchain {folder.name}", hint=f"known: {known}")
    data = read_toml(file, "recipe-malformed")
    try:
        recipe = _own(folder, arch, data)
    except (KeyError, TypeError, AttributeError) as exc:
        raise malformed("recipe-malformed", file, f"field {exc} is missing or wrong") from exc
    if recipe.name != folder.name:
        raise malformed("recipe-malformed", file, f"its name {recipe.name[:80]!r} is not that of its folder")
    return _merged(_base(folder, arch, str(data["extends"]), within), recipe) if "extends" in data else recipe


def _base(folder: Path, arch: str, name: str, within: tuple[str, ...]) -> Recipe:
    chain = (*within, folder.name)
    if not is_safe_name(name) or name in chain:
        file = folder / "recipe.toml"
        raise malformed("recipe-malformed", file, f"it cannot extend {name[:80]!r} (of {' -> '.join(chain)})")
    return _read(folder.parent / name, arch, chain)


def _own(folder: Path, arch: str, data: Mapping[str, Any]) -> Recipe:
    return Recipe(
        name=str(data["name"]),
        description=str(data["description"]),
        folder=folder,
        arch=arch,
        archs=tuple(data.get("archs", DEBIAN_ARCHS)),
        rules=tuple(_rule(entry) for entry in data.get("wheel", ())),
        wheels=_locked(folder / "wheels.lock", "wheel", arch),
        archives=tuple(_archive(entry) for entry in data.get("archive", ())),
        deb_groups=tuple(_group(entry, arch) for entry in data.get("debs", ())),
        debs=_locked(folder / "debs.lock", "deb", DEBIAN_ARCHS[arch]),
        overlay=tuple(_overlay(folder / "tree")),
        is_abstract=bool(data.get("abstract", False)),
        prove=tuple(
            ProveStep(run=str(entry["run"]), shows=str(entry["shows"])) for entry in data.get("prove", ())
        ),
    )


def _merged(base: Recipe, own: Recipe) -> Recipe:
    replaced = {file.path for file in own.overlay}
    return Recipe(
        name=own.name,
        description=own.description,
        folder=own.folder,
        arch=own.arch,
        archs=tuple(arch for arch in own.archs if arch in base.archs),
        rules=base.rules + own.rules,
        wheels=base.wheels + own.wheels,
        archives=base.archives + own.archives,
        deb_groups=base.deb_groups + own.deb_groups,
        debs=base.debs + own.debs,
        overlay=tuple(file for file in base.overlay if file.path not in replaced) + own.overlay,
        prove=base.prove + own.prove,
        base=base,
    )


def _locked(path: Path, table: str, arch: str) -> tuple[LockedFile, ...]:
    return tuple(entry for entry in load_lock(path, table) if entry.arch == arch)


def _check_complete(recipe: Recipe) -> None:
    locked = {wheel.name: wheel.version for wheel in recipe.wheels}
    for rule in recipe.rules:
        if locked.get(rule.name) != rule.version:
            raise malformed(
                "lock-malformed",
                recipe.folder / "wheels.lock",
                f"{rule.name} {rule.version} of recipe.toml is not locked for {recipe.arch}",
            )
    packages = {(deb.suite, deb.name) for deb in recipe.debs}
    for group in recipe.deb_groups:
        if lacking := [name for name in group.names if (group.suite, name) not in packages]:
            raise malformed(
                "lock-malformed",
                recipe.folder / "debs.lock",
                f"{', '.join(lacking)} of {group.suite} in recipe.toml is not locked for {recipe.arch}",
            )


def _overlay(tree: Path) -> Iterator[OverlayFile]:
    for path in sorted(tree.rglob("*")):
        if path.is_file():
            yield OverlayFile(
                path=path.relative_to(tree).as_posix(), source=path, is_executable=os.access(path, os.X_OK)
            )


def _rule(entry: Mapping[str, Any]) -> WheelRule:
    return WheelRule(
        name=str(entry["name"]),
        version=str(entry["version"]),
        source=str(entry["from"]),
        target=str(entry["to"]),
        executables=tuple(entry.get("executables", ())),
        drop=tuple(entry.get("drop", ())),
    )


def _archive(entry: Mapping[str, Any]) -> ArchiveRule:
    return ArchiveRule(
        name=str(entry["name"]),
        version=str(entry["version"]),
        url=str(entry["url"]),
        sha256=str(entry["sha256"]),
        target=str(entry["to"]),
    )


def _group(entry: Mapping[str, Any], arch: str) -> DebGroup:
    triplet = f"{arch.replace('_', '-')}-linux-gnu"
    return DebGroup(
        suite=_word(entry["suite"]),
        names=tuple(_word(name.replace("{triplet}", triplet)) for name in _list(entry["names"])),
        target=_inside(str(entry.get("to", ""))),
        drop=_list(entry.get("drop", [])),
        keep=_list(entry.get("keep", [])),
    )


def _list(value: object) -> tuple[str, ...]:
    """Return a list of strings; a lone string would be taken for the list of its letters."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise TypeError(f"{value!r}")
    return tuple(value)


def _word(value: object) -> str:
    """Return a name that apt's own files and command lines can hold."""
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9+._-]*", value):
        raise TypeError(f"{value!r}")
    return value


def _inside(path: str) -> str:
    """Return a path below the root of the image."""
    if path.startswith("/") or ".." in path.split("/"):
        raise TypeError(f"{path!r}")
    return path
