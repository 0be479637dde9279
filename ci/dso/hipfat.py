"""Reading for which GPUs a file holds ROCm code, from the headers of its offload bundles. Runs nothing.

`.hip_fatbin` holds one bundle per translation unit, one behind another with zeros between. The layout is that
of LLVM's "Clang Offload Bundler" page; all numbers are little-endian.

- bundle: the magic, u64 number of entries, then per entry u64 offset (from the magic), u64 size, u64 length
  of its id, the id: `host-x86_64-unknown-linux-gnu-`, `hipv4-amdgcn-amd-amdhsa--gfx90a:xnack+`.
- compressed bundle (`--offload-compress`): `CCOB`, u16 version, u16 method (0 zlib, 1 zstd), then by version
  1: u32 size before, u64 hash; 2: u32 size of the whole, u32 size before, u64 hash; 3: the same with u64
  sizes. Behind it a bundle, compressed. Only its beginning is decompressed.
- `.hipFatBinSegment`: 24 bytes per bundle that the program registers when it starts.
"""

from __future__ import annotations

import re
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ci.dso.fatbin import Data
from ci.dso.opened import OpenElf, Section, opened_elf
from opencoti.errors import ConfigError

_SECTION: Final = ".hip_fatbin"
_WRAPPER_SECTION: Final = ".hipFatBinSegment"
_WRAPPER_BYTES: Final = 24

_MAGIC: Final = b"__CLANG_OFFLOAD_BUNDLE__"
_COUNT: Final = struct.Struct("<Q")
_ENTRY: Final = struct.Struct("<QQQ")
_COMPRESSED: Final = struct.Struct("<4sHH")
_COMPRESSED_MAGIC: Final = b"CCOB"
_SIZES: Final = {1: struct.Struct("<IQ"), 2: struct.Struct("<IIQ"), 3: struct.Struct("<QQQ")}
_ZLIB: Final = 0
_ZSTD: Final = 1
_ALIGNMENT: Final = 4096
_MAX_ENTRIES: Final = 500
_MAX_BUNDLES: Final = 100_000
_MAX_ID_BYTES: Final = 200
# A compressed block yields up to 128 KiB at once; the table of a bundle has a few KiB.
_HEAD_BYTES: Final = 1 << 18

_NOT_ZERO: Final = re.compile(rb"[^\0]")
_HOST: Final = "host-"
_PRINTABLE: Final = re.compile(rb"[\x21-\x7e]+")
# Kind, arch, vendor, system and (often empty) environment of the triple, then the target.
_ID: Final = re.compile(r"hip(?:v4)?-[a-z0-9_]+-amd-amdhsa-[a-z]*-([a-z0-9-]+(?::[a-z]+[+-])*)")


@dataclass(frozen=True, kw_only=True)
class _Bundle:
    targets: frozenset[str]
    end: int


def read_hip_targets(path: Path) -> tuple[str, ...]:
    """Read the targets of an object, shared object or executable; empty if it has no ROCm code.

    Returns:
        Names with their features (`gfx1100`, `gfx90a:xnack+`), sorted.

    Raises:
        ConfigError: `not-elf`, `elf-malformed`, `hip-bundle-malformed`.
        StorageError: it cannot be read.
    """
    with opened_elf(path) as opened:
        return hip_targets(opened) or ()


def hip_targets(opened: OpenElf) -> tuple[str, ...] | None:
    """Return the targets of an open file, None if it has no ROCm code. Raises as `read_hip_targets`."""
    sections = opened.sections(_SECTION)
    bundles = [bundle for section in sections for bundle in _bundles(opened, section)]
    registered = sum(item.end - item.start for item in opened.sections(_WRAPPER_SECTION)) // _WRAPPER_BYTES
    # An object for a device linker (`-fgpu-rdc`) registers what that linker will make.
    if registered > len(bundles) and opened.elf["e_type"] != "ET_REL":
        raise _malformed(opened.path, 0, f"it registers {registered} bundles and holds {len(bundles)}")
    if not sections:
        return None
    return tuple(sorted(frozenset[str]().union(*(bundle.targets for bundle in bundles))))


def _bundles(opened: OpenElf, section: Section) -> list[_Bundle]:
    found: list[_Bundle] = []
    at = _skip_zeros(opened.data, section.start, section.end)
    while at < section.end:
        if len(found) == _MAX_BUNDLES:
            raise _malformed(opened.path, at, f"it has more than {_MAX_BUNDLES} bundles")
        bundle = _Reader(opened.data, section, opened.path, base=0).bundle(at)
        found.append(bundle)
        at = _skip_zeros(opened.data, bundle.end, section.end)
    return found


def _skip_zeros(data: Data, at: int, end: int) -> int:
    match = _NOT_ZERO.search(data, at, end)
    return match.start() if match else end


