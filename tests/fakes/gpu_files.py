"""Files as nvcc and clang leave them, with headers only: imitates the formats that `ci.dso` reads.

Holds no byte of a vendor's tool. The layouts were compared with what nvcc 12.4 and 13.5 and clang 21 write;
the payloads are filler, or a bundle compressed here.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

PTX: Final = 1
SASS: Final = 2
NVVM: Final = 8
_GROUP: Final = 0x100
_SUFFIX_FLAGS: Final = {"": 0, "a": 1 << 20, "f": 1 << 21}
_ZSTD: Final = 0x8000
_EXECUTABLE: Final = 0x4 | 0x2
_PROGBITS: Final = 1
_STRTAB: Final = 3


@dataclass(frozen=True, kw_only=True)
class FatEntry:
    """One entry of a fat binary: `FatEntry(kind=SASS, arch="90a")`."""

    kind: int
    arch: str
    payload: bytes = b"\xaa" * 48
    options: bytes = b""
    is_compressed: bool = False

    def header(self, *, header_size: int, size: int) -> bytes:
        number, suffix = self.arch.rstrip("af"), self.arch.lstrip("0123456789")
        flags = 0x11 | _SUFFIX_FLAGS[suffix] | (_ZSTD if self.is_compressed else 0)
        version = (self.kind, 0x0101, header_size, size, size if self.is_compressed else 0)
        return struct.pack("<HHIQIIHHIIIQQQ", *version, 64, 8, 1, int(number or 0), 0, 0, flags, 0, 0)

    def encode(self) -> bytes:
        header_size = 64 + len(self.options)
        return self.header(header_size=header_size, size=len(self.payload)) + self.options + self.payload


def fat_group(entries: Sequence[FatEntry], *, count: int | None = None) -> FatEntry:
    """Imitate `--concat`: entries that share one compressed payload."""
    records = b"".join(entry.header(header_size=0, size=64) for entry in entries)
    head = struct.pack("<II", len(entries) if count is None else count, 8 + len(records))
    return FatEntry(kind=_GROUP, arch="", options=head + records, is_compressed=True)


def fat_binary(*entries: FatEntry) -> bytes:
    """One container, as one translation unit leaves it."""
    body = b"".join(entry.encode() for entry in entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def bundle(*targets: str, kind: str = "hipv4-amdgcn-amd-amdhsa--") -> bytes:
    """One offload bundle of clang, with 64 bytes of filler per target from offset 4096 on."""
    ids = ["host-x86_64-unknown-linux-gnu-", *(kind + target for target in targets)]
    table = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", len(ids))
    for number, name in enumerate(ids):
        offset, size = (4096 + 64 * (number - 1), 64) if number else (4096, 0)
        table += struct.pack("<QQQ", offset, size, len(name)) + name.encode()
    return table.ljust(4096, b"\0") + b"\xbb" * (64 * len(targets))


def compressed_bundle(plain: bytes, *, version: int = 2, method: int = 1) -> bytes:
    """The same as `clang --offload-compress` leaves it; method 0 is zlib, 1 zstd."""
    import zstandard

    body = zlib.compress(plain) if method == 0 else zstandard.ZstdCompressor().compress(plain)
    form = {1: "<4sHHIQ", 2: "<4sHHIIQ", 3: "<4sHHQQQ"}[version]
    total = struct.calcsize(form) + len(body)
    sizes = (len(plain),) if version == 1 else (total, len(plain))
    return struct.pack(form, b"CCOB", version, method, *sizes, 0x1234) + body


def padded(*parts: bytes, alignment: int = 8) -> bytes:
    """Put parts one behind another as a linker does."""
    return b"".join(part + b"\0" * (-len(part) % alignment) for part in parts)


def elf_file(sections: Mapping[str, bytes], *, machine: int = 62, is_object: bool = False) -> bytes:
    """A little 64-bit ELF file that has these sections; `.text` is executable and loaded at 0x1000."""
    names = ["", *sections, ".shstrtab"]
    table = b"".join(name.encode() + b"\0" for name in names)
    body, headers, name_at = b"", bytes(64), 1
    for name, data in [*sections.items(), (".shstrtab", table)]:
        body += b"\0" * (-len(body) % 16)
        kind = _STRTAB if name == ".shstrtab" else _PROGBITS
        flags, address = (_EXECUTABLE, 0x1000) if name == ".text" else (0, 0)
        headers += struct.pack(
            "<IIQQQQIIQQ", name_at, kind, flags, address, 64 + len(body), len(data), 0, 0, 1, 0
        )
        body += data
        name_at += len(name) + 1
    count, elf_type = len(names), 1 if is_object else 3
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    places = (0, 0, 64 + len(body), 0, 64, 0, 0, 64, count, count - 1)
    return ident + struct.pack("<HHIQQQIHHHHHH", elf_type, machine, 1, *places) + body + headers
