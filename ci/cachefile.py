"""Files that are made once and kept in the build cache: used again only with the bytes that were made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from opencoti.files import write_atomic
from opencoti.hashing import sha256_file


def kept_file(path: Path, make: Callable[[Path], object]) -> Path:
    """Return `path`; `make(path)` writes it unless it has the SHA-256 that was noted beside it.

    Raises:
        OpencotiError: whatever `make` raises; `StorageError`, the note cannot be written.
    """
    note = path.with_name(f"{path.name}.sha256")
    if path.is_file() and _noted(note) == sha256_file(path):
        return path
    make(path)
    write_atomic(note, f"{sha256_file(path)}\n".encode())
    return path


def _noted(note: Path) -> str:
    try:
        return note.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
