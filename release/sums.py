"""`SHA256SUMS`: one line per file of a folder, in the form that `sha256sum -c` and `shasum -c` read.

    <64 hex digits><two blanks><name>

Names are sorted bytewise, lines end in LF, there is no other line. Signatures (`*.minisig`) and the list
itself are not in it: they are made from it, or after it. Nor is `NOTES.md`, the text of a release: it is not
one of its files.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NoReturn

from opencoti.errors import ConfigError, VerificationError, storage_error
from opencoti.files import is_safe_name, require_safe_name, write_atomic
from opencoti.hashing import sha256_file
from opencoti.minisign import SIGNATURE_SUFFIX

SUMS_NAME = "SHA256SUMS"
NOTES_NAME = "NOTES.md"
_MAX_BYTES = 1 << 20
_LINE = re.compile(r"([0-9a-f]{64})  (\S+)")


def render_sums(digests: dict[str, str]) -> bytes:
    """Return the list for digests by name. Raises `VerificationError` (`unsafe-name`)."""
    names = sorted(require_safe_name(name, "the list of files") for name in digests)
    return "".join(f"{digests[name]}  {name}\n" for name in names).encode("ascii")


def parse_sums(data: bytes, origin: str) -> dict[str, str]:
    """Read a list, in the strict form above.

    Raises:
        ConfigError: `sums-malformed`.
    """
    if len(data) > _MAX_BYTES:
        _malformed(origin, f"it is longer than {_MAX_BYTES} bytes")
    if not data.isascii() or not data.endswith(b"\n"):
        _malformed(origin, "it is no plain text that ends with its last line")
    digests: dict[str, str] = {}
    seen: set[str] = set()
    for number, line in enumerate(data.decode("ascii").removesuffix("\n").split("\n"), 1):
        match = _LINE.fullmatch(line)
        if match is None or not is_safe_name(match[2]):
            _malformed(origin, f"line {number} is no SHA-256, two blanks and a plain file name")
        if match[2].casefold() in seen:
            _malformed(origin, f"line {number}: {match[2]} stands twice")
        seen.add(match[2].casefold())
        digests[match[2]] = match[1]
    return digests


def hash_folder(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file of a flat folder, by name.

    Raises:
        ConfigError: `sums-folder`, there is a subfolder, a link, a hidden file, or nothing to list.
        VerificationError: `unsafe-name`.
        StorageError: a file cannot be read.
    """
    try:
        entries = sorted(folder.iterdir())
        for path in entries:
            if path.is_symlink() or not path.is_file() or path.name.startswith("."):
                _refuse_folder(folder, f"{path.name} is hidden, or no regular file")
        digests = {
            require_safe_name(path.name, str(folder)): sha256_file(path)
            for path in entries
            if path.name not in (SUMS_NAME, NOTES_NAME) and path.suffix != SIGNATURE_SUFFIX
        }
    except OSError as exc:
        raise storage_error(exc, f"cannot read {folder}") from exc
    if not digests:
        _refuse_folder(folder, "there is no file in it")
    return digests


def write_sums(folder: Path) -> Path:
    """Write `SHA256SUMS` of a folder, whole or not at all. Raises as `hash_folder`."""
    path = folder / SUMS_NAME
    write_atomic(path, render_sums(hash_folder(folder)))
    return path


def check_sums(folder: Path) -> int:
    """Compare a folder with its list; return the number of files.

    Raises:
        ConfigError: `sums-missing`, `sums-malformed`; as `hash_folder`.
        VerificationError: `sums-differ`, names the first file that is changed, missing or not listed.
        StorageError: a file cannot be read.
    """
    path = folder / SUMS_NAME
    try:
        listed = parse_sums(path.read_bytes(), str(path))
    except FileNotFoundError as exc:
        raise ConfigError(
            "sums-missing",
            f"there is no {SUMS_NAME} in {folder}",
            hint=f"make it with `python -m release sums {folder} --sign`, or name another folder",
        ) from exc
    except OSError as exc:
        raise storage_error(exc, f"cannot read {path}") from exc
    found = hash_folder(folder)
    for name in sorted(listed.keys() | found.keys()):
        if listed.get(name) != found.get(name):
            how = "missing" if name not in found else "changed" if name in listed else "not listed"
            raise VerificationError(
                "sums-differ", f"{folder} differs from its {SUMS_NAME}", why=f"{name} is {how}",
                hint="do not use these files: make or get them again",
            )  # fmt: skip
    return len(found)


def _malformed(origin: str, why: str) -> NoReturn:
    raise ConfigError(
        "sums-malformed", f"cannot read {origin}", why=why, hint="get it from its publisher again"
    )


def _refuse_folder(folder: Path, why: str) -> NoReturn:
    raise ConfigError(
        "sums-folder",
        f"cannot list {folder}",
        why=why,
        hint="a release is one folder of plain files",
    )
