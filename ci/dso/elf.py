"""Reading what an ELF file is, needs, offers and gives away. Runs nothing and judges nothing.

Works on stripped files; needs the section headers, since the symbol versions are found through them. The
file is not trusted: whatever is wrong with it is a `ConfigError`.
"""

from __future__ import annotations

import mmap
import re
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

from ci.dso.fatbin import CudaTargets, cuda_targets
from ci.dso.hipfat import hip_targets
from ci.dso.instructions import InstructionFacts, instruction_facts
from ci.dso.opened import OpenElf, malformed, opened_elf

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
# A path begins a string: what stands before it is no letter, digit or part of a longer path.
_IN_A_PATH: Final = frozenset(string.ascii_letters.encode() + string.digits.encode() + b"_.~*/-")
_PATH_REST: Final = re.compile(rb"[\x21-\x7e]{1,200}")
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
    """What was read from one ELF file. Lists are sorted.

    Attributes:
        cuda: for which NVIDIA GPUs it holds code; None if for none.
        hip: the same for AMD GPUs.
        page_size_max: the largest pages of memory, in bytes, that it can be loaded with; None if it is
            never loaded.
        instructions: what its code uses beyond plain x86-64; None if that was not asked for or is for
            another processor.
    """

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
    page_size_max: int | None = None
    cuda: CudaTargets | None = None
    hip: tuple[str, ...] | None = None
    instructions: InstructionFacts | None = None

    @property
    def gpu_targets(self) -> tuple[str, ...]:
        """The GPUs it holds code for, by their full names (`sm_90a`, `compute_90`, `gfx1100`)."""
        return (*(self.cuda.names if self.cuda else ()), *(self.hip or ()))

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


def inspect_elf(
    path: Path, *, build_prefixes: Sequence[str] = BUILD_PREFIXES, with_instructions: bool = False
) -> ElfFacts:
    """Read an ELF file.

    Args:
        path: executable, shared object or relocatable object.
        build_prefixes: folders of a build machine; strings that start with one are reported.
        with_instructions: decode its code as well: about 0.2 s per million instructions.

    Raises:
        ConfigError: `not-elf`, `elf-malformed`, `fatbin-malformed`, `hip-bundle-malformed`.
        StorageError: it cannot be read.
    """
    with opened_elf(path) as opened:
        return _read(opened, build_prefixes, with_instructions=with_instructions)


def version_key(version: str) -> tuple[int, ...]:
    """Return what to compare versions by: 2.9 is older than 2.28."""
    return tuple(int(part) for part in version.split("."))


def _read(opened: OpenElf, build_prefixes: Sequence[str], *, with_instructions: bool) -> ElfFacts:
    elf, path = opened.elf, opened.path
    segments = list(elf.iter_segments())
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
        build_paths=_build_paths(opened.data, build_prefixes),
        page_size_max=_page_size_max(segments),
        cuda=cuda_targets(opened),
        hip=hip_targets(opened),
        instructions=instruction_facts(opened) if with_instructions else None,
    )


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


def _page_size_max(segments: list[Any]) -> int | None:
    """Return the smallest alignment of what is loaded: pages may not be larger."""
    return min((segment["p_align"] for segment in segments if segment["p_type"] == "PT_LOAD"), default=None)


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
            raise malformed(path, "its section headers were removed, so symbol versions cannot be read")
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
        if name == library:
            continue  # the base version of a library has the library's own name: it promises nothing
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


def _build_paths(data: mmap.mmap, prefixes: Sequence[str]) -> tuple[str, ...]:
    """Return the strings in the file that start with one of the folders, at most fifty."""
    found = {text.decode("ascii") for text in islice(_path_texts(data, prefixes), 20 * _MAX_PATHS)}
    return tuple(sorted(found)[:_MAX_PATHS])


def _path_texts(data: mmap.mmap, prefixes: Sequence[str]) -> Iterator[bytes]:
    if not prefixes:
        return
    # What stands in front is looked at afterwards: as a part of the pattern it makes the search far slower.
    starts = re.compile(b"|".join(re.escape(prefix.encode()) for prefix in prefixes))
    end = 0
    for match in starts.finditer(data):
        at = match.start()
        if at < end or (at and data[at - 1] in _IN_A_PATH):
            continue
        text = _PATH_REST.match(data, match.end())
        if text:
            end = text.end()
            yield data[at:end]
