"""The parsers of foreign bytes: inputs to begin with, and what must hold for whatever they take."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from ci.dso.elf import inspect_elf
from ci.package.index import INDEX_NAME, parse_index, render_index
from ci.package.zipreader import Archive, check_own_layout, find_archive
from ci.paths import Layout
from ci.verify.features import Features, load_features
from ci.verify.features_report import judge
from ci.verify.features_scan import Subject, scan
from ci.verify.layout import compare_layout
from opencoti import chunks
from opencoti.doctor.engine import read_index
from opencoti.index import dump_index, load_index
from opencoti.manifest import Manifest, dump_manifest, load_manifest
from opencoti.models.gguf import read_header
from tests.fakes.ollama_store import tiny_gguf
from tests.fuzz import seeds
from tests.fuzz.guard import memory_file
from tests.fuzz.sparse import expand, shrink

_EXECUTABLE_BYTES: Final = len(seeds.LOADER)
_REPORTED: Final = (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, OverflowError)


@dataclass(frozen=True, kw_only=True)
class Target:
    """One parser.

    Attributes:
        parse: raises an `OpencotiError` for what it refuses; anything else is a finding.
        seeds: inputs that are taken, in the form that `parse` gets them.
        bad: inputs that are refused (or, by parsers that never refuse, survived).
        max_bytes: of one input.
    """

    name: str
    about: str
    parse: Callable[[bytes], object]
    seeds: Callable[[], Sequence[bytes]]
    bad: Callable[[], Sequence[bytes]]
    max_bytes: int = 1 << 14


def parse_zip(data: bytes) -> None:
    """Read a directory; whatever is taken lies inside the file, and Python's `zipfile` sees the same."""
    whole = expand(data)
    file = io.BytesIO(whole)
    archive = find_archive(file, "input")
    if archive is None:
        return
    for entry in archive.entries:
        assert 0 <= entry.header_offset < entry.data_offset <= entry.data_end <= archive.directory_offset
    assert archive.directory_offset <= len(whole)
    _compare_with_zipfile(whole, archive)
    check_own_layout(file, archive, "input", executable_size=_EXECUTABLE_BYTES)
    assert not archive.prefix