def _malformed(path: Path, at: int, why: str) -> ConfigError:
    where = f" at offset {at:#x}" if at else ""
    return ConfigError(
        "hip-bundle-malformed",
        f"cannot read the ROCm code of {path}",
        why=f"{why}{where}",
        hint="build it again; a newer compiler than the pinned one may write another format",
    )


class _Reader:
    """Reads one bundle of a section; `base` is where the bytes of `data` lie in the file, for errors."""

    def __init__(self, data: Data, section: Section, path: Path, *, base: int) -> None:
        self._data = data
        self._start = section.start
        self._end = section.end
        self._path = path
        self._base = base

    def bundle(self, at: int) -> _Bundle:
        """Read the bundle at `at`, compressed or not."""
        if self._data[at : at + len(_MAGIC)] == _MAGIC:
            return self._plain(at, end=self._end)
        if self._data[at : at + len(_COMPRESSED_MAGIC)] == _COMPRESSED_MAGIC:
            return self._compressed(at)
        raise self._bad(at, "there is no bundle where one should begin")

    def _plain(self, start: int, *, end: int) -> _Bundle:
        """Read a table. `end` bounds the code it speaks of, which need not be there."""
        [count] = self._unpack(_COUNT, start + len(_MAGIC))
        if count > _MAX_ENTRIES:
            raise self._bad(start, f"a bundle has {count} entries")
        at, last, targets = start + len(_MAGIC) + _COUNT.size, start, set[str]()
        for _ in range(count):
            offset, size, length = self._unpack(_ENTRY, at)
            at += _ENTRY.size
            if length > min(_MAX_ID_BYTES, self._end - at) or offset + size > end - start:
                raise self._bad(at, f"code of {size} bytes at {offset} ends outside its section")
            targets |= self._targets(at, at + length)
            at += length
            last = max(last, start + offset + size)
        return _Bundle(targets=frozenset(targets), end=max(at, last))

    def _compressed(self, start: int) -> _Bundle:
        _, version, method = self._unpack(_COMPRESSED, start)
        sizes = _SIZES.get(version)
        if sizes is None:
            raise self._bad(start, f"a compressed bundle has version {version}")
        fields = self._unpack(sizes, start + _COMPRESSED.size)
        payload, size_before = start + _COMPRESSED.size + sizes.size, fields[-2]
        end = start + fields[0] if version > 1 else self._next_aligned(payload)
        if not payload <= end <= self._end:
            raise self._bad(start, f"a compressed bundle ends outside its section, at {end:#x}")
        head = self._head(self._data[payload : min(end, payload + _HEAD_BYTES)], method, start)
        if head[: len(_MAGIC)] != _MAGIC:
            raise self._bad(start, "there is no bundle inside a compressed one")
        whole = Section(start=0, end=len(head), address=0)
        inner = _Reader(head, whole, self._path, base=start)
        return _Bundle(targets=inner._plain(0, end=size_before).targets, end=end)

    def _next_aligned(self, at: int) -> int:
        """Return where the next bundle begins: version 1 does not say how long it is."""
        place = at + (self._start - at) % _ALIGNMENT
        while place < self._end:
            if self._data[place : place + 4] in (_MAGIC[:4], _COMPRESSED_MAGIC):
                return place
            place += _ALIGNMENT
        return self._end

    def _head(self, data: bytes, method: int, start: int) -> bytes:
        """Return the beginning of what was compressed."""
        import zstandard

        if method not in (_ZLIB, _ZSTD):
            raise self._bad(start, f"a bundle is compressed by method {method}")
        try:
            if method == _ZLIB:
                return zlib.decompressobj().decompress(data, _HEAD_BYTES)
            with zstandard.ZstdDecompressor().stream_reader(data) as reader:
                return bytes(reader.read(_HEAD_BYTES))
        except (zlib.error, zstandard.ZstdError) as exc:
            raise self._bad(start, f"a compressed bundle is damaged ({exc})") from exc

    def _targets(self, at: int, end: int) -> set[str]:
        """Return the target that the id of an entry names; what is not understood is named in full."""
        raw = self._data[at:end]
        if not _PRINTABLE.fullmatch(raw):  # it will be shown on a terminal
            raise self._bad(at, "the id of an entry is no text")
        text = raw.decode("ascii")
        if text.startswith(_HOST):
            return set()
        match = _ID.fullmatch(text)
        return {match[1] if match else text}

    def _unpack(self, form: struct.Struct, at: int) -> tuple[int, ...]:
        if at + form.size > self._end:
            raise self._bad(at, "a header is cut off")
        return form.unpack_from(self._data, at)

    def _bad(self, at: int, why: str) -> ConfigError:
        return _malformed(self._path, self._base + at, why)
