"""Reading what an ELF file is, needs, offers and gives away. Runs nothing and judges nothing.

Works on stripped files; needs the section headers, since the symbol versions are found through them. The
file is not trusted: whatever is wrong with it is a `ConfigError`.
"""

from __future__ import annotations

import mmap
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final, Literal

from opencoti.errors import ConfigError, storage_error

INIT_SYMBOLS: Final = ("ggml_backend_init", "ggml_backend_score")
BUILD_PREFIXES: Final = tuple(f"/{name}/" for name in ("home", "root", "tmp", "build", "github", "Users"))

Kind = Literal["executable", "pie", "dso", "object"]

_ARCHS: Final = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64", "EM_386": "i386", "EM_ARM": "arm"}
_DF_1_PIE: Final = 0x08000000
_DT_TEXTREL: Final = "DT_TEXTREL"
# Hostile counts in a version table could keep the reader busy for hours.
_MAX_VERSIONS: Final = 10_000
_MAX_SYMBOLS: Final = 2_000_000
_MAX_PATHS: Final = 50
# A version name without a number that stands for one (glibc's marker for packed relative relocations).
_NAMED_VERSIONS: Final = {"GLIBC_ABI_DT_RELR": ("GLIBC", "2.36")}
_VERSION_NAME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+]*?)_([0-9]+(?:\.[0-9]+)*)")


@dataclass(frozen=True, kw_only=True)
class VersionNeed:
    """The highest version of one library interface that a file asks for, and a symbol that does."""

    family: str
    version: str
    library: str
    symbol: str


@dataclass(frozen=True, kw_only=True)
class ElfFacts:
    """What was read from one ELF file. Lists are sorted."""

    path: Path
    kind: Kind
    is_static: bool
    arch: str
    needed: tuple[str, ...]
    rpath: tuple[str, ...]
    runpath: tuple[str, ...]
    soname: str | None
    version_needs: tuple[VersionNeed, ...]
    private_versions: tuple[str, ...]
    exports: frozenset[str]
    undefined: tuple[str, ...]
    has_executable_stack: bool
    has_writable_code: bool
    has_debug_info: bool
    build_paths: tuple[str, ...]

    @property
    def init_symbols(self) -> tuple[str, ...]:
        """The entry points of a backend that it exports."""
        return tuple(name for name in INIT_SYMBOLS if name in self.exports)

    def need(self, family: str) -> VersionNeed | None:
        """Return what it needs of a version family (`GLIBC`, `GLIBCXX`)."""
        return next((item for item in self.version_needs if item.family == family), None)

    def floor(self, family: str) -> str | None:
        """Return the lowest version of a family that it runs with, None if it needs none."""
        need = self.need(family)
        return need.version if need else None

    @property
    def glibc_floor(self) -> str | None:
        """The lowest glibc that it runs with."""
        return self.floor("GLIBC")

    @property
    def libstdcxx_floor(self) -> str | None:
        """The lowest GLIBCXX interface that it runs with."""
        return self.floor("GLIBCXX")