def _compare_with_zipfile(data: bytes, archive: Archive) -> None:
    """Another reader may refuse what we take, but never see other members."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as other:
            theirs = [(info.header_offset, info.file_size, info.compress_size) for info in other.infolist()]
    except _REPORTED:
        return
    ours = [(entry.header_offset, entry.size, entry.compressed_size) for entry in archive.entries]
    assert ours == theirs, f"zipfile sees {theirs}, we see {ours}"


def parse_layout(data: bytes) -> None:
    """Compare the inside of an artifact, index included, with a manifest."""
    file = io.BytesIO(expand(data))
    differences = list(compare_layout(file, _manifest()))
    assert all(item.detail for item in differences)


def parse_own_index(data: bytes) -> None:
    """Read `.opencoti/index`; there is one way to write what it says."""
    assert render_index(parse_index(data, "input")) == data


def parse_manifest(data: bytes) -> None:
    """Read a manifest; it survives being written."""
    manifest = load_manifest(data)
    assert load_manifest(dump_manifest(manifest)) == manifest


def parse_release(data: bytes) -> None:
    """Read a release index; it survives being written."""
    index = load_index(data)
    assert load_index(dump_index(index)) == index


def parse_chunks(data: bytes) -> None:
    """Read a chunk table, and verify a file (the table itself) by it."""
    table = chunks.parse_table(data, "input")
    assert chunks.render_table(table) == data
    with memory_file(data) as path:
        bad = chunks.verify_file(path, table, 1)
    assert all(0 <= number < table.count for number in bad)


def parse_elf(data: bytes) -> None:
    """Read an ELF file with its device code, and decode its instructions."""
    with memory_file(expand(data)) as path:
        facts = inspect_elf(path, with_instructions=True)
    assert list(facts.needed) == sorted(facts.needed)


def parse_features(data: bytes) -> None:
    """Look for the signs of a patch series in a binary, whole and as a slice, and judge."""
    table = _features()
    with memory_file(expand(data)) as path:
        whole = Subject(label="whole", path=path)
        scans = [scan(whole, table), scan(Subject(label="slice", path=path, offset=3, size=4000), table)]
    report = judge("input", "llama.cpp", table, scans)
    assert report.text()
    assert report.as_dict()["verdict"] == report.verdict


def parse_doctor(data: bytes) -> None:
    """Read the index inside an artifact as the doctor does: it shows what it finds, and refuses nothing."""
    with memory_file(expand(data)) as path:
        read_index(path)


def parse_gguf(data: bytes) -> None:
    """Read the header of a model."""
    with memory_file(expand(data)) as path:
        read_header(path)


@cache
def _manifest() -> Manifest:
    return load_manifest(seeds.artifact().manifest)


@cache
def _features() -> Features:
    layout = Layout.find()
    return load_features(layout.patches / "llama.cpp" / "features.toml")


def _marked() -> list[bytes]:
    table = _features()
    upstream = [part.string for part in table.part.values() if part.string is not None]
    ours = [sign.string for patch in table.patch.values() for sign in patch.sign if sign.string is not None]
    return [seeds.marked_program(texts) for texts in (upstream, upstream + ours, upstream[:3] + ours[:5])]


def _archives() -> list[bytes]:
    return [shrink(data) for data in (seeds.artifact().data, *seeds.foreign_archives())]


def _cut_archives() -> list[bytes]:
    whole = seeds.artifact().data
    inner = whole.index(b"PK\1\2")
    return [shrink(data) for data in (whole[:-1], whole + b"\0", whole[:inner] + b"x" + whole[inner:])]


TARGETS: Final = {
    target.name: target
    for target in (
        Target(
            name="zip",
            about="the directory of a zip at the end of any file",
            parse=parse_zip,
            seeds=_archives,
            bad=_cut_archives,
        ),
        Target(
            name="layout",
            about="an artifact against its manifest",
            parse=parse_layout,
            seeds=lambda: [shrink(seeds.artifact().data)],
            bad=_cut_archives,
        ),
        Target(
            name="index",
            about=f"the member {INDEX_NAME}",
            parse=parse_own_index,
            seeds=lambda: [seeds.artifact().index],
            bad=lambda: [b"", b"opencoti-index 2\n", seeds.artifact().index + b"\n"],
        ),
        Target(
            name="manifest",
            about="the manifest of an artifact",
            parse=parse_manifest,
            seeds=lambda: [seeds.artifact().manifest],
            bad=lambda: [b"", b"{}", b'{"schema": "opencoti.manifest/1", "schema": 1}', b"[" * 5000],
        ),
        Target(
            name="release",
            about="the index of a release",
            parse=parse_release,
            seeds=seeds.release_indexes,
            bad=lambda: [b"", b"{}", b'{"schema": "opencoti.release/1"}', b"\xff"],
        ),
        Target(
            name="chunks",
            about="the chunk table of an artifact",
            parse=parse_chunks,
            seeds=lambda: [seeds.artifact().chunks],
            bad=lambda: [
                b"",
                b"opencoti-chunks 1 65536 9223372036854775807 1\n",
                seeds.artifact().chunks[:-1],
            ],
        ),
        Target(
            name="elf",
            about="an ELF file: what it needs, for which GPUs it has code, its instructions",
            parse=parse_elf,
            seeds=lambda: [shrink(data) for data in seeds.elf_files()],
            bad=lambda: [b"", b"\x7fELF", seeds.elf_files()[0][:100]],
        ),
        Target(
            name="features",
            about="which patches a binary has (`verify --features`)",
            parse=parse_features,
            seeds=lambda: [shrink(data) for data in (*seeds.elf_files(), *_marked())],
            bad=list,
        ),
        Target(
            name="doctor",
            about="the index inside an artifact, as the doctor shows it",
            parse=parse_doctor,
            seeds=_archives,
            bad=list,
        ),
        Target(
            name="gguf",
            about="the header of a model",
            parse=parse_gguf,
            seeds=lambda: [shrink(tiny_gguf())],
            bad=lambda: [b"", b"GGUF", tiny_gguf()[:60]],
        ),
    )
}
