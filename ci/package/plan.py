"""What `package` would embed: members, exact sizes, skipped backends, warnings. Computed, nothing is written.

A file that is not built yet has no size; then the estimate says so. The index is the only member whose
bytes depend on others: its size follows from names and sizes alone, since digests have one length.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from ci.package import zipformat as zf
from ci.package.content import ARGS_NAME, check_args, check_references
from ci.package.index import INDEX_NAME, IndexedFile, make_index, render_index
from ci.package.naming import WINDOWS_MAX_BYTES, Lane, PlannedPart, release_parts, size_warnings
from ci.package.zipreader import ALIGNMENT_BYTES
from ci.package.zipwriter import NewMember
from opencoti.manifest import SkippedBackend

State = Literal["ready", "to build"]
STALE_NOTE: Final = "sizes are those of the files as built now; what is stale or missing is built first"
_NO_DIGEST = "0" * 64


@dataclass(frozen=True, kw_only=True)
class PlannedMember:
    """One member; `size` is None until its file is built."""

    name: str
    mode: Literal[0o644, 0o755]
    size: int | None
    origin: str

    @property
    def state(self) -> State:
        """Whether the file is there."""
        return "to build" if self.size is None else "ready"


@dataclass(frozen=True, kw_only=True)
class PlannedArtifact:
    """One file that `package` would write.

    Attributes:
        loader_size: bytes in front of the members, None if the loader is not compiled yet.
        args: lines of `.args`, empty for none.
        size: the exact size, None as long as something is to be built.
    """

    path: Path
    lane: Lane
    loader_size: int | None
    members: tuple[PlannedMember, ...]
    args: tuple[str, ...]
    size: int | None

    @property
    def parts(self) -> tuple[PlannedPart, ...]:
        """The slices in which a release would carry it."""
        return release_parts(self.size or 0)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a user should know about its size."""
        return size_warnings(self.path.name, self.size or 0, self.lane)


@dataclass(frozen=True, kw_only=True)
class PackagePlan:
    """Everything that a call of `package` would do."""

    version_string: str
    is_cpu_only: bool
    artifacts: tuple[PlannedArtifact, ...]
    skipped: tuple[SkippedBackend, ...]
    notes: tuple[str, ...]

    def text(self) -> str:
        """Return the plan for people."""
        lines = [
            f"version   {self.version_string}",
            f"backends  {'cpu only' if self.is_cpu_only else 'cpu, gpu'}",
        ]
        lines += [f"skipped   {item.backend}: {item.reason}" for item in self.skipped]
        for artifact in self.artifacts:
            lines += ["", *_describe(artifact)]
        warnings = [text for artifact in self.artifacts for text in artifact.warnings]
        lines += ["", *(f"WARN {text}" for text in warnings), *(f"note: {text}" for text in self.notes)]
        return "\n".join(lines).rstrip()

    def as_dict(self) -> dict[str, object]:
        """Return the plan as data."""
        return {
            "versionString": self.version_string,
            "cpuOnly": self.is_cpu_only,
            "skippedBackends": [item.model_dump() for item in self.skipped],
            "notes": list(self.notes),
            "artifacts": [_as_dict(artifact) for artifact in self.artifacts],
        }


def plan_member(member: NewMember, origin: str) -> PlannedMember:
    """Return the plan of a member; a file that is not there has no size."""
    return PlannedMember(
        name=member.name,
        mode=member.mode,
        size=len(member.data) if member.path is None else file_size(member.path),
        origin=origin,
    )


def plan_file(root: Path, name: str, path: Path, mode: Literal[0o644, 0o755]) -> PlannedMember:
    """Return the plan of a member that is a file, which is shown as seen from `root`."""
    origin = path.relative_to(root) if path.is_relative_to(root) else path
    return plan_member(NewMember(name=name, mode=mode, path=path), str(origin))


