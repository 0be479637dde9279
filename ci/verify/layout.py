"""Comparing what an artifact says inside (zip directory, index) with its manifest. Reads headers only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

from ci.package.index import INDEX_NAME, Index, parse_index
from ci.package.zipformat import Entry
from ci.package.zipreader import Archive, check_own_layout, read_archive
from ci.verify.report import Difference
from opencoti.errors import ConfigError, VerificationError
from opencoti.manifest import Manifest, Member

_MAX_INDEX_BYTES = 1 << 20


def compare_layout(file: IO[bytes], manifest: Manifest) -> Iterator[Difference]:
    """Yield every difference between the zip directory, the index and the manifest."""
    try:
        archive = read_archive(file, manifest.name)
    except VerificationError as exc:
        yield Difference(kind="changed", subject="the directory", detail=exc.why)
        return
    yield from _compare_members(archive, manifest)
    if manifest.loader is None:
        return
    try:
        check_own_layout(
            file,
            archive,
            manifest.name,
            executable_size=manifest.loader.size,
            has_host_members=manifest.lane == "ape",
        )
    except VerificationError as exc:
        yield Difference(kind="changed", subject="padding and directory", detail=exc.why)
    if manifest.lane == "elf":  # no engine of the other lane reads one
        yield from _compare_index(file, archive, manifest)


def _compare_members(archive: Archive, manifest: Manifest) -> Iterator[Difference]:
    found = {entry.name: entry for entry in archive.entries}
    for member in manifest.members:
        entry = found.pop(member.name, None)
        if entry is None:
            yield Difference(kind="missing", subject=member.name, detail="it is not in the zip directory")
        else:
            yield from _compare_member(entry, member)
    for name, entry in found.items():
        if manifest.lane == "ape" and manifest.loader and entry.data_end <= manifest.loader.size:
            continue  # a member of the engine itself: its bytes are part of the executable's hash
        yield Difference(kind="extra", subject=name, detail="the manifest does not list it")


def _compare_member(entry: Entry, member: Member) -> Iterator[Difference]:
    if entry.size != member.size:
        yield _changed(member.name, "size", member.size, entry.size)
    if entry.data_offset != member.offset:
        detail = f"expected at byte {member.offset}, found at {entry.data_offset}"
        yield Difference(kind="moved", subject=member.name, detail=detail)
    if f"0{entry.mode:o}" != member.mode:
        yield _changed(member.name, "mode", member.mode, f"0{entry.mode:o}")


def _compare_index(file: IO[bytes], archive: Archive, manifest: Manifest) -> Iterator[Difference]:
    entry = archive.entry(INDEX_NAME)
    if entry is None:
        yield Difference(kind="missing", subject="the index", detail=f"there is no member {INDEX_NAME}")
        return
    file.seek(entry.data_offset)
    try:
        index = parse_index(file.read(min(entry.size, _MAX_INDEX_BYTES + 1)), manifest.name)
    except ConfigError as exc:
        yield Difference(kind="changed", subject="the index", detail=exc.why)
        return
    if index.version != manifest.version_string:
        yield _changed("the index", "version", manifest.version_string, index.version)
    if manifest.host_binary is not None and index.entry != manifest.host_binary.name:
        yield _changed("the index", "entry", manifest.host_binary.name, index.entry)
    yield from _compare_index_files(index, manifest)


def _compare_index_files(index: Index, manifest: Manifest) -> Iterator[Difference]:
    listed = {file.name: (file.size, file.sha256, file.mode) for file in index.files}
    for member in manifest.members:
        if member.name == INDEX_NAME:
            continue
        expected, found = (member.size, member.sha256, member.mode), listed.pop(member.name, None)
        if found is None:
            yield Difference(kind="missing", subject="the index", detail=f"it does not list {member.name}")
        elif found != expected:
            yield _changed("the index", f"line of {member.name}", expected, found)
    for name in listed:
        yield Difference(kind="extra", subject="the index", detail=f"it lists {name}, the manifest does not")


def _changed(subject: str, what: str, expected: object, found: object) -> Difference:
    return Difference(kind="changed", subject=subject, detail=f"{what}: expected {expected}, found {found}")
