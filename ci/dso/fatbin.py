"""Reading for which GPUs a file holds CUDA code, from the headers of its fat binaries. Runs nothing.

The layout is not documented; what is used here was found out by compiling small kernels with nvcc 12.4 and
13.5 and comparing with their `cuobjdump`. All numbers are little-endian.

- container: u32 magic, u16 version 1, u16 header size, u64 size of the entries. A compiler leaves one per
  translation unit; a linker puts them one behind another, with zeros between.
- entry: 64 bytes as in `_ENTRY`, options up to the header size, then the payload. Only headers are read, so
  it does not matter whether a payload is compressed.
- flags: bit 20 is the suffix `a` (one GPU only), bit 21 the suffix `f` (its family).
- group (`--concat`): an entry without an arch of its own, whose options list entries that share a payload.
- `.nvFatBinSegment`: 24 bytes per container that the program registers when it starts.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from ci.dso.opened import OpenElf, Section, opened_elf
from opencoti.errors import ConfigError

Data = bytes | mmap.mmap

# Linked code, and code that waits for a device linker. The driver loads the latter only through the former.
_LINKED_SECTION: Final = ".nv_fatbin"
_UNLINKED_SECTION: Final = "__nv_relfatbin"
_WRAPPER_SECTION: Final = ".nvFatBinSegment"
_WRAPPER_BYTES: Final = 24

_CONTAINER: Final = struct.Struct("<IHHQ")
_MAGIC: Final = 0xBA55ED50
_VERSION: Final = 1
# kind, version, header size, payload size, compressed size, options at, minor, major, arch, name at,
# name size, flags, reserved, size before compression
_ENTRY: Final = struct.Struct("<HHIQIIHHIIIQQQ")
_GROUP: Final = struct.Struct("<II")
_FLAG_ONE_GPU: Final = 1 << 20
_FLAG_FAMILY: Final = 1 << 21
_KIND_PTX: Final = 1
_KIND_SASS: Final = 2
_KIND_NVVM: Final = 8
_KIND_GROUP: Final = 0x100
_ARCHS: Final = range(10, 1000)
_MAX_ENTRIES: Final = 500_000
_NOT_ZERO: Final = re.compile(rb"[^\0]")


@dataclass(frozen=True, kw_only=True)
class CudaTargets:
    """For which GPUs there is code: numbers with their suffix (`75`, `90a`, `120f`), sorted.

    Attributes:
        sass: machine code.
        ptx: text that the driver compiles for the GPU it finds.
        other: what no GPU can run as it is, such as `lto_80`.
    """

    sass: tuple[str, ...] = ()
    ptx: tuple[str, ...] = ()
    other: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All of them by their full names (`sm_75`, `compute_90`)."""
        return (*(f"sm_{arch}" for arch in self.sass), *(f"compute_{arch}" for arch in self.ptx), *self.other)


@dataclass(frozen=True, kw_only=True)
class _Entry:
    kind: Literal["sass", "ptx", "other"]
    arch: str


def read_cuda_targets(path: Path) -> CudaTargets:
    """Read the targets of an object, shared object or executable; all empty if it has no CUDA code.

    Raises:
        ConfigError: `not-elf`, `elf-malformed`, `fatbin-malformed`.
        StorageError: it cannot be read.
    """
    with opened_elf(path) as opened:
        return cuda_targets(opened) or CudaTargets()


def cuda_targets(opened: OpenElf) -> CudaTargets | None:
    """Return the targets of an open file, None if it has no CUDA code. Raises as `read_cuda_targets`."""
    reader = _Reader(opened.data, opened.path)
    linked = [reader.entries(item) for item in opened.sections(_LINKED_SECTION)]
    unlinked = [reader.entries(item) for item in opened.sections(_UNLINKED_SECTION)]
    registered = sum(item.end - item.start for item in opened.sections(_WRAPPER_SECTION)) // _WRAPPER_BYTES
    if registered > reader.containers:
        raise reader.malformed(0, f"it registers {registered} fat binaries and holds {reader.containers}")
    if not linked and not unlinked:
        return None
    # As cuobjdump does: code that was linked already is in the linked section a second time.
    return targets_of(_flat(linked) or _flat(unlinked))


def targets_of(entries: Iterable[_Entry]) -> CudaTargets:
    """Gather entries."""
    found: dict[str, set[str]] = {"sass": set(), "ptx": set(), "other": set()}
    for entry in entries:
        found[entry.kind].add(entry.arch)
    return CudaTargets(
        sass=sorted_archs(found["sass"]),
        ptx=sorted_archs(found["ptx"]),
        other=tuple(sorted(found["other"])),
    )


