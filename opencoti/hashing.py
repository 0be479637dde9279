"""SHA-256 of files and streams, and the form of a digest in text."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import IO

READ_SIZE_BYTES = 1 << 20
_HEX = re.compile(r"[0-9a-f]{64}")


def is_sha256(text: str) -> bool:
    """Tell whether `text` is a SHA-256 in lowercase hex."""
    return _HEX.fullmatch(text) is not None


def sha256_stream(stream: IO[bytes]) -> str:
    """Return the SHA-256 (lowercase hex) of everything left in `stream`."""
    digest = hashlib.sha256()
    while block := stream.read(READ_SIZE_BYTES):
        digest.update(block)
    return digest.hexdigest()


def sha256_file(path: Path) -> str:
    """Return the SHA-256 (lowercase hex) of a file. Raises `OSError`."""
    with open(path, "rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_bytes(data: bytes) -> str:
    """Return the SHA-256 (lowercase hex) of `data`."""
    return hashlib.sha256(data).hexdigest()
