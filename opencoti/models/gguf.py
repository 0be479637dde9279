"""Reading the header of a GGUF file that nobody vouches for: metadata and the list of tensors.

Bounded in everything: bytes read, keys, elements, length of what is kept. Text lists (a vocabulary has
300 000 entries) are counted and passed over; weights are never read, only their place is checked against the
size of the file, so that a file that is cut off is found before an engine maps it.

Layout (little-endian): `GGUF`, version u32, tensors u64, keys u64, then per key: name, type u32, value; per
tensor: name, dimensions u32, shape u64 each, type u32, offset u64. A text is its length u64 and its bytes.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from opencoti.errors import ConfigError, storage_error

MAGIC: Final = b"GGUF"
MAX_HEADER_BYTES: Final = 64 << 20
_VERSIONS: Final = (2, 3)
_MAX_KEYS: Final = 4096
_MAX_TENSORS: Final = 65_536
_MAX_DIMENSIONS: Final = 4
_MAX_ELEMENTS: Final = 4_000_000
_MAX_NAME_BYTES: Final = 1024
_KEPT_TEXT_BYTES: Final = 1024
_KEPT_ELEMENTS: Final = 4096
_WINDOW_BYTES: Final = 1 << 20
_DEFAULT_ALIGNMENT: Final = 32

_STRING: Final = 8
_ARRAY: Final = 9
_BOOL: Final = 7
_SCALARS: Final = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    _BOOL: "<B",
    10: "<Q",
    11: "<q",
    12: "<d",
}
# Tensor types by number: values per block, bytes per block. Others are not measured.
BLOCKS: Final = {
    0: (1, 4),
    1: (1, 2),
    2: (32, 18),
    3: (32, 20),
    6: (32, 22),
    7: (32, 24),
    8: (32, 34),
    10: (256, 84),
    11: (256, 110),
    12: (256, 144),
    13: (256, 176),
    14: (256, 210),
    15: (256, 292),
    16: (256, 66),
    17: (256, 74),
    18: (256, 98),
    19: (256, 50),
    20: (32, 18),
    21: (256, 110),
    22: (256, 82),
    23: (256, 136),
    24: (1, 1),
    25: (1, 2),
    26: (1, 4),
    27: (1, 8),
    28: (1, 8),
    29: (256, 56),
    30: (1, 2),
    34: (256, 54),
    35: (256, 66),
    39: (32, 17),
    40: (64, 36),
    41: (128, 18),
    42: (64, 18),
}

Number = int | float | bool


@dataclass(frozen=True, kw_only=True)
class Passed:
    """A value that was passed over: how many elements it has, or bytes for a text."""

    length: int


Value = Number | str | tuple[Number, ...] | Passed


@dataclass(frozen=True, kw_only=True)
class Header:
    """What the header of a model file says.

    Attributes:
        values: metadata; texts longer than 1024 bytes, text lists and long lists are `Passed`.
        tensors: how many there are.
        file_bytes: size of the file.
        header_bytes: where the header ends.
        weights_bytes: size of all tensors that have a known type.
    """

    version: int
    values: Mapping[str, Value]
    tensors: int
    file_bytes: int
    header_bytes: int
    weights_bytes: int

    def text(self, name: str) -> str:
        """Return a text, empty where there is none."""
        value = self.values.get(name)
        return value if isinstance(value, str) else ""

    def number(self, name: str) -> int | None:
        """Return a whole number, None where there is none."""
        value = self.values.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def numbers(self, name: str) -> tuple[int, ...] | None:
        """Return a list of whole numbers or truth values, None where there is none."""
        value = self.values.get(name)
        if not isinstance(value, tuple) or not all(isinstance(item, int) for item in value):
            return None
        return tuple(int(item) for item in value)


class _MalformedError(ValueError):
    """The bytes break the format; the text says how."""


def read_header(path: Path) -> Header:
    """Read the header of a model file, whatever its name.

    Raises:
        ConfigError: `gguf-malformed`; says what is wrong.
        StorageError: the file cannot be read.
    """
    try:
        with open(path, "rb", opener=_regular_only) as file:
            return _read(file)
    except _MalformedError as exc:
        raise ConfigError(
            "gguf-malformed",
            f"{path} is no usable model file",
            why=str(exc),
            hint="get it from its publisher again, and compare its SHA-256",
        ) from exc
    except OSError as exc:
        raise storage_error(exc, f"cannot read {path}") from exc


def _regular_only(path: str, flags: int) -> int:
    # A pipe of that name must not block us for ever.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))


def _read(file: IO[bytes]) -> Header:
    size = os.fstat(file.fileno()).st_size
    cursor = _Cursor(file, size)
    if (start := file.read(4)) != MAGIC:
        raise _MalformedError("it is empty" if not start else "it does not start with GGUF")
    cursor.skip_known(4)
    version = cursor.unsigned(4)
    if version not in _VERSIONS:
        raise _MalformedError(f"its version is {version}; known are 2 and 3, little-endian")
    tensors, keys = cursor.unsigned(8), cursor.unsigned(8)
    if keys > _MAX_KEYS or tensors > _MAX_TENSORS:
        raise _MalformedError(f"it claims {keys} keys and {tensors} tensors")
    values = dict(_entry(cursor) for _ in range(keys))
    if len(values) != keys:
        raise _MalformedError("a key stands twice")
    weights = _check_tensors(cursor, tensors, _alignment(values), size)
    return Header(
        version=version,
        values=values,
        tensors=tensors,
        file_bytes=size,
        header_bytes=cursor.at,
        weights_bytes=weights,
    )


def _alignment(values: Mapping[str, Value]) -> int:
    given = values.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(given, int) or not 0 < given <= 1 << 20 or given & (given - 1):
        raise _MalformedError("its alignment is no power of two up to 1 MiB")
    return given


def _entry(cursor: _Cursor) -> tuple[str, Value]:
    name = cursor.name()
    return name, _value(cursor, cursor.unsigned(4))


def _value(cursor: _Cursor, kind: int) -> Value:
    if kind == _STRING:
        return cursor.text()
    if kind == _ARRAY:
        return _array(cursor, cursor.unsigned(4), cursor.unsigned(8))
    return _scalars(cursor, kind, 1)[0]


def _array(cursor: _Cursor, kind: int, count: int) -> Value:
    if count > _MAX_ELEMENTS:
        raise _MalformedError(f"a list claims {count} elements")
    if kind == _STRING:
        cursor.skip_texts(count)
        return Passed(length=count)
    if kind not in _SCALARS:
        raise _MalformedError(f"a list holds values of type {kind}")
    if count > _KEPT_ELEMENTS:
        cursor.skip(struct.calcsize(_SCALARS[kind]) * count)
        return Passed(length=count)
    return _scalars(cursor, kind, count)


def _scalars(cursor: _Cursor, kind: int, count: int) -> tuple[Number, ...]:
    form = _SCALARS.get(kind)
    if form is None:
        raise _MalformedError(f"a value has type {kind}")
    block = cursor.take(struct.calcsize(form) * count)
    found = struct.unpack(f"<{count}{form[1]}", block)
    return tuple(bool(item) for item in found) if kind == _BOOL else found


def _check_tensors(cursor: _Cursor, count: int, alignment: int, file_bytes: int) -> int:
    """Return the size of all weights; each must lie inside the file."""
    ends, total = [0], 0
    for _ in range(count):
        name = cursor.name()
        dimensions = cursor.unsigned(4)
        if dimensions > _MAX_DIMENSIONS:
            raise _MalformedError(f"tensor {name[:60]!r} has {dimensions} dimensions")
        values = math.prod(cursor.unsigned(8) for _ in range(dimensions))
        kind, offset = cursor.unsigned(4), cursor.unsigned(8)
        per_block, block_bytes = BLOCKS.get(kind, (1, 0))
        size = -(-values // per_block) * block_bytes
        total += size
        ends.append(offset + size)
    start = -(-cursor.at // alignment) * alignment
    if count and start + max(ends) > file_bytes:
        raise _MalformedError(f"it is cut off: {file_bytes} bytes of {start + max(ends)} are there")
    return total


class _Cursor:
    """A position in the file, which never moves past its end or past the limit, and reads in windows."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self._end = min(size, MAX_HEADER_BYTES)
        self._is_cut = size <= MAX_HEADER_BYTES
        self._window = b""
        self._window_at = 0
        self.at = 0

    def skip_known(self, count: int) -> None:
        self.at += count

    def skip(self, count: int) -> None:
        self._require(count)
        self.at += count

    def take(self, count: int) -> bytes:
        self._require(count)
        start = self.at - self._window_at
        if start < 0 or start + count > len(self._window):
            self._file.seek(self.at)
            self._window = self._file.read(max(count, _WINDOW_BYTES))
            self._window_at, start = self.at, 0
            if len(self._window) < count:
                raise self._too_short()
        self.at += count
        return self._window[start : start + count]

    def unsigned(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def name(self) -> str:
        length = self.unsigned(8)
        if not 0 < length <= _MAX_NAME_BYTES:
            raise _MalformedError(f"a name has {length} bytes")
        return self.take(length).decode("utf-8", "replace")

    def text(self) -> str | Passed:
        length = self.unsigned(8)
        if length > _KEPT_TEXT_BYTES:
            self.skip(length)
            return Passed(length=length)
        return self.take(length).decode("utf-8", "replace")

    def skip_texts(self, count: int) -> None:
        """Pass over a list of texts: the hot loop, 300 000 turns for one vocabulary."""
        unpack = struct.Struct("<Q").unpack_from
        done = 0
        while done < count:
            self.take(8)  # brings the next text into the window
            window, at = self._window, self.at - 8 - self._window_at
            last = len(window) - 8
            while done < count and at <= last:
                at += 8 + unpack(window, at)[0]
                done += 1
            self.at = self._window_at + at
            self._require(0)

    def _require(self, count: int) -> None:
        if count > self._end - self.at:
            raise self._too_short()

    def _too_short(self) -> _MalformedError:
        if self._is_cut:
            return _MalformedError(f"it ends at byte {self._end}, in the middle of its header")
        return _MalformedError(f"its header is longer than {MAX_HEADER_BYTES >> 20} MiB")
