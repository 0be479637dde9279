"""Opening an ELF file that is not trusted: its headers, its bytes, and where its sections lie.

Says nothing of what sections mean. Whatever is wrong with the file, or is found wrong by the code that
reads it inside `opened_elf`, is a `ConfigError`.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from opencoti.errors import ConfigError, storage_error

_SHF_EXECINSTR: Final = 0x4
_NO_BYTES: Final = ("SHT_NOBITS", "SHT_NULL")


@dataclass(frozen=True, kw_only=True)
class Section:
    """Where the bytes of a section are in the file: `[start, end)`. `address` is where they are loaded."""

    start: int
    end: int
    address: int


@dataclass(frozen=True, kw_only=True)
class OpenElf:
    """An ELF file while it is open.

    Attributes:
        elf: pyelftools' view of it, which has no types.
        data: all bytes of the file.
    """

    path: Path
    elf: Any
    data: mmap.mmap

    def sections(self, name: str) -> tuple[Section, ...]:
        """Return the sections of that name that have bytes; an object can have several."""
        return tuple(
            _section(item)
            for item in self.elf.iter_sections()
            if item.name == name and item["sh_type"] not in _NO_BYTES
        )

    def code_sections(self) -> tuple[Section, ...]:
        """Return the sections that hold instructions."""
        return tuple(
            _section(item)
            for item in self.elf.iter_sections()
            if item["sh_flags"] & _SHF_EXECINSTR and item["sh_type"] not in _NO_BYTES
        )


@contextmanager
def opened_elf(path: Path) -> Iterator[OpenElf]:
    """Open an ELF file for reading.

    Raises:
        ConfigError: `not-elf`, `elf-malformed`, and what the body raises.
        StorageError: it cannot be read.
    """
    with _open(path) as file:
        try:
            yield _load(file, path)
        except ConfigError:
            raise
        except Exception as exc:
            # Hostile bytes get all kinds out of pyelftools, an OSError of a seek to 2**63 among them.
            raise malformed(path, f"{type(exc).__name__}: {exc}"[:200]) from exc


def malformed(path: Path, why: str) -> ConfigError:
    """Make the error for an ELF file that cannot be understood."""
    return ConfigError(
        "elf-malformed", f"cannot inspect {path}", why=why, hint="build it again; the file may be truncated"
    )


def _open(path: Path) -> IO[bytes]:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would wait for a writer for ever
            raise ConfigError("not-elf", f"{path} is no file", hint="give an executable or a shared object")
        return open(path, "rb")
    except OSError as exc:
        raise storage_error(exc, f"cannot read {path}") from exc


def _load(file: IO[bytes], path: Path) -> OpenElf:
    from elftools.elf.elffile import ELFFile

    if file.read(4) != b"\x7fELF":
        raise ConfigError("not-elf", f"{path} is no ELF file", hint="give an executable or a shared object")
    elf = ELFFile(file)
    _require_inside(elf, os.fstat(file.fileno()).st_size, path)
    # Closed by the garbage collector: closing it here would hide a first error behind a second one.
    return OpenElf(path=path, elf=elf, data=mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _require_inside(elf: Any, size: int, path: Path) -> None:
    """Refuse a truncated file: everything that is loaded or named must lie inside it."""
    ends = [segment["p_offset"] + segment["p_filesz"] for segment in elf.iter_segments()]
    ends += [
        section["sh_offset"] + section["sh_size"]
        for section in elf.iter_sections()
        if section["sh_type"] not in _NO_BYTES
    ]
    if max(ends, default=0) > size:
        raise malformed(path, f"it has {size} bytes and speaks of {max(ends)}")


def _section(item: Any) -> Section:
    start = int(item["sh_offset"])
    return Section(start=start, end=start + int(item["sh_size"]), address=int(item["sh_addr"]))
