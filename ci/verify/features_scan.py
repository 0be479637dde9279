"""Looking for marks in one file: texts in its bytes, symbols in its dynamic table.

Reads in windows and trusts nothing: the file may be of any size, of any kind, and change meanwhile.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ci.dso.elf import ElfFacts, inspect_elf
from ci.verify.features import MAX_TEXT, Features, Mark, Sign
from opencoti.errors import ConfigError, storage_error

_WINDOW_BYTES = 4 << 20
_OVERLAP_BYTES = MAX_TEXT + 2
_ELF_MAGIC = b"\x7fELF"
_PRINTABLE = frozenset(range(0x20, 0x7F)) | {0x09}
# The values of the patch `build-identity` are strings of their own.
_IDENTITY = re.compile(rb"opencoti-[0-9][0-9A-Za-z.+_-]{2,150}")


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Some bytes of a file that are looked at as one binary.

    Attributes:
        label: what to call it.
        offset, size: which bytes; the whole file by default.
    """

    label: str
    path: Path
    offset: int = 0
    size: int | None = None


@dataclass(frozen=True, kw_only=True)
class Scan:
    """What was found in one subject.

    Attributes:
        counts: how often each mark is there.
        identities: version strings (`opencoti-…`) that are in it.
        elf: what its headers say; None if it is no (whole) ELF file.
    """

    subject: Subject
    counts: dict[Mark, int]
    identities: tuple[str, ...]
    elf: ElfFacts | None

    def has(self, mark: Mark) -> bool:
        """Tell whether a mark, or a sign often enough, is there."""
        return self.counts.get(mark, 0) >= (mark.count if isinstance(mark, Sign) else 1)


def scan(subject: Subject, features: Features) -> Scan:
    """Look for every mark of the table.

    Raises:
        StorageError: the file cannot be read.
    """
    marks: list[Mark] = [*features.part.values(), *(s for p in features.patch.values() for s in p.sign)]
    facts = _elf_facts(subject)
    texts = sorted({mark.string.encode() for mark in marks if mark.string is not None})
    try:
        found, identities = _search(subject, texts)
    except OSError as exc:
        raise storage_error(exc, f"cannot read {subject.path}") from exc
    exports = facts.exports if facts else frozenset[str]()
    counts = {
        mark: found[mark.string.encode()] if mark.string is not None else _count_symbols(mark, exports)
        for mark in marks
    }
    return Scan(subject=subject, counts=counts, identities=identities, elf=facts)


def is_elf(path: Path, offset: int = 0) -> bool:
    """Tell whether the bytes at `offset` begin like an ELF file. Raises `OSError`."""
    with open(path, "rb") as file:
        file.seek(offset)
        return file.read(len(_ELF_MAGIC)) == _ELF_MAGIC


def _elf_facts(subject: Subject) -> ElfFacts | None:
    if subject.size is not None:
        return None  # a slice: what its headers name may lie outside
    try:
        return inspect_elf(subject.path, build_prefixes=())
    except ConfigError:
        return None  # no ELF file, or a damaged one: its texts still count


def _count_symbols(mark: Mark, exports: Iterable[str]) -> int:
    pattern = re.compile(mark.symbol or "")
    return sum(1 for name in exports if pattern.fullmatch(name))


def _search(subject: Subject, texts: Sequence[bytes]) -> tuple[dict[bytes, int], tuple[str, ...]]:
    counts = dict.fromkeys(texts, 0)
    identities: dict[str, None] = {}
    for window, core in _windows(subject):
        for text in texts:
            counts[text] += sum(1 for at in _find_all(window, text) if at in core)
        for match in _IDENTITY.finditer(window):
            if match.start() in core and _ends(window, match.end()):
                identities[match[0].decode("ascii")] = None
    return counts, tuple(identities)


def _windows(subject: Subject) -> Iterator[tuple[bytes, range]]:
    """Yield overlapping windows; a match counts in the one whose core it starts in."""
    with open(subject.path, "rb", buffering=0) as file:
        total = os.fstat(file.fileno()).st_size - subject.offset
        size = total if subject.size is None else min(total, subject.size)
        for start in range(0, size, _WINDOW_BYTES):
            length = min(size - start, _WINDOW_BYTES + _OVERLAP_BYTES)
            yield os.pread(file.fileno(), length, subject.offset + start), range(_WINDOW_BYTES)


def _find_all(window: bytes, text: bytes) -> Iterator[int]:
    at = window.find(text)
    while at >= 0:
        if _ends(window, at + len(text)):
            yield at
        at = window.find(text, at + 1)


def _ends(window: bytes, end: int) -> bool:
    """Tell whether a string ends at `end`.

    What stands in front says nothing: linkers share the ends of strings, and compilers put other
    constants without an end of their own there.
    """
    return end >= len(window) or window[end] not in _PRINTABLE
