"""Reading the directory of a zip at the end of any file, strictly.

Independent of the writer and of Python's `zipfile`: it trusts no number before it was checked against the
file, reads headers only and never decompresses. `read_archive` accepts what other tools write (compressed
members, a prefix that the offsets do not count); `check_own_layout` asks for what our writer promises.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, NoReturn

from ci.package import zipformat as zf
from ci.package.zipformat import Entry
from opencoti.errors import VerificationError

ALIGNMENT_BYTES = 1 << 16
_MAX_DIRECTORY_BYTES = 64 << 20
_MAX_COMMENT_BYTES = 0xFFFF


@dataclass(frozen=True, kw_only=True)
class Archive:
    """What the end of a file says about its members.

    Attributes:
        entries: in directory order.
        directory_offset: where the directory really starts; the members' bytes end at or before it.
        prefix: how many bytes the recorded offsets do not count (0 in every file of ours).
    """

    entries: tuple[Entry, ...]
    directory_offset: int
    size: int
    prefix: int
    comment: bytes

    def entry(self, name: str) -> Entry | None:
        """Return the member of this exact name."""
        return next((entry for entry in self.entries if entry.name == name), None)


@dataclass(frozen=True, kw_only=True)
class _End:
    count: int
    directory_offset: int
    directory_size: int
    directory_end: int
    comment: bytes


class _Source:
    """Bounded reads of one file; every failure names the file."""

    def __init__(self, file: IO[bytes], origin: str) -> None:
        self._file = file
        self._origin = origin
        self.size = file.seek(0, 2)

    def read(self, offset: int, length: int, what: str) -> bytes:
        if offset < 0 or length < 0 or offset + length > self.size:
            self.refuse(f"{what} lies outside the file")
        self._file.seek(offset)
        parts = []
        while length > 0 and (part := self._file.read(length)):
            parts.append(part)
            length -= len(part)
        if length:
            self.refuse(f"{what} is cut off: the file became shorter")
        return b"".join(parts)

    def refuse(self, why: str) -> NoReturn:
        raise VerificationError(
            "zip-malformed",
            f"cannot use the zip members of {self._origin}",
            why=why,
            hint="the file is damaged, or was changed by a tool that does not know zip files",
        )


def find_archive(file: IO[bytes], origin: str) -> Archive | None:
    """Return the archive at the end of a file, or None if it ends in none.

    Raises:
        VerificationError: `zip-malformed`, there is one and it is broken, ambiguous or followed by junk.
    """
    source = _Source(file, origin)
    end = _find_end(source)
    if end is None:
        if source.size >= 4 and source.read(0, 4, "the start") in (zf.LOCAL_SIGNATURE, zf.CENTRAL_SIGNATURE):
            source.refuse("it starts like a zip file and has no end record: it is truncated")
        return None
    prefix = end.directory_end - end.directory_size - end.directory_offset
    if prefix < 0:
        source.refuse("its directory would overlap the end record")
    entries = tuple(_entries(source, end, prefix))
    _check_extents(source, entries, prefix + end.directory_offset)
    return Archive(
        entries=entries,
        directory_offset=prefix + end.directory_offset,
        size=source.size,
        prefix=prefix,
        comment=end.comment,
    )


def read_archive(file: IO[bytes], origin: str) -> Archive:
    """Like `find_archive`, but a file without an archive is an error (`zip-malformed`)."""
    archive = find_archive(file, origin)
    if archive is None:
        _Source(file, origin).refuse("it does not end in a zip directory: it is truncated, or no zip")
    return archive


def check_own_layout(
    file: IO[bytes],
    archive: Archive,
    origin: str,
    *,
    executable_size: int,
    has_host_members: bool = False,
) -> None:
    """Check what the writer promises of an artifact: see docs/reference/artifact.md.

    Stored members only, aligned data, nothing but zeros between the executable, the members and the
    directory, gaps shorter than the alignment, no comment, no prefix.

    Args:
        file: the artifact.
        archive: what was read of it.
        origin: its name, for messages.
        executable_size: bytes in front of the members.
        has_host_members: the executable may have members of its own, which lie in these bytes.

    Raises:
        VerificationError: `zip-malformed`.
    """
    source = _Source(file, origin)
    if archive.prefix or archive.comment:
        source.refuse("its offsets do not count from the start of the file, or it has a comment")
    end = executable_size
    for entry in sorted(archive.entries, key=lambda item: item.header_offset):
        if has_host_members and entry.data_end <= executable_size:
            continue
        _check_own_entry(source, entry, end)
        end = entry.data_end
    if end != archive.directory_offset:
        source.refuse(f"{archive.directory_offset - end} bytes lie between the last member and the directory")


def _check_own_entry(source: _Source, entry: Entry, end: int) -> None:
    if entry.method != zf.STORED or entry.flags & zf.FLAG_DESCRIPTOR:
        source.refuse(f"member {entry.name} is not simply stored")
    if entry.data_offset % ALIGNMENT_BYTES:
        source.refuse(f"member {entry.name} starts at {entry.data_offset}, no multiple of {ALIGNMENT_BYTES}")
    gap = entry.header_offset - end
    if not 0 <= gap < ALIGNMENT_BYTES:
        source.refuse(f"{gap} bytes lie in front of member {entry.name}")
    if source.read(end, gap, "padding").strip(b"\0"):
        source.refuse(f"the padding in front of member {entry.name} is not zero")


def _find_end(source: _Source) -> _End | None:
    """Find the one end record whose comment reaches exactly to the end of the file."""
    start = max(0, source.size - zf.END.size - _MAX_COMMENT_BYTES)
    tail = source.read(start, source.size - start, "the end")
    found: list[int] = []
    strays = 0
    position = tail.find(zf.END_SIGNATURE)
    while position >= 0:
        if position + zf.END.size > len(tail):
            strays += 1  # the record itself is cut off
        else:
            comment_size = int.from_bytes(tail[position + 20 : position + 22], "little")
            if position + zf.END.size + comment_size == len(tail):
                found.append(position)
            elif _looks_real(source, tail, position, start):
                strays += 1
        position = tail.find(zf.END_SIGNATURE, position + 1)
    if len(found) > 1:
        source.refuse("it has two end records, and tools would disagree about which one counts")
    if not found:
        if strays:
            source.refuse("bytes follow its zip directory, or the directory is cut off")
        return None
    return _read_end(source, tail[found[0] :], start + found[0])


def _looks_real(source: _Source, tail: bytes, position: int, start: int) -> bool:
    """Tell an end record with junk behind it from program text that happens to hold its signature."""
    if tail[max(0, position - zf.LOCATOR.size) :].startswith(zf.LOCATOR_SIGNATURE):
        return True
    _, disk, first_disk, here, count, size, offset, _ = zf.END.unpack_from(tail, position)
    directory = start + position - size
    if disk or first_disk or here != count or not count or directory < 0 or offset > directory:
        return False
    return source.read(directory, 4, "the directory") == zf.CENTRAL_SIGNATURE


def _read_end(source: _Source, record: bytes, position: int) -> _End:
    _, disk, first_disk, here, count, size, offset, _ = zf.END.unpack_from(record)
    comment = record[zf.END.size :]
    locator_at = position - zf.LOCATOR.size
    if locator_at >= 0 and source.read(locator_at, 4, "the locator") == zf.LOCATOR_SIGNATURE:
        return _read_end64(source, locator_at, comment)
    if 0xFFFF in (disk, first_disk, count) or 0xFFFFFFFF in (size, offset):
        source.refuse("it needs a ZIP64 end record and has none")
    if disk or first_disk or here != count:
        source.refuse("it is one part of several")
    return _End(
        count=count,
        directory_offset=offset,
        directory_size=size,
        directory_end=position,
        comment=comment,
    )


def _read_end64(source: _Source, locator_at: int, comment: bytes) -> _End:
    position = locator_at - zf.END64.size
    _, _, recorded, disks = zf.LOCATOR.unpack(source.read(locator_at, zf.LOCATOR.size, "the ZIP64 locator"))
    record = zf.END64.unpack(source.read(position, zf.END64.size, "the ZIP64 end record"))
    signature, record_size, _, _, disk, first_disk, here, count, size, offset = record
    if signature != zf.END64_SIGNATURE or record_size != zf.END64.size - 12 or recorded > position:
        source.refuse("its ZIP64 end record is not where it should be")
    if disk or first_disk or here != count or disks > 1:
        source.refuse("it is one part of several")
    if position - recorded != position - size - offset:
        source.refuse("its ZIP64 records disagree about where the archive starts")
    return _End(
        count=count,
        directory_offset=offset,
        directory_size=size,
        directory_end=position,
        comment=comment,
    )


def _entries(source: _Source, end: _End, prefix: int) -> Iterator[Entry]:
    if end.directory_size > _MAX_DIRECTORY_BYTES:
        source.refuse(
            f"its directory has {end.directory_size} bytes, more than the {_MAX_DIRECTORY_BYTES} allowed"
        )
    data = source.read(end.directory_end - end.directory_size, end.directory_size, "the directory")
    position, count, seen = 0, 0, set[str]()
    while position < len(data):
        entry, position = _entry(source, data, position, prefix)
        if entry.name.casefold() in seen:
            source.refuse(f"member {entry.name[:80]!r} stands twice, or differs in upper and lower case only")
        seen.add(entry.name.casefold())
        count += 1
        yield entry
    if count != end.count:
        source.refuse(f"its end record counts {end.count} members, the directory holds {count}")


def _entry(source: _Source, data: bytes, position: int, prefix: int) -> tuple[Entry, int]:
    if position + zf.CENTRAL.size > len(data) or data[position : position + 4] != zf.CENTRAL_SIGNATURE:
        source.refuse("a directory record is cut off or not one")
    fields = zf.CENTRAL.unpack_from(data, position)
    flags, method, crc, packed, size = fields[3], fields[4], fields[7], fields[8], fields[9]
    name_end = position + zf.CENTRAL.size + fields[10]
    end = name_end + fields[11] + fields[12]
    if end > len(data):
        source.refuse("a directory record is longer than the directory")
    name = _name(source, data[position + zf.CENTRAL.size : name_end])
    if flags & zf.FLAG_ENCRYPTED or fields[13] not in (0, 0xFFFF):
        source.refuse(f"member {name!r} is encrypted or lies on another disk")
    extra = data[name_end : name_end + fields[11]]
    size, packed, offset = _wide(source, extra, [size, packed, fields[16]], name)
    header = prefix + offset
    entry = Entry(
        name=name,
        header_offset=header,
        data_offset=_data_offset(
            source, header, data[position + zf.CENTRAL.size : name_end], (flags, method, crc)
        ),
        size=size,
        compressed_size=packed,
        crc32=crc,
        method=method,
        flags=flags,
        external=fields[15],
        raw=data[position:end],
    )
    if method == zf.STORED and size != packed:
        source.refuse(f"stored member {name!r} has two sizes")
    return entry, end


def _name(source: _Source, raw: bytes) -> str:
    try:
        name = raw.decode("utf-8")
    except UnicodeDecodeError:
        source.refuse("a member's name is not UTF-8")
    if not name or "\0" in name or "\\" in name or name.startswith("/") or ".." in name.split("/"):
        source.refuse(f"member name {name[:80]!r} is empty or leaves the archive")
    return name


def _wide(source: _Source, extra: bytes, fields: list[int], name: str) -> list[int]:
    """Replace the fields that are all ones by their 64-bit values."""
    try:
        parts = zf.split_extra(extra)
    except ValueError as exc:
        source.refuse(f"member {name!r}: {exc}")
    if 0xFFFFFFFF not in fields:
        return fields
    wide = next((part[4:] for kind, part in parts if kind == zf.ZIP64_EXTRA_ID), b"")
    needed = fields.count(0xFFFFFFFF)
    if len(wide) < 8 * needed:
        source.refuse(f"member {name!r} needs ZIP64 sizes and has none")
    values = iter(struct.unpack_from(f"<{needed}Q", wide))
    return [next(values) if field == 0xFFFFFFFF else field for field in fields]


def _data_offset(source: _Source, header: int, name: bytes, facts: tuple[int, int, int]) -> int:
    """Check the local header against the directory; return where the data starts."""
    local = zf.LOCAL.unpack(source.read(header, zf.LOCAL.size, "a local header"))
    signature, flags, method, crc = local[0], local[2], local[3], local[6]
    same_crc = crc == facts[2] or bool(flags & zf.FLAG_DESCRIPTOR)
    if signature != zf.LOCAL_SIGNATURE or (flags, method) != facts[:2] or not same_crc:
        source.refuse(f"the local header of {name[:80]!r} does not match the directory")
    if source.read(header + zf.LOCAL.size, local[9], "a local name") != name:
        source.refuse(f"the local header of {name[:80]!r} has another name")
    return int(header + zf.LOCAL.size + local[9] + local[10])


def _check_extents(source: _Source, entries: tuple[Entry, ...], directory_offset: int) -> None:
    end, before = 0, "the start of the file"
    for entry in sorted(entries, key=lambda item: item.header_offset):
        if entry.header_offset < end:
            source.refuse(f"member {entry.name!r} overlaps {before}")
        end, before = entry.data_end, f"member {entry.name!r}"
    if end > directory_offset:
        source.refuse(f"{before} overlaps the directory")
