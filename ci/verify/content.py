"""Hashing an artifact: chunks in parallel, and which member a bad chunk or a bad hash belongs to."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ci.package.streams import Pump
from ci.verify.report import Difference
from opencoti.chunks import ChunkTable, usable_cpus
from opencoti.manifest import Manifest


@dataclass(frozen=True, kw_only=True)
class Range:
    """A part of the artifact that has a SHA-256 of its own."""

    name: str
    offset: int
    size: int
    sha256: str


def hashed_ranges(manifest: Manifest) -> tuple[Range, ...]:
    """Return the loader and the members, in file order."""
    members = [
        Range(name=member.name, offset=member.offset, size=member.size, sha256=member.sha256)
        for member in sorted(manifest.members, key=lambda item: item.offset)
    ]
    loader = manifest.loader
    if loader is None:
        return tuple(members)
    return (Range(name="the loader", offset=0, size=loader.size, sha256=loader.sha256), *members)


def compare_ranges(
    handle: int, ranges: Sequence[Range], on_done: Callable[[str], None] | None = None
) -> list[Difference]:
    """Hash ranges in parallel, and return those that differ, in the order given."""

    def check(part: Range) -> Difference | None:
        found = hash_range(handle, part.offset, part.size)
        if on_done is not None:
            on_done(part.name)
        if found == part.sha256:
            return None
        detail = f"sha256: expected {part.sha256}, found {found}"
        return Difference(kind="changed", subject=part.name, detail=detail)

    with ThreadPoolExecutor(usable_cpus(), thread_name_prefix="verify") as pool:
        return [item for item in pool.map(check, ranges) if item is not None]


def hash_range(handle: int, offset: int, size: int) -> str:
    """Return the SHA-256 of a part of an open file; a part that is cut off simply has another hash."""
    digest = hashlib.sha256()
    with Pump(threads=1) as pump:
        pump.feed(handle, offset, size, (digest,))
    return digest.hexdigest()


def touched_ranges(ranges: Sequence[Range], table: ChunkTable, bad: Sequence[int]) -> tuple[Range, ...]:
    """Return the ranges that a bad chunk lies in."""
    spans = [table.span(number) for number in bad]
    return tuple(
        part
        for part in ranges
        if any(start < part.offset + part.size and part.offset < start + size for start, size in spans)
    )


def unexplained_chunks(
    ranges: Sequence[Range], changed: Sequence[Difference], table: ChunkTable, bad: Sequence[int]
) -> Iterator[Difference]:
    """Yield a difference for bad chunks in which no changed range lies: padding, headers, directory."""
    names = {item.subject for item in changed}
    covered = [part for part in ranges if part.name in names]
    rest = []
    for number in bad:
        start, size = table.span(number)
        if not any(start < part.offset + part.size and part.offset < start + size for part in covered):
            rest.append(number)
    if rest:
        first = table.span(rest[0])[0]
        detail = f"{len(rest)} of {table.count} chunks differ, the first at byte {first}"
        yield Difference(kind="changed", subject="padding and directory", detail=detail)
