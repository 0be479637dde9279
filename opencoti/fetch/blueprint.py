"""The chunk table of a wanted file, from its manifest: found, read, and held against what is pinned.

Two kinds of trust end here. A manifest beside a pinned file is not signed: it is a help for the transfer, and
the pinned SHA-256 still decides about the whole file. A verified manifest of a signed release vouches itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opencoti.chunks import ChunkTable, parse_table
from opencoti.console import Console
from opencoti.errors import OpencotiError, VerificationError
from opencoti.fetch.documents import Reader
from opencoti.fetch.source import HttpSource, ManifestHint, Request
from opencoti.fetch.workers import Piece
from opencoti.hashing import sha256_bytes

if TYPE_CHECKING:
    from opencoti.manifest import Manifest

_MAX_TABLE_BYTES = 64 << 20
_AGAIN = "get manifest and file from the same release"


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """How a file is made up of chunks, and where its bytes are.

    `is_vouched` says that somebody who is trusted said so; then a contradiction is an error, else the pinned
    SHA-256 alone counts.
    """

    table: ChunkTable
    pieces: Sequence[Piece]
    is_vouched: bool


def find_blueprint(request: Request, reader: Reader, console: Console) -> Blueprint | None:
    """Return the chunks of a pinned file, if a manifest beside it tells them.

    A manifest that was only looked for, and is absent or odd, is worth a line at most. One that the user
    named must be there and fit.

    Raises:
        VerificationError: `manifest-contradicts-pin`, `chunks-mismatch`.
        ConfigError, NetworkError, StorageError: the named manifest or its chunk table cannot be read.
    """
    hint = request.manifest
    if hint is None or not isinstance(request.source, HttpSource):
        return None
    try:
        return _read(request, request.source.url, hint, reader)
    except OpencotiError as error:
        if hint.is_named:
            raise
        if error.error_id != "not-found":
            console.warn(f"{request.name}: its manifest is of no use ({error}); going on with the pin alone")
        return None


def _read(request: Request, url: str, hint: ManifestHint, reader: Reader) -> Blueprint:
    from opencoti.manifest import load_manifest

    manifest = load_manifest(reader.read(hint.source), str(hint.source))
    if manifest.sha256 != request.sha256:
        raise VerificationError(
            "manifest-contradicts-pin",
            f"{hint.source} is not the manifest of the wanted file",
            why=f"it says sha256 {manifest.sha256}, expected {request.sha256}",
            hint=_AGAIN,
        )
    table = read_table(manifest, hint, reader)
    piece = Piece(url=url, start=0, size=manifest.size)
    return Blueprint(table=table, pieces=(piece,), is_vouched=False)


def read_table(manifest: Manifest, hint: ManifestHint, reader: Reader) -> ChunkTable:
    """Return the chunk table that a manifest names.

    Raises:
        VerificationError: `chunks-mismatch`; it has not the SHA-256 or not the form that the manifest says.
        ConfigError, NetworkError, StorageError: it cannot be read.
    """
    where = hint.beside(manifest.chunks.file)
    data = reader.read(where, max_bytes=min(manifest.chunks.count * 32 + 128, _MAX_TABLE_BYTES))
    if sha256_bytes(data) != manifest.chunks.sha256:
        raise VerificationError(
            "chunks-mismatch",
            f"{where} is not the chunk table of {manifest.name}",
            why=f"expected sha256 {manifest.chunks.sha256}, got {sha256_bytes(data)}",
            hint=_AGAIN,
        )
    table = parse_table(data, str(where))
    if (table.file_size, table.chunk_size) != (manifest.size, manifest.chunks.chunk_size):
        raise VerificationError(
            "chunks-mismatch",
            f"{where} is not the chunk table of {manifest.name}",
            why=f"it is of {table.file_size} bytes, the manifest says {manifest.size}",
            hint=_AGAIN,
        )
    return table
