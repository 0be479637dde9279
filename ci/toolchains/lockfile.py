"""Lock files of a toolchain: which downloaded files it is made of, each pinned by hash.

    wheels.lock   [[wheel]]  name, version, arch, filename, sha256, size   wheels, per host architecture
    debs.lock     [[deb]]    name, version, arch, suite, sha256, size      Debian packages of the image

Neither holds an address: wheels come from the indexes that pip is configured for, packages from the Debian
mirror that apt is configured for.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opencoti.errors import ConfigError
from opencoti.files import is_safe_name
from opencoti.hashing import is_sha256


@dataclass(frozen=True, kw_only=True)
class LockedFile:
    """One downloaded file that is pinned by hash; `size` in bytes, `suite` for Debian packages only."""

    name: str
    version: str
    arch: str
    sha256: str
    size: int
    filename: str = ""
    suite: str = ""


def lock_text(table: str, entries: Sequence[LockedFile], header: str) -> str:
    """Return the text of a lock file, sorted, with one `[[table]]` per file."""
    blocks = [
        "\n".join(f"{key} = {_toml_value(value)}" for key, value in _fields(entry).items())
        for entry in sorted(entries, key=lambda entry: (entry.arch, entry.suite, entry.name))
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
    data = read_toml(path, "lock-malformed")
    found = data.get(table, [])
    if not isinstance(found, list):
        raise malformed("lock-malformed", path, f"{table} is no list of tables, which [[{table}]] makes")
    entries = tuple(_locked_file(entry, path) for entry in found)
    if len({(entry.name, entry.arch, entry.suite) for entry in entries}) != len(entries):
        raise malformed("lock-malformed", path, "a name stands twice for one architecture")
    return entries


def _locked_file(entry: Mapping[str, Any], path: Path) -> LockedFile:
    try:
        locked = LockedFile(
            name=str(entry["name"]),
            version=str(entry["version"]),
            arch=str(entry["arch"]),
            sha256=str(entry["sha256"]),
            size=int(entry["size"]),
            filename=str(entry.get("filename", "")),
            suite=str(entry.get("suite", "")),
        )
    except (KeyError, TypeError, ValueError) as exc:
        raise malformed("lock-malformed", path, f"entry {entry!r}: field {exc} is missing or wrong") from exc
    if not is_sha256(locked.sha256):
        raise malformed("lock-malformed", path, f"sha256 of {locked.name} is not 64 lowercase hex digits")
    if locked.size <= 0:
        raise malformed("lock-malformed", path, f"size of {locked.name} is {locked.size}")
    if locked.filename and not is_safe_name(locked.filename):
        raise malformed("lock-malformed", path, f"file name {locked.filename!r} is not a plain name")
    return locked


def _fields(entry: LockedFile) -> dict[str, str | int]:
    fields: dict[str, str | int] = {"name": entry.name, "version": entry.version, "arch": entry.arch}
    fields |= {key: value for key in ("suite", "filename") if (value := getattr(entry, key))}
    return fields | {"sha256": entry.sha256, "size": entry.size}


def _toml_value(value: str | int) -> str:
    return str(value) if isinstance(value, int) else f'"{value}"'


def read_toml(path: Path, error_id: str) -> dict[str, Any]:
    """Read a TOML file of a toolchain. Raises `ConfigError` with the given id."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise malformed(error_id, path, str(exc)) from exc


def malformed(error_id: str, path: Path, why: str) -> ConfigError:
    """Make the error for a recipe or lock that cannot be used."""
    return ConfigError(
        error_id,
        f"cannot use {path}",
        why=why,
        hint=f"`python -m ci images {path.parent.name} --lock` writes locks",
    )
