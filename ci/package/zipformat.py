"""The records of a zip file, as bytes: shared by the reader and the writer. No I/O.

Only what this project writes and meets is here: one disk, no encryption, ZIP64 where a field needs it.
Numbers in comments are sections of the PKWARE application note.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

LOCAL_SIGNATURE: Final = b"PK\x03\x04"
CENTRAL_SIGNATURE: Final = b"PK\x01\x02"
END_SIGNATURE: Final = b"PK\x05\x06"
END64_SIGNATURE: Final = b"PK\x06\x06"
LOCATOR_SIGNATURE: Final = b"PK\x06\x07"
LOCAL: Final = struct.Struct("<4s5H3I2H")  # 4.3.7
CENTRAL: Final = struct.Struct("<4s6H3I5H2I")  # 4.3.12
END: Final = struct.Struct("<4s4H2IH")  # 4.3.16
END64: Final = struct.Struct("<4sQ2H2I4Q")  # 4.3.14
LOCATOR: Final = struct.Struct("<4sIQI")  # 4.3.15

STORED: Final = 0
ZIP64_EXTRA_ID: Final = 1
FLAG_ENCRYPTED: Final = 0x0001
FLAG_DESCRIPTOR: Final = 0x0008
DOS_EPOCH: Final = (0, 0x0021)  # time and date fields of 1980-01-01 00:00:00
_UNIX: Final = 3 << 8
_VERSION_PLAIN: Final = 20
_VERSION_ZIP64: Final = 45
_REGULAR_FILE: Final = 0o100000


@dataclass(frozen=True, kw_only=True)
class ZipLimits:
    """From which value on a field is moved to ZIP64; tests lower it."""

    size: int = 0xFFFFFFFF
    count: int = 0xFFFF


FORMAT_LIMITS: Final = ZipLimits()


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One member as the central directory describes it; offsets count from the start of the file.

    `raw` is its central record when it came from a file and may be written again unchanged.
    """

    name: str
    header_offset: int
    data_offset: int
    size: int
    compressed_size: int
    crc32: int
    method: int
    flags: int
    external: int
    raw: bytes = b""

    @property
    def data_end(self) -> int:
        """Where the (compressed) bytes end; a data descriptor may follow."""
        return self.data_offset + self.compressed_size

    @property
    def mode(self) -> int:
        """Permission bits as Unix tools wrote them."""
        return (self.external >> 16) & 0o7777


def local_header_size(name: str, size: int, limits: ZipLimits) -> int:
    """Return how many bytes stand between the header's offset and the data."""
    return LOCAL.size + len(name.encode()) + (20 if size >= limits.size else 0)


def render_local(name: str, size: int, crc32: int, limits: ZipLimits) -> bytes:
    """Return the local header of a stored member."""
    is_large = size >= limits.size
    extra = struct.pack("<2H2Q", ZIP64_EXTRA_ID, 16, size, size) if is_large else b""
    shown = 0xFFFFFFFF if is_large else size
    return (
        LOCAL.pack(
            LOCAL_SIGNATURE,
            _VERSION_ZIP64 if is_large else _VERSION_PLAIN,
            0,
            STORED,
            *DOS_EPOCH,
            crc32,
            shown,
            shown,
            len(name.encode()),
            len(extra),
        )
        + name.encode()
        + extra
    )


def render_central(entry: Entry, limits: ZipLimits) -> bytes:
    """Return the central record of a stored member that we wrote.

    All three values move to ZIP64 together: after a member of exactly 4 GiB - 1, Info-ZIP 6.0 misreads
    a record that moves its offset alone.
    """
    is_large = max(entry.size, entry.header_offset) >= limits.size
    values = (entry.size, entry.size, entry.header_offset)
    extra = struct.pack("<2H3Q", ZIP64_EXTRA_ID, 24, *values) if is_large else b""
    version = _VERSION_ZIP64 if is_large else _VERSION_PLAIN
    shown = 0xFFFFFFFF if is_large else entry.size
    return (
        CENTRAL.pack(
            CENTRAL_SIGNATURE,
            _UNIX | version,
            version,
            0,
            STORED,
            *DOS_EPOCH,
            entry.crc32,
            shown,
            shown,
            len(entry.name.encode()),
            len(extra),
            0,
            0,
            0,
            entry.external,
            0xFFFFFFFF if is_large else entry.header_offset,
        )
        + entry.name.encode()
        + extra
    )


def move_central(raw: bytes, entry: Entry, new_offset: int, limits: ZipLimits) -> bytes:
    """Return a central record from another writer with the header offset replaced, all else kept."""
    fields = list(CENTRAL.unpack_from(raw))
    name_length, extra_length = fields[10], fields[11]
    name = raw[CENTRAL.size : CENTRAL.size + name_length]
    extra = raw[CENTRAL.size + name_length : CENTRAL.size + name_length + extra_length]
    comment = raw[CENTRAL.size + name_length + extra_length :]
    values = [entry.size] if fields[9] == 0xFFFFFFFF else []
    values += [entry.compressed_size] if fields[8] == 0xFFFFFFFF else []
    if new_offset >= limits.size:
        values.append(new_offset)
    extra = b"".join(part for kind, part in split_extra(extra) if kind != ZIP64_EXTRA_ID)
    if values:
        extra = struct.pack(f"<2H{len(values)}Q", ZIP64_EXTRA_ID, 8 * len(values), *values) + extra
    fields[11] = len(extra)
    fields[16] = 0xFFFFFFFF if new_offset >= limits.size else new_offset
    return CENTRAL.pack(*fields) + name + extra + comment


def split_extra(extra: bytes) -> list[tuple[int, bytes]]:
    """Return the parts of an extra field as (id, whole part); raises `ValueError` on a broken one."""
    parts: list[tuple[int, bytes]] = []
    position = 0
    while position < len(extra):
        if position + 4 > len(extra):
            raise ValueError("an extra field is cut off")
        kind, length = struct.unpack_from("<2H", extra, position)
        if position + 4 + length > len(extra):
            raise ValueError("an extra field is longer than its record")
        parts.append((kind, extra[position : position + 4 + length]))
        position += 4 + length
    return parts


def external_attributes(mode: int) -> int:
    """Return the attributes of a regular file with these permission bits."""
    return (_REGULAR_FILE | mode) << 16


def render_end(
    *, count: int, directory_offset: int, directory_size: int, comment: bytes, limits: ZipLimits
) -> bytes:
    """Return the end records: ZIP64 record and locator if a field needs them, then the plain one."""
    needs_zip64 = count >= limits.count or max(directory_offset, directory_size) >= limits.size
    head = b""
    if needs_zip64:
        where = directory_offset + directory_size
        head = END64.pack(
            END64_SIGNATURE,
            END64.size - 12,
            _UNIX | _VERSION_ZIP64,
            _VERSION_ZIP64,
            0,
            0,
            count,
            count,
            directory_size,
            directory_offset,
        ) + LOCATOR.pack(LOCATOR_SIGNATURE, 0, where, 1)
    short_count = 0xFFFF if needs_zip64 else count
    return (
        head
        + END.pack(
            END_SIGNATURE,
            0,
            0,
            short_count,
            short_count,
            0xFFFFFFFF if needs_zip64 else directory_size,
            0xFFFFFFFF if needs_zip64 else directory_offset,
            len(comment),
        )
        + comment
    )
