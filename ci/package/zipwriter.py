"""Appending stored, aligned zip members to any file: ELF, APE, zip, or one without members.

The host's executable bytes and its members keep their offsets; only its directory is rewritten, behind the
new members. The result has one directory, no bytes of older directories or replaced members, and is the
same for the same input. It is read back and compared before it takes its name.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from ci.package import zipformat as zf
from ci.package.inputs import Input, open_input
from ci.package.streams import Crc32, Pump, RangeCopier, RangeCrc32, Sink
from ci.package.zipformat import Entry, ZipLimits
from ci.package.zipreader import ALIGNMENT_BYTES, Archive, find_archive, read_archive
from opencoti.chunks import ChunkHasher, ChunkTable
from opencoti.errors import BuildError, ConfigError
from opencoti.files import atomic_file, require_safe_name
from opencoti.hashing import sha256_bytes

Progress = Callable[[str, int, int], None]
"""Called with what is being done, bytes done, bytes in all."""


@dataclass(frozen=True, kw_only=True)
class NewMember:
    """A member to append: the bytes of a file, or `data`."""

    name: str
    mode: Literal[0o644, 0o755]
    path: Path | None = None
    data: bytes = b""


@dataclass(frozen=True, kw_only=True)
class WrittenMember:
    """A member as it was written; `offset` is where its bytes start."""

    name: str
    mode: Literal[0o644, 0o755]
    offset: int
    size: int
    sha256: str
    crc32: int


@dataclass(frozen=True, kw_only=True)
class WrittenArchive:
    """The finished file, hashed from what was read back."""

    path: Path
    size: int
    sha256: str
    chunks: ChunkTable
    members: tuple[WrittenMember, ...]
    kept: tuple[str, ...]


BeforeRename = Callable[[IO[bytes], WrittenArchive], None]


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """How to write.

    Attributes:
        allow_replace: a new member may take the place of one of the same name.
        mode: of the result; None takes the host's, executable for everyone who may read it.
        limits: when fields move to ZIP64.
        on_progress: told about every block.
        before_rename: called with the complete, checked file right before it takes its name; may refuse it.
    """

    allow_replace: bool = False
    mode: int | None = None
    limits: ZipLimits = zf.FORMAT_LIMITS
    on_progress: Progress | None = None
    before_rename: BeforeRename | None = None


LastMembers = Callable[[Sequence[WrittenMember]], Iterable[NewMember]]


def write_archive(
    host: Path,
    members: Sequence[NewMember],
    out: Path,
    *,
    last: LastMembers | None = None,
    options: WriteOptions = WriteOptions(),
) -> WrittenArchive:
    """Write `out`: the host followed by its members and the new ones.

    Args:
        host: any file; it may be `out` itself.
        members: in the order they are written.
        out: the new file; whatever stands there is replaced at the end, in one step.
        last: given the members written so far, returns more of them (an index, for example).
        options: see `WriteOptions`.

    Raises:
        VerificationError: `zip-malformed`, the host ends in a broken archive; `unsafe-name`.
        ConfigError: `member-duplicate`, two members share a name (upper and lower case count as the same).
        UsageError: `member-unreadable`, the host or a member is no readable file.
        BuildError: `member-changed`, an input changed meanwhile; `readback-differs`, the disk lies.
        StorageError: the output cannot be written.
    """
    with ExitStack() as stack:
        source = stack.enter_context(open_input(host))
        pump = stack.enter_context(Pump())
        archive = find_archive(source.file, str(host))
        mode = options.mode if options.mode is not None else source.executable_mode
        file = stack.enter_context(atomic_file(out, mode=mode))
        writer = _Writer(file, source, archive, pump, options)
        writer.begin([member.name for member in members])
        for member in members:
            writer.append(member)
        for member in last(writer.written) if last else ():
            writer.append(member)
        result = writer.finish(out)
        if options.before_rename is not None:
            options.before_rename(file, result)
    return result


@dataclass(frozen=True, kw_only=True)
class _Copied:
    """A range that was copied and its CRC-32 as read from the source; compared when reading back."""

    what: str
    offset: int
    size: int
    crc32: int


class _Writer:
    """One run of `write_archive`: position, records and checks. Owned by that function."""

    def __init__(
        self,
        file: IO[bytes],
        host: Input,
        archive: Archive | None,
        pump: Pump,
        options: WriteOptions,
    ) -> None:
        self._file = file
        self._target = file.fileno()
        self._host = host
        self._archive = archive
        self._pump = pump
        self._options = options
        self._limits = options.limits
        self._position = 0
        self._records: list[bytes] = []
        self._names: dict[str, str] = {}
        self._copied: list[_Copied] = []
        self._kept: list[str] = []
        self.written: list[WrittenMember] = []

    def begin(self, new_names: Sequence[str]) -> None:
        """Copy the host and those of its members that stay."""
        entries = sorted(self._archive.entries if self._archive else (), key=lambda item: item.header_offset)
        replaced = [entry.name for entry in entries if entry.name in new_names]
        if replaced and not self._options.allow_replace:
            raise _duplicate(replaced[0], str(self._host.path))
        gone = {entry.header_offset for entry in entries if entry.name in replaced}
        end = self._archive.directory_offset if self._archive else self._host.size
        starts = [entry.header_offset for entry in entries] + [end]
        prefix_end = min(gone, default=end)
        self._copy_host(0, prefix_end, "the host")
        for entry, stop in zip(entries, starts[1:], strict=True):
            if entry.header_offset not in gone:
                self._keep(entry, stop, is_moved=entry.header_offset > prefix_end)
        self._host.check_unchanged()

    def append(self, member: NewMember) -> None:
        """Write one new member at the next aligned place."""
        for part in member.name.split("/"):
            require_safe_name(part, f"the new member {member.name[:80]!r}")
        self._claim(member.name)
        if member.path is None:
            self._append_data(member)
        else:
            with open_input(member.path) as source:
                self._append_file(member, source)
                source.check_unchanged()

    def _append_data(self, member: NewMember) -> None:
        offset = self._place(member.name, len(member.data))
        _write_at(self._target, member.data, offset)
        self._seal(member, offset, len(member.data), sha256_bytes(member.data), zlib.crc32(member.data))

    def _append_file(self, member: NewMember, source: Input) -> None:
        offset = self._place(member.name, source.size)
        digest, crc = hashlib.sha256(), Crc32()
        copier = RangeCopier(source.handle, 0, self._target, offset)
        self._move(source, 0, source.size, copier, (digest, crc), f"adding {member.name}")
        os.ftruncate(self._target, offset + source.size)
        self._seal(member, offset, source.size, digest.hexdigest(), crc.value)

    def _place(self, name: str, size: int) -> int:
        """Return where the data of the next member goes, with room for its header in front."""
        header_size = zf.local_header_size(name, size, self._limits)
        return _align(self._position + header_size)

    def finish(self, out: Path) -> WrittenArchive:
        """Write the directory, read everything back and return what is there."""
        directory = b"".join(self._records)
        tail = directory + zf.render_end(
            count=len(self._records),
            directory_offset=self._position,
            directory_size=len(directory),
            comment=self._archive.comment if self._archive else b"",
            limits=self._limits,
        )
        _write_at(self._target, tail, self._position)
        size = self._position + len(tail)
        # Written back to the disk while it is hashed: the sync at the end then finds little to do.
        with ThreadPoolExecutor(1) as background:
            sync = background.submit(os.fsync, self._target)
            digest, table = self._read_back(size)
            sync.result()
        return WrittenArchive(
            path=out,
            size=size,
            sha256=digest,
            chunks=table,
            members=tuple(self.written),
            kept=tuple(self._kept),
        )

    def _copy_host(self, start: int, stop: int, what: str) -> None:
        crc = Crc32()
        copier = RangeCopier(self._host.handle, start, self._target, self._position)
        self._move(self._host, start, stop - start, copier, (crc,), f"copying {what}")
        self._copied.append(_Copied(what=what, offset=self._position, size=stop - start, crc32=crc.value))
        self._position += stop - start
        os.ftruncate(self._target, self._position)

    def _keep(self, entry: Entry, stop: int, *, is_moved: bool) -> None:
        """Keep a member of the host: where it is, or moved down over a replaced one."""
        assert self._archive is not None
        self._claim(entry.name)
        self._kept.append(entry.name)
        offset = entry.header_offset
        if is_moved:
            lead = entry.data_offset - entry.header_offset
            if entry.data_offset % ALIGNMENT_BYTES == 0:
                self._position = _align(self._position + lead) - lead
            offset = self._position
            # A data descriptor has no fixed size: then everything up to the next member goes along.
            end = stop if entry.flags & zf.FLAG_DESCRIPTOR else entry.data_end
            self._copy_host(entry.header_offset, end, f"member {entry.name}")
        if is_moved or self._archive.prefix:
            self._records.append(zf.move_central(entry.raw, entry, offset, self._limits))
        else:
            self._records.append(entry.raw)

    def _claim(self, name: str) -> None:
        if name.casefold() in self._names:
            raise _duplicate(name, f"the new archive (as {self._names[name.casefold()]!r})")
        self._names[name.casefold()] = name

    def _seal(self, member: NewMember, offset: int, size: int, sha256: str, crc: int) -> None:
        """Write the header of a member whose data is in place, and note what was written."""
        header = zf.render_local(member.name, size, crc, self._limits)
        _write_at(self._target, header, offset - len(header))
        self._position = offset + size
        entry = Entry(
            name=member.name,
            header_offset=offset - len(header),
            data_offset=offset,
            size=size,
            compressed_size=size,
            crc32=crc,
            method=zf.STORED,
            flags=0,
            external=zf.external_attributes(member.mode),
        )
        self._records.append(zf.render_central(entry, self._limits))
        self._copied.append(_Copied(what=f"member {member.name}", offset=offset, size=size, crc32=crc))
        self.written.append(
            WrittenMember(
                name=member.name, mode=member.mode, offset=offset, size=size, sha256=sha256, crc32=crc
            )
        )

    def _move(
        self, source: Input, start: int, size: int, copier: RangeCopier, sinks: Sequence[Sink], what: str
    ) -> None:
        progress = self._options.on_progress

        def on_block(at: int, block: memoryview) -> None:
            copier.write_block(at, block)
            if progress is not None:
                progress(what, at + len(block), size)

        if self._pump.feed(source.handle, start, size, sinks, on_block=on_block) != size:
            source.refuse_change()

    def _read_back(self, size: int) -> tuple[str, ChunkTable]:
        """Hash the new file and compare every copied range and the directory with what went in."""
        digest, chunks = hashlib.sha256(), ChunkHasher()
        ranges = RangeCrc32([(item.offset, item.size) for item in self._copied])
        progress = self._options.on_progress

        def on_block(at: int, block: memoryview) -> None:
            if progress is not None:
                progress("reading back", at + len(block), size)

        read = self._pump.feed(self._target, 0, size, (digest, chunks, ranges), on_block=on_block)
        if read != size:
            raise _readback("the file", f"it has {read} bytes, {size} were written")
        for item, crc in zip(self._copied, ranges.values, strict=True):
            if crc != item.crc32:
                raise _readback(item.what, f"its CRC-32 is {crc:08x}, what was read has {item.crc32:08x}")
        self._check_directory()
        return digest.hexdigest(), chunks.finish()

    def _check_directory(self) -> None:
        archive = read_archive(self._file, "the new file")
        names = [*self._kept, *(member.name for member in self.written)]
        if [entry.name for entry in archive.entries] != names or archive.directory_offset != self._position:
            raise _readback("the directory", "its members are not those that were written")
        for member in self.written:
            entry = archive.entry(member.name)
            if entry is None or (entry.data_offset, entry.size, entry.crc32) != (
                member.offset,
                member.size,
                member.crc32,
            ):
                raise _readback(f"member {member.name}", "its directory record is not what was written")


def _align(position: int) -> int:
    return -(-position // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _write_at(handle: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(handle, view, offset)
        view, offset = view[written:], offset + written


def _duplicate(name: str, where: str) -> ConfigError:
    return ConfigError(
        "member-duplicate",
        f"cannot add member {name}",
        why=f"{where} has it already (names that differ in upper and lower case only count as the same)",
        hint="rename one of them, or use --replace to put the new one in the place of the host's",
    )


def _readback(what: str, why: str) -> BuildError:
    return BuildError(
        "readback-differs",
        f"{what} is not on the disk as it was written",
        why=why,
        hint="the disk is faulty, or another program wrote to the file: check them and run again",
    )