def plan_args(args: bytes, origin: str, members: Iterable[PlannedMember]) -> PlannedMember:
    """Return the plan of `.args`.

    Raises:
        ConfigError: they are malformed, or name a member that is not among `members`.
    """
    check_references(check_args(args, origin), [member.name for member in members])
    return plan_member(NewMember(name=ARGS_NAME, mode=0o644, data=args), origin)


def file_size(path: Path) -> int | None:
    """Return the size of a regular file, None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def plan_artifact(
    path: Path,
    members: Iterable[PlannedMember],
    *,
    lane: Lane,
    loader_size: int | None,
    version_string: str,
    entry: str,
    args: bytes | None,
) -> PlannedArtifact:
    """Lay the members out as the writer does; the index of the elf lane is added here.

    The size is known before the build only there: an engine of the ape lane may have members of its own,
    whose directory moves to the end.
    """
    ordered = sorted(members, key=lambda member: member.name)
    known = [(m.name, m.mode, m.size) for m in ordered if m.size is not None]
    if lane == "elf" and len(known) == len(ordered):
        index = _index_size(version_string, entry, known)
        ordered.append(PlannedMember(name=INDEX_NAME, mode=0o644, size=index, origin="made while packaging"))
        known.append((INDEX_NAME, 0o644, index))
        size = None if loader_size is None else packed_size(loader_size, known)
    else:
        size = None
    return PlannedArtifact(
        path=path,
        lane=lane,
        loader_size=loader_size,
        members=tuple(ordered),
        args=tuple(args.decode().splitlines()) if args else (),
        size=size,
    )


def packed_size(host_size: int, members: Sequence[tuple[str, int, int]]) -> int:
    """Return the size of the file that the writer makes of a host and members (name, mode, size)."""
    limits, position, directory = zf.FORMAT_LIMITS, host_size, 0
    for name, mode, size in members:
        header = zf.local_header_size(name, size, limits)
        offset = -(-(position + header) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        entry = zf.Entry(
            name=name,
            header_offset=offset - header,
            data_offset=offset,
            size=size,
            compressed_size=size,
            crc32=0,
            method=zf.STORED,
            flags=0,
            external=zf.external_attributes(mode),
        )
        directory += len(zf.render_central(entry, limits))
        position = offset + size
    end = zf.render_end(
        count=len(members), directory_offset=position, directory_size=directory, comment=b"", limits=limits
    )
    return position + directory + len(end)


def _index_size(version: str, entry: str, members: Sequence[tuple[str, int, int]]) -> int:
    files = [
        IndexedFile(name=name, sha256=_NO_DIGEST, size=size, mode="0755" if mode == 0o755 else "0644")
        for name, mode, size in members
    ]
    return len(render_index(make_index(version=version, entry=entry, files=files)))


def _describe(artifact: PlannedArtifact) -> Iterable[str]:
    size = "size known after the build" if artifact.size is None else f"{artifact.size} bytes"
    yield f"{artifact.path}: {size}"
    yield f"  {_size(artifact.loader_size):>14}  (loader)"
    for member in artifact.members:
        yield f"  {_size(member.size):>14}  {member.name}  ({member.origin})"
    if artifact.args:
        yield f"  .args: {' '.join(artifact.args)}"
    for number, part in enumerate(artifact.parts, 1):
        yield f"  part {number} of {len(artifact.parts)}: {part.size} bytes from byte {part.offset}"


def _size(size: int | None) -> str:
    return "to build" if size is None else str(size)


def _as_dict(artifact: PlannedArtifact) -> dict[str, object]:
    return {
        "path": str(artifact.path),
        "size": artifact.size,
        "lane": artifact.lane,
        "windowsRunnable": artifact.lane == "ape" and (artifact.size or 0) < WINDOWS_MAX_BYTES,
        "loaderSize": artifact.loader_size,
        "args": list(artifact.args),
        "parts": [{"offset": part.offset, "size": part.size} for part in artifact.parts],
        "warnings": list(artifact.warnings),
        "members": [
            {
                "name": m.name,
                "size": m.size,
                "mode": f"0{m.mode:o}",
                "state": m.state,
                "origin": m.origin,
            }
            for m in artifact.members
        ],
    }
