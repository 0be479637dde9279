"""Inputs of a fuzzer are short; artifacts are not, since their members are aligned to 64 KiB with zeros.

So runs of zeros are written as a mark and their length. Bytes without the mark stand for themselves.
"""

from __future__ import annotations

import re
import struct
from typing import Final

MAX_BYTES: Final = 1 << 22
_MARK: Final = b"~0"
_RUN: Final = re.compile(rb"\0{16,65535}")
_MARKED: Final = re.compile(rb"~0(..)", re.DOTALL)


def shrink(data: bytes) -> bytes:
    """Return the short form. Raises `ValueError` if the mark itself occurs in the data."""
    if _MARK in data:
        raise ValueError("the mark of a run occurs in the data")
    return _RUN.sub(lambda match: _MARK + struct.pack("<H", len(match[0])), data)


def expand(data: bytes) -> bytes:
    """Return the bytes that a short form stands for, at most `MAX_BYTES`."""
    left = MAX_BYTES

    def zeros(match: re.Match[bytes]) -> bytes:
        nonlocal left
        count = min(left, struct.unpack("<H", match[1])[0])
        left -= count
        return bytes(count)

    return _MARKED.sub(zeros, data)
