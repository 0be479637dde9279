"""Verification of an artifact against its manifest: the steps, and what the pipeline calls."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from ci.verify.content import (
    compare_ranges,
    hash_range,
    hashed_ranges,
    touched_ranges,
    unexplained_chunks,
)
from ci.verify.layout import compare_layout
from ci.verify.report import Difference, VerifyReport
from opencoti import chunks
from opencoti.chunks import ChunkTable
from opencoti.console import Console
from opencoti.errors import UsageError, VerificationError, storage_error
from opencoti.hashing import sha256_bytes
from opencoti.manifest import CHUNKS_SUFFIX, MANIFEST_SUFFIX, Manifest, load_manifest

_MAX_MANIFEST_BYTES = 8 << 20
_SHOWN_FROM_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class _Artifact:
    file: IO[bytes]
    before: os.stat_result
    manifest: Manifest
    path: Path
    console: Console

    @property
    def handle(self) -> int:
        return self.file.fileno()


def default_manifest(artifact: Path) -> Path:
    """Return where the manifest of an artifact lies."""
    # Not `with_name`: a path such as `/` has no name, and gets its message when it is opened.
    return Path(f"{artifact}{MANIFEST_SUFFIX}")


def verify_packaged(artifact: Path, manifest: Path, console: Console) -> VerifyReport:
    """Verify like `verify_artifact`, but raise `VerificationError` (`artifact-differs`) on a difference."""
    report = verify_artifact(artifact, manifest, console)
    if not report.is_ok:
        raise differs(report)
    return report


def differs(report: VerifyReport) -> VerificationError:
    """Return the error that says that, and where first, an artifact is not what its manifest says."""
    first = report.differences[0]
    more = len(report.differences) - 1
    return VerificationError(
        "artifact-differs",
        f"{report.artifact} is not what its manifest says",
        why=f"{first.kind} {first.subject}: {first.detail}" + (f" (and {more} more)" if more else ""),
        hint="do not run it; package it again, or fetch it again",
    )


def verify_artifact(artifact: Path, manifest: Path, console: Console, *, full: bool = False) -> VerifyReport:
    """Compare an artifact with its manifest: size, every byte, members, index.

    The bytes are proved by the chunk table, hashed in parallel. Without a good table, or with `full`, the
    SHA-256 of the whole file and of every member is computed as well.

    Raises:
        ConfigError: the manifest is malformed or contradicts itself.
        UsageError: `file-unreadable`, the artifact or the manifest cannot be read.
        VerificationError: `artifact-changed`, somebody wrote to it meanwhile.
    """
    expected = load_manifest(_read_manifest(manifest), str(manifest))
    with _open(artifact) as file:
        job = _Artifact(
            file=file, before=os.fstat(file.fileno()), manifest=expected, path=artifact, console=console
        )
        table, table_problems = _load_table(job, manifest)
        try:
            differences = [*_compare_size(job), *table_problems, *_compare_inside(job, table, full=full)]
        except OSError as exc:
            raise storage_error(exc, f"cannot read {artifact}") from exc
        _check_unchanged(job)
    proof: list[Literal["chunks", "sha256"]] = ["chunks"] if table else []
    proof += ["sha256"] if full or table is None else []
    return VerifyReport(
        artifact=str(artifact),
        sha256=expected.sha256,
        size=expected.size,
        version_string=expected.version_string,
        proof=tuple(proof),
        members=len(expected.members),
        differences=_unique(differences),
    )


def _compare_size(job: _Artifact) -> Iterator[Difference]:
    if job.before.st_size != job.manifest.size:
        detail = f"size: expected {job.manifest.size}, found {job.before.st_size}"
        yield Difference(kind="changed", subject="the file", detail=detail)


def _load_table(job: _Artifact, manifest: Path) -> tuple[ChunkTable | None, list[Difference]]:
    """Return the chunk table if it is the manifest's; its absence alone is no difference."""
    expected = job.manifest.chunks
    beside = (job.path.with_name(job.path.name + CHUNKS_SUFFIX), manifest.with_name(expected.file))
    path = next((path for path in beside if path.exists()), None)
    if path is None:
        job.console.warn(f"there is no chunk table {expected.file}: hashing the whole file instead")
        return None, []
    data = chunks.read_sidecar(path)
    if (found := sha256_bytes(data)) != expected.sha256:
        detail = f"sha256: expected {expected.sha256}, found {found}"
        return None, [Difference(kind="changed", subject="the chunk table", detail=detail)]
    table = chunks.parse_table(data, str(path))
    facts = (table.file_size, table.chunk_size, table.count)
    if facts != (job.manifest.size, expected.chunk_size, expected.count):
        detail = "its size, chunk size and count are not those of the manifest"
        return None, [Difference(kind="changed", subject="the chunk table", detail=detail)]
    return table, []


def _compare_inside(job: _Artifact, table: ChunkTable | None, *, full: bool) -> Iterator[Difference]:
    yield from compare_layout(job.file, job.manifest)
    yield from _compare_bytes(job, table, full=full)


def _compare_bytes(job: _Artifact, table: ChunkTable | None, *, full: bool) -> Iterator[Difference]:
    ranges = hashed_ranges(job.manifest)
    bad: list[int] = []
    if table is not None:
        bad = chunks.verify_handle(job.handle, table, on_bytes=_show_bytes(job))
        suspects = ranges if full else touched_ranges(ranges, table, bad)
        changed = compare_ranges(job.handle, suspects)
        yield from changed
        yield from unexplained_chunks(ranges, changed, table, bad)
    else:
        yield from compare_ranges(job.handle, ranges)
    if full or table is None:
        found = hash_range(job.handle, 0, job.before.st_size)
        if found != job.manifest.sha256:
            detail = f"sha256: expected {job.manifest.sha256}, found {found}"
            yield Difference(kind="changed", subject="the file", detail=detail)


def _show_bytes(job: _Artifact) -> Callable[[int], None]:
    def show(done: int) -> None:
        if job.manifest.size >= _SHOWN_FROM_BYTES:
            job.console.status(f"{job.path.name}: {done >> 20} of {job.manifest.size >> 20} MiB verified")

    return show


def _check_unchanged(job: _Artifact) -> None:
    after = os.fstat(job.handle)
    if (after.st_size, after.st_mtime_ns) != (job.before.st_size, job.before.st_mtime_ns):
        raise VerificationError(
            "artifact-changed",
            f"{job.path} changed while it was verified",
            why="its size or time of change is not what it was at the start",
            hint="wait for the program that writes it to end, then verify again",
        )


def _unique(differences: list[Difference]) -> tuple[Difference, ...]:
    return tuple(dict.fromkeys(differences))


def _read_manifest(path: Path) -> bytes:
    with _open(path) as file:
        return file.read(_MAX_MANIFEST_BYTES + 1)


@contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as exc:
        raise _unreadable(path, exc.strerror or str(exc)) from exc
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise _unreadable(path, "it is no regular file")
    with os.fdopen(handle, "rb") as file:
        yield file


def _unreadable(path: Path, why: str) -> UsageError:
    return UsageError(
        "file-unreadable",
        f"cannot read {path}",
        why=why,
        hint=f"check the path; a manifest lies beside its artifact as <artifact>{MANIFEST_SUFFIX}, "
        "or is given with --manifest",
    )