def sorted_archs(archs: Iterable[str]) -> tuple[str, ...]:
    """Sort by number, then suffix: 90, 90a, 100, 120f."""
    return tuple(sorted(archs, key=lambda arch: (int(arch.rstrip("af")), arch)))


def _flat(groups: list[list[_Entry]]) -> list[_Entry]:
    return [entry for group in groups for entry in group]


class _Reader:
    """Reads sections and counts what it has read, so that a hostile file comes to an end."""

    def __init__(self, data: Data, path: Path) -> None:
        self._data = data
        self._path = path
        self._left = _MAX_ENTRIES
        self.containers = 0

    def entries(self, section: Section) -> list[_Entry]:
        """Return the entries of every container of a section."""
        found: list[_Entry] = []
        at = self._skip_zeros(section.start, section.end)
        while at < section.end:
            first, end = self._container(at, section.end)
            found += self._entries_between(first, end)
            self.containers += 1
            at = self._skip_zeros(end, section.end)
        return found

    def malformed(self, at: int, why: str) -> ConfigError:
        """Make the error for bytes that no compiler wrote."""
        where = f" at offset {at:#x}" if at else ""
        return ConfigError(
            "fatbin-malformed",
            f"cannot read the CUDA code of {self._path}",
            why=f"{why}{where}",
            hint="build it again; a newer nvcc than the pinned ones may write another format",
        )

    def _skip_zeros(self, at: int, end: int) -> int:
        match = _NOT_ZERO.search(self._data, at, end)
        return match.start() if match else end

    def _container(self, at: int, end: int) -> tuple[int, int]:
        """Return where the entries of a container begin and end."""
        magic, version, header, size = self._unpack(_CONTAINER, at, end)
        if magic != _MAGIC or version != _VERSION or header < _CONTAINER.size:
            raise self.malformed(at, "there is no fat binary where one should begin")
        if size > end - at - header:
            raise self.malformed(at, f"a fat binary of {size} bytes ends outside its section")
        return at + header, at + header + size

    def _entries_between(self, at: int, end: int) -> Iterator[_Entry]:
        while at < end:
            self._count(at)
            kind, _, header, payload, _, options, *_ = fields = self._unpack(_ENTRY, at, end)
            if header < _ENTRY.size or header + payload > end - at:
                raise self.malformed(
                    at, f"an entry of {header} + {payload} bytes ends outside its fat binary"
                )
            if kind == _KIND_GROUP:
                yield from self._group(at + options, at + header)
            else:
                yield self._entry(fields, at)
            at += header + payload

    def _group(self, at: int, end: int) -> Iterator[_Entry]:
        count, size = self._unpack(_GROUP, at, end)
        if _GROUP.size + count * _ENTRY.size > min(size, end - at):
            raise self.malformed(at, f"a group of {count} entries does not fit into {size} bytes")
        for number in range(count):
            self._count(at)
            place = at + _GROUP.size + number * _ENTRY.size
            yield self._entry(self._unpack(_ENTRY, place, end), place)

    def _entry(self, fields: tuple[int, ...], at: int) -> _Entry:
        kind, number, flags = fields[0], fields[8], fields[11]
        is_one_gpu, is_family = bool(flags & _FLAG_ONE_GPU), bool(flags & _FLAG_FAMILY)
        if number not in _ARCHS or (is_one_gpu and is_family):
            raise self.malformed(at, f"an entry is for no GPU that there is ({number}, flags {flags:#x})")
        arch = f"{number}{'a' * is_one_gpu}{'f' * is_family}"
        if kind == _KIND_SASS:
            return _Entry(kind="sass", arch=arch)
        if kind == _KIND_PTX:
            return _Entry(kind="ptx", arch=arch)
        return _Entry(kind="other", arch=f"{'lto' if kind == _KIND_NVVM else f'kind{kind}'}_{arch}")

    def _count(self, at: int) -> None:
        self._left -= 1
        if self._left < 0:
            raise self.malformed(at, f"it has more than {_MAX_ENTRIES} entries")

    def _unpack(self, form: struct.Struct, at: int, end: int) -> tuple[int, ...]:
        if at + form.size > end:
            raise self.malformed(at, "a header is cut off")
        return form.unpack_from(self._data, at)
