"""Inputs to begin with: what the package's own writers make, and what other tools leave."""

from __future__ import annotations

import io
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from ci.package.artifact import PackageInputs, assemble
from ci.package.index import INDEX_NAME
from ci.package.zipformat import ZipLimits
from ci.package.zipreader import read_archive
from ci.package.zipwriter import NewMember, WriteOptions, write_archive
from opencoti.console import Console
from opencoti.hashing import sha256_bytes
from tests.fakes.gpu_files import (
    PTX,
    SASS,
    FatEntry,
    bundle,
    compressed_bundle,
    elf_file,
    fat_binary,
    fat_group,
    padded,
)
from tests.unit.package.samples import ARGS, LOADER, make_inputs
from tests.unit.release.samples import index_bytes

__all__ = ["LOADER", "artifact", "elf_files", "foreign_archives", "marked_program", "release_indexes"]

_SMALL_LIMITS = ZipLimits(size=50, count=2)
_CODE = bytes.fromhex("55 4889e5 c5fd6f07 62f17c4828c1 0f57c0 f30f1efa 5d c3").ljust(64, b"\x90")


@dataclass(frozen=True, kw_only=True)
class MadeArtifact:
    """A small artifact and what lies beside it, as bytes."""

    data: bytes
    manifest: bytes
    chunks: bytes
    index: bytes


@cache
def artifact() -> MadeArtifact:
    """Return an artifact of the packager."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        made = assemble(_small_inputs(folder / "in"), folder / "out", Console(quiet=True))
        data = made.artifact.read_bytes()
        entry = read_archive(io.BytesIO(data), "the sample").entry(INDEX_NAME)
        assert entry is not None
        return MadeArtifact(
            data=data,
            manifest=made.manifest.read_bytes(),
            chunks=made.chunks.read_bytes(),
            index=data[entry.data_offset : entry.data_end],
        )


def _small_inputs(folder: Path) -> PackageInputs:
    """Return inputs whose every byte counts: a fuzzer's inputs are short."""
    inputs = make_inputs(folder)
    for path in (inputs.entry, *inputs.libraries):
        path.write_bytes(b"\x7fELF" + path.name.encode())
    dsos = [
        dso.model_copy(update={"sha256": sha256_bytes(path.read_bytes())})
        for dso, path in zip(inputs.dsos, inputs.libraries, strict=True)
    ]
    return replace(inputs, dsos=tuple(dsos))


@cache
def foreign_archives() -> tuple[bytes, ...]:
    """Return archives with ZIP64 fields, compressed members, prefixes, comments and descriptors."""
    return tuple(_foreign_archives())


def _foreign_archives() -> Iterator[bytes]:
    members = [NewMember(name=name, mode=0o644, data=ARGS * 3) for name in ("first", ".args")]
    yield _written(LOADER, members, WriteOptions(limits=_SMALL_LIMITS))
    yield _written(LOADER, members[:1], WriteOptions())
    plain = _zipped(zipfile.ZIP_STORED)
    yield from (plain, _zipped(zipfile.ZIP_DEFLATED), b"MZ" + LOADER + plain, LOADER)
    yield _zipped(zipfile.ZIP_STORED, comment=b"a comment")
    unseekable = _Unseekable()
    with zipfile.ZipFile(unseekable, "w") as archive:
        archive.writestr("streamed", b"text")
    yield bytes(unseekable.written)


def _written(host: bytes, members: list[NewMember], options: WriteOptions) -> bytes:
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "host"
        path.write_bytes(host)
        write_archive(path, members, path, options=options)
        return path.read_bytes()


def _zipped(method: int, comment: bytes = b"") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr("readme", b"text " * 20)
        archive.writestr("folder/name", b"")
        archive.comment = comment
        with archive.open("large", "w", force_zip64=True) as member:
            member.write(b"12345")
    return file.getvalue()


class _Unseekable(io.RawIOBase):
    """A pipe, so that `zipfile` writes data descriptors."""

    def __init__(self) -> None:
        self.written = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: object, /) -> int:
        piece = bytes(data)  # type: ignore[call-overload]
        self.written += piece
        return len(piece)


@cache
def elf_files() -> tuple[bytes, ...]:
    """Return libraries with code of CUDA and ROCm, and one with instructions only."""
    gpus = fat_binary(FatEntry(kind=SASS, arch="80"), FatEntry(kind=PTX, arch="90a"))
    group = fat_binary(fat_group([FatEntry(kind=SASS, arch="75"), FatEntry(kind=SASS, arch="86")]))
    sections = {".text": _CODE, ".nv_fatbin": padded(gpus, group), ".nvFatBinSegment": bytes(48)}
    plain = bundle("gfx1100", "gfx90a:xnack+")
    rocm = padded(
        plain, compressed_bundle(plain), compressed_bundle(plain, version=3, method=0), alignment=4096
    )
    return (
        elf_file(sections),
        elf_file({".hip_fatbin": rocm, ".hipFatBinSegment": bytes(72)}),
        elf_file({".text": _CODE, "__nv_relfatbin": gpus}, is_object=True),
        elf_file({".text": bytes.fromhex("1f2003d5 c0035fd6")}, machine=183),
    )


def marked_program(texts: Iterable[str]) -> bytes:
    """Return a program with some of the texts that `verify --features` looks for."""
    words = [text.encode() for text in texts] + [b"opencoti-0.5.0-g0c1e570-c1"]
    return elf_file({".text": _CODE, ".rodata": b"\0".join(words) + b"\0"})


def release_indexes() -> list[bytes]:
    """Return release indexes, one with a field of the future."""
    return [index_bytes(), index_bytes(future={"small": 1e-05, "text": "é"})]
