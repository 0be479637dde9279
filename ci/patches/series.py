"""A patch series as it lies in `vendors/patches/<series>/`: names, order, hashes. Reads files, runs nothing.

A patch is `NNNN-<kebab>.patch`: four digits, then lowercase words with hyphens. Its place in the series is
its number. Two patches with one number are both invalid; files that do not end in `.patch` are ignored.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final

from ci.patches.names import PatchSyntaxError
from ci.patches.parsing import ParsedPatch, parse_patch
from opencoti.errors import ConfigError, UsageError, storage_error
from opencoti.hashing import sha256_bytes

SUFFIX: Final = ".patch"
_NAME: Final = re.compile(r"(?P<number>[0-9]{4})-(?P<words>[a-z0-9]+(?:-[a-z0-9]+)*)")


@dataclass(frozen=True, kw_only=True)
class Patch:
    """One patch file of a series."""

    name: str
    path: Path
    sha256: str
    data: bytes

    @property
    def number(self) -> int:
        """Its place in the series."""
        return int(self.name[:4])

    @cached_property
    def parsed(self) -> ParsedPatch:
        """Its content. Raises `PatchSyntaxError`."""
        return parse_patch(self.data)

    @cached_property
    def title(self) -> str:
        """The subject of its mail header, else its name in words."""
        try:
            title = self.parsed.title
        except PatchSyntaxError:
            title = ""
        return title or title_from_name(self.name)

    @property
    def description(self) -> str:
        """The text below the subject, maybe empty. Raises `PatchSyntaxError`."""
        return self.parsed.description

    @property
    def touched(self) -> tuple[str, ...]:
        """Every path that it names. Raises `PatchSyntaxError`."""
        return self.parsed.touched


@dataclass(frozen=True, kw_only=True)
class InvalidPatch:
    """A `.patch` file that has no place in the series."""

    name: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Series:
    """All that lies in the folder of a series."""

    folder: Path
    patches: tuple[Patch, ...]
    invalid: tuple[InvalidPatch, ...]
    ignored: tuple[str, ...]

    def summary(self) -> str:
        """Say in a few words what is there."""
        if not self.patches and not self.invalid:
            return "no patches"
        count = f"{len(self.patches)} patch{'' if len(self.patches) == 1 else 'es'}"
        return f"{count}, {len(self.invalid)} invalid" if self.invalid else count


def read_series(folder: Path) -> Series:
    """Read a series; a folder that does not exist is a series without patches.

    Raises:
        StorageError: the folder or a file in it cannot be read.
    """
    try:
        entries = sorted(folder.iterdir()) if folder.exists() else []
        names = [entry.name for entry in entries if entry.name.endswith(SUFFIX)]
        invalid = {name: why for name in names if (why := _name_problem(folder, name, names))}
        patches = tuple(_read_patch(folder / name) for name in names if name not in invalid)
    except OSError as exc:
        raise storage_error(exc, f"cannot read the patch series {folder}") from exc
    return Series(
        folder=folder,
        patches=patches,
        invalid=tuple(InvalidPatch(name=name, why=why) for name, why in invalid.items()),
        ignored=tuple(entry.name for entry in entries if not entry.name.endswith(SUFFIX)),
    )


def _read_patch(path: Path) -> Patch:
    data = path.read_bytes()
    return Patch(name=path.name, path=path, sha256=sha256_bytes(data), data=data)


def _name_problem(folder: Path, name: str, names: list[str]) -> str:
    if problem := stem_problem(name.removesuffix(SUFFIX)):
        return problem
    if (folder / name).is_symlink() or not (folder / name).is_file():
        return "it is not a regular file"
    if Counter(other[:5] for other in names)[name[:5]] > 1:
        twins = [other for other in names if other[:5] == name[:5] and other != name]
        return f"the number {name[:4]} is also used by {', '.join(twins)}"
    return ""


def stem_problem(stem: str) -> str:
    """Say why `stem` (the name without `.patch`) cannot name a patch; empty if it can."""
    if _NAME.fullmatch(stem):
        return ""
    return "the name is not NNNN-words.patch (four digits, then lowercase words with hyphens)"


def title_from_name(name: str) -> str:
    """Turn `0004-answer-faster.patch` into `Answer faster`."""
    match = _NAME.fullmatch(name.removesuffix(SUFFIX))
    return match["words"].replace("-", " ").capitalize() if match else name


def require_valid(series: Series) -> None:
    """Raise `ConfigError` `series-invalid` if a file has no place in the series; all are named."""
    if series.invalid:
        raise ConfigError(
            "series-invalid",
            f"the patch series {series.folder} has invalid files",
            why="; ".join(f"{patch.name}: {patch.why}" for patch in series.invalid),
            hint="rename or remove them; a patch is named NNNN-lowercase-words.patch, each number once",
        )


def first_part(series: Series, until: str) -> Series:
    """Return a series up to the patch with the number `until` (four digits), that patch included.

    Raises:
        UsageError: `series-until`, there is no such patch.
    """
    if until not in [patch.name[:4] for patch in series.patches]:
        raise UsageError(
            "series-until",
            f"the series has no patch number {until[:20]!r}",
            hint=f"numbers are {', '.join(patch.name[:4] for patch in series.patches) or 'none'}",
        )
    return replace(series, patches=tuple(patch for patch in series.patches if patch.name[:4] <= until))


def patch_set_hash(series: Series) -> str:
    """Return the SHA-256 over one line `<file name> <SHA-256 of the file>` (ended by LF) per patch, in order.

    `sha256sum *.patch | awk '{print $2, $1}' | sha256sum` gives the same. Without patches it is the hash of
    nothing.
    """
    return sha256_bytes("".join(f"{patch.name} {patch.sha256}\n" for patch in series.patches).encode())