def inspect_elf(path: Path, *, build_prefixes: Sequence[str] = BUILD_PREFIXES) -> ElfFacts:
    """Read an ELF file.

    Args:
        path: executable, shared object or relocatable object.
        build_prefixes: folders of a build machine; strings that start with one are reported.

    Raises:
        ConfigError: `not-elf`, `elf-malformed`.
        StorageError: it cannot be read.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would wait for a writer for ever
            raise ConfigError("not-elf", f"{path} is no file", hint="give an executable or a shared object")
        file = open(path, "rb")  # noqa: SIM115 (closed below)
    except OSError as exc:
        raise storage_error(exc, f"cannot read {path}") from exc
    with file:
        try:
            return _read(file, path, build_prefixes)
        except ConfigError:
            raise
        except Exception as exc:
            # Hostile bytes get all kinds out of pyelftools, an OSError of a seek to 2**63 among them.
            raise _malformed(path, f"{type(exc).__name__}: {exc}"[:200]) from exc


def version_key(version: str) -> tuple[int, ...]:
    """Return what to compare versions by: 2.9 is older than 2.28."""
    return tuple(int(part) for part in version.split("."))


def _read(file: IO[bytes], path: Path, build_prefixes: Sequence[str]) -> ElfFacts:
    from elftools.elf.elffile import ELFFile

    if file.read(4) != b"\x7fELF":
        raise ConfigError("not-elf", f"{path} is no ELF file", hint="give an executable or a shared object")
    elf = ELFFile(file)
    size = os.fstat(file.fileno()).st_size
    segments = list(elf.iter_segments())
    _require_inside(elf, segments, size, path)
    tags = _dynamic_tags(segments)
    symbols = _Symbols.read(elf, has_versions="DT_VERNEED" in tags, path=path)
    return ElfFacts(
        path=path,
        kind=_kind(elf, segments, tags),
        is_static=not tags.get("DT_NEEDED") and not _has(segments, "PT_INTERP") and elf["e_type"] != "ET_REL",
        arch=_ARCHS.get(elf["e_machine"], str(elf["e_machine"])),
        needed=tuple(sorted(tags.get("DT_NEEDED", ()))),
        rpath=_split(tags.get("DT_RPATH")),
        runpath=_split(tags.get("DT_RUNPATH")),
        soname=next(iter(tags.get("DT_SONAME", ())), None),
        version_needs=symbols.version_needs,
        private_versions=symbols.private_versions,
        exports=symbols.exports,
        undefined=symbols.undefined,
        has_executable_stack=_has_executable_stack(elf, segments),
        has_writable_code=_has_writable_code(segments, tags),
        has_debug_info=_has_debug_info(elf),
        build_paths=_build_paths(file, build_prefixes, size),
    )


def _require_inside(elf: Any, segments: list[Any], size: int, path: Path) -> None:
    """Refuse a truncated file: everything that is loaded or named must lie inside it."""
    ends = [segment["p_offset"] + segment["p_filesz"] for segment in segments]
    ends += [
        section["sh_offset"] + section["sh_size"]
        for section in elf.iter_sections()
        if section["sh_type"] not in ("SHT_NOBITS", "SHT_NULL")
    ]
    if max(ends, default=0) > size:
        raise _malformed(path, f"it has {size} bytes and speaks of {max(ends)}")


def _dynamic_tags(segments: list[Any]) -> dict[str, list[str]]:
    """Return the texts of the dynamic section, by tag; tags without text have an empty one."""
    tags: dict[str, list[str]] = {}
    for segment in segments:
        if segment["p_type"] == "PT_DYNAMIC":
            for tag in islice(segment.iter_tags(), _MAX_VERSIONS):
                tags.setdefault(str(tag.entry.d_tag), []).append(_tag_text(tag))
    return tags


def _tag_text(tag: Any) -> str:
    for name in ("needed", "rpath", "runpath", "soname"):
        if hasattr(tag, name):
            return str(getattr(tag, name))
    return str(tag.entry.d_val)


def _kind(elf: Any, segments: list[Any], tags: dict[str, list[str]]) -> Kind:
    if elf["e_type"] == "ET_EXEC":
        return "executable"
    if elf["e_type"] == "ET_REL":
        return "object"
    is_marked = any(int(value) & _DF_1_PIE for value in tags.get("DT_FLAGS_1", ()))
    # libc.so.6 has an interpreter, since it can be run: the mark decides where a SONAME makes it a library.
    if is_marked or (_has(segments, "PT_INTERP") and "DT_SONAME" not in tags):
        return "pie"
    return "dso"


def _has(segments: list[Any], kind: str) -> bool:
    return any(segment["p_type"] == kind for segment in segments)


def _split(values: list[str] | None) -> tuple[str, ...]:
    return tuple(part for value in values or () for part in value.split(":"))


def _has_executable_stack(elf: Any, segments: list[Any]) -> bool:
    """Tell whether the stack is executable; without a statement the kernel makes it so."""
    flags = [segment["p_flags"] for segment in segments if segment["p_type"] == "PT_GNU_STACK"]
    if elf["e_type"] == "ET_REL":
        return False
    return any(flag & 1 for flag in flags) if flags else elf["e_machine"] in ("EM_X86_64", "EM_386")


def _has_writable_code(segments: list[Any], tags: dict[str, list[str]]) -> bool:
    both = 0x1 | 0x2  # PF_X | PF_W
    loaded = (segment["p_flags"] for segment in segments if segment["p_type"] == "PT_LOAD")
    return _DT_TEXTREL in tags or any(flags & both == both for flags in loaded)


def _has_debug_info(elf: Any) -> bool:
    return any(section.name.startswith((".debug_", ".zdebug_")) for section in elf.iter_sections())


@dataclass(frozen=True, kw_only=True)
class _Symbols:
    """What the dynamic symbol table says."""

    exports: frozenset[str]
    undefined: tuple[str, ...]
    version_needs: tuple[VersionNeed, ...]
    private_versions: tuple[str, ...]

    @classmethod
    def read(cls, elf: Any, *, has_versions: bool, path: Path) -> _Symbols:
        """Read symbols and the versions that they ask for."""
        table = next((item for item in elf.iter_sections() if item["sh_type"] == "SHT_DYNSYM"), None)
        needs = next((item for item in elf.iter_sections() if item["sh_type"] == "SHT_GNU_verneed"), None)
        if has_versions and needs is None:
            raise _malformed(path, "its section headers were removed, so symbol versions cannot be read")
        versions = dict(_needed_versions(needs)) if needs is not None else {}
        exports: set[str] = set()
        undefined: set[str] = set()
        users: dict[int, str] = {}
        for index, symbol in enumerate(_iter_symbols(table)):
            if not symbol.name:
                continue
            if symbol["st_shndx"] != "SHN_UNDEF":
                exports.add(symbol.name)
                continue
            version = _version_index(elf, index)
            users.setdefault(version, symbol.name)
            if symbol["st_info"]["bind"] != "STB_WEAK" and version not in versions:
                undefined.add(symbol.name)
        highest, private = _highest(versions, users)
        return cls(
            exports=frozenset(exports),
            undefined=tuple(sorted(undefined)),
            version_needs=highest,
            private_versions=private,
        )


def _iter_symbols(table: Any) -> Iterator[Any]:
    return iter(()) if table is None else islice(table.iter_symbols(), _MAX_SYMBOLS)


def _version_index(elf: Any, index: int) -> int:
    """Return the number of the version that a dynamic symbol is bound to, 0 if none."""
    section = elf.get_section_by_name(".gnu.version")
    if section is None:
        return 0
    number = section.get_symbol(index)["ndx"]
    return number & 0x7FFF if isinstance(number, int) else 0


def _needed_versions(section: Any) -> Iterator[tuple[int, tuple[str, str]]]:
    """Yield number, and library with version name, of each entry of the table of needed versions."""
    for library, entries in islice(section.iter_versions(), _MAX_VERSIONS):
        for entry in islice(entries, _MAX_VERSIONS):
            yield entry["vna_other"] & 0x7FFF, (library.name, entry.name)


def _highest(
    versions: dict[int, tuple[str, str]], users: dict[int, str]
) -> tuple[tuple[VersionNeed, ...], tuple[str, ...]]:
    highest: dict[str, VersionNeed] = {}
    private: set[str] = set()
    for number, (library, name) in sorted(versions.items()):
        parsed = _NAMED_VERSIONS.get(name) or _parse_version(name)
        if parsed is None:
            private.add(name)
            continue
        family, version = parsed
        need = VersionNeed(family=family, version=version, library=library, symbol=users.get(number, ""))
        known = highest.get(family)
        if known is None or version_key(version) > version_key(known.version):
            highest[family] = need
    return tuple(highest[family] for family in sorted(highest)), tuple(sorted(private))


def _parse_version(name: str) -> tuple[str, str] | None:
    match = _VERSION_NAME.fullmatch(name)
    return (match[1], match[2]) if match else None


def _build_paths(file: IO[bytes], prefixes: Sequence[str], size: int) -> tuple[str, ...]:
    """Return the strings in the file that start with one of the folders, at most fifty."""
    if not size or not prefixes:
        return ()
    # A path begins a string: what stands before it is no letter, digit or part of a longer path.
    alternatives = b"|".join(re.escape(prefix.encode()) for prefix in prefixes)
    pattern = re.compile(rb"(?<![A-Za-z0-9_.~*/-])(?:" + alternatives + rb")[\x21-\x7e]{1,200}")
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        found = {match[0].decode("ascii") for match in islice(pattern.finditer(data), 20 * _MAX_PATHS)}
    return tuple(sorted(found)[:_MAX_PATHS])


def _malformed(path: Path, why: str) -> ConfigError:
    return ConfigError(
        "elf-malformed", f"cannot inspect {path}", why=why, hint="build it again; the file may be truncated"
    )
