"""Assembling an artifact: executable + members + index, its chunk table and its manifest.

In the elf lane the executable is our loader, and the engine a member. In the ape lane it is the engine
itself, which may have members of its own: they stay, and count as part of it. It reads no index.

Pure of the pipeline: it gets files and facts and writes three files into one folder. What must be
built first, and where facts come from, is not known here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from ci.locks import exclusive_lock
from ci.package.content import ARGS_NAME, check_args, check_models, check_references, model_member
from ci.package.index import INDEX_NAME, IndexedFile, IndexMode, make_index, render_index
from ci.package.inputs import open_input
from ci.package.naming import (
    OS,
    WINDOWS_MAX_BYTES,
    Lane,
    Product,
    artifact_name,
    embedder_name,
)
from ci.package.streams import Pump
from ci.package.zipreader import check_own_layout, find_archive, read_archive
from ci.package.zipwriter import (
    NewMember,
    Progress,
    WriteOptions,
    WrittenArchive,
    WrittenMember,
    write_archive,
)
from opencoti import chunks
from opencoti.console import Console
from opencoti.errors import ConfigError, OpencotiError, storage_error
from opencoti.files import write_atomic
from opencoti.hashing import sha256_bytes, sha256_stream
from opencoti.manifest import (
    CHUNKS_SUFFIX,
    MANIFEST_SUFFIX,
    Chunks,
    Dso,
    HostBinary,
    Loader,
    Manifest,
    Member,
    Patch,
    SkippedBackend,
    Source,
    Toolchain,
    dump_manifest,
    load_manifest,
)

_SHOWN_FROM_BYTES = 64 << 20  # smaller ones are done before anyone could read it


@dataclass(frozen=True, kw_only=True)
class PackageInputs:
    """Everything that goes into one artifact.

    Attributes:
        loader: the executable in front; in the elf lane it has no zip of its own.
        entry: the engine. In the elf lane a member, which the loader starts; in the ape lane `loader` itself.
        libraries: shared objects beside it: backends and what they link to.
        licences: member name to text, or to a file that holds it.
        product: the bare engine, or an engine with an embedding model.
        models: GGUF files, each a member under its own name.
        parts: names of those models that the engine reads in the artifact: they are not extracted.
        args: content of `.args`, None for none.
        git_commit: commit of this repository, 40 hex digits.
        patch_set_hash: one hash for the whole series.
        dsos: what was measured in the backend libraries.
    """

    loader: Path
    entry: Path
    libraries: tuple[Path, ...]
    licences: Mapping[str, Path | bytes]
    product: Product = "llamafile"
    models: tuple[Path, ...] = ()
    parts: frozenset[str] = frozenset()
    args: bytes | None = None
    version_string: str
    tag: str
    arch: str
    flavor: str | None = None
    lane: Lane = "elf"
    git_commit: str
    git_dirty: bool
    sources: tuple[Source, ...]
    patches: tuple[Patch, ...]
    patch_set_hash: str
    toolchains: tuple[Toolchain, ...]
    host_binary: HostBinary
    cpu_variants: tuple[str, ...]
    dsos: tuple[Dso, ...] = ()
    skipped_backends: tuple[SkippedBackend, ...] = ()
    partial: tuple[str, ...] = ()
    is_cpu_only: bool = False

    @property
    def programs(self) -> tuple[Path, ...]:
        """What becomes a member that can be executed."""
        return (*((self.entry,) if self.lane == "elf" else ()), *self.libraries)

    @property
    def name(self) -> str:
        """File name of the artifact."""
        version, arch, lane, flavor = self.version_string, self.arch, self.lane, self.flavor
        if self.product == "embedder":
            return embedder_name(version_string=version, tag=self.tag, arch=arch, lane=lane, flavor=flavor)
        return artifact_name(version_string=version, arch=arch, lane=lane, flavor=flavor)


@dataclass(frozen=True, kw_only=True)
class Packaged:
    """The three files of a finished artifact."""

    artifact: Path
    manifest: Path
    chunks: Path
    sha256: str
    size: int
    is_new: bool


@dataclass(frozen=True, kw_only=True)
class _Job:
    """One assembly: what, where to, and the facts that were read off the loader."""

    inputs: PackageInputs
    artifact: Path
    members: tuple[NewMember, ...]
    loader: Loader
    console: Console = field(repr=False)

    @property
    def manifest(self) -> Path:
        return self.artifact.with_name(self.artifact.name + MANIFEST_SUFFIX)

    @property
    def chunks(self) -> Path:
        return self.artifact.with_name(self.artifact.name + CHUNKS_SUFFIX)

    def done(self, manifest: Manifest, *, is_new: bool) -> Packaged:
        return Packaged(
            artifact=self.artifact,
            manifest=self.manifest,
            chunks=self.chunks,
            sha256=manifest.sha256,
            size=manifest.size,
            is_new=is_new,
        )


def assemble(inputs: PackageInputs, out_folder: Path, console: Console) -> Packaged:
    """Write artifact, chunk table and manifest, in this order; the old manifest goes first.

    When all three are there and are what the inputs give, nothing is written.

    Raises:
        ConfigError: two members share a name, `.args` or a fact is malformed, the loader has members.
        UsageError: `member-unreadable`.
        BuildError: an input changed meanwhile, or the disk gave back other bytes.
        StorageError: the folder or the disk refused.
        BusyError: another process packages into this folder.
    """
    artifact = out_folder / inputs.name
    with exclusive_lock(out_folder / ".package.lock", f"the folder {out_folder}"):
        job = _Job(
            inputs=inputs,
            artifact=artifact,
            members=list_members(inputs),
            loader=_measure_loader(inputs),
            console=console,
        )
        current = _current_manifest(job)
        if current is not None:
            console.info(f"{artifact.name}: up to date")
            return job.done(current, is_new=False)
        _sweep(out_folder, artifact.name)
        return _write(job)


def list_members(inputs: PackageInputs) -> tuple[NewMember, ...]:
    """Return all members but the index, sorted by name.

    Raises:
        ConfigError: `.args` or a model is not what it must be.
        UsageError: `member-unreadable`, a model.
    """
    members = [NewMember(name=path.name, mode=0o755, path=path) for path in inputs.programs]
    for name, text in inputs.licences.items():
        if isinstance(text, Path):
            members.append(NewMember(name=name, mode=0o644, path=text))
        else:
            members.append(NewMember(name=name, mode=0o644, data=text))
    if inputs.args is not None:
        members.append(NewMember(name=ARGS_NAME, mode=0o644, data=check_args(inputs.args, ARGS_NAME)))
    members += [model_member(path) for path in inputs.models]
    names = [member.name for member in members]
    check_models(members, names, inputs.args)
    check_references(inputs.args or b"", names)
    return tuple(sorted(members, key=lambda member: member.name))


def _measure_loader(inputs: PackageInputs) -> Loader:
    """Measure what comes before the new members: the executable, with members of its own in the ape lane."""
    path = inputs.loader
    with open_input(path) as source:
        archive = find_archive(source.file, str(path))
        if archive is not None and inputs.lane == "elf":
            raise ConfigError(
                "loader-has-members",
                f"cannot use {path} as loader",
                why="it ends in a zip already, whose members the index would not list",
                hint="build the loader again: `python -m ci package` does it",
            )
        size = source.size if archive is None else archive.directory_offset
        return Loader(sha256=_hash_start(source.handle, size), size=size)


def _hash_start(handle: int, size: int) -> str:
    digest = hashlib.sha256()
    with Pump(threads=1) as pump:
        pump.feed(handle, 0, size, (digest,))
    return digest.hexdigest()


def _write(job: _Job) -> Packaged:
    built: list[Manifest] = []

    def before_rename(file: IO[bytes], written: WrittenArchive) -> None:
        """Check the file and its manifest while the old artifact still stands."""
        origin = job.artifact.name
        check_own_layout(
            file,
            read_archive(file, origin),
            origin,
            executable_size=job.loader.size,
            has_host_members=job.inputs.lane == "ape",
        )
        built.append(_manifest(job, written))
        _remove(job.manifest)

    written = write_archive(
        job.inputs.loader,
        job.members,
        job.artifact,
        last=lambda members: _last_members(job.inputs, [_indexed(job.inputs, member) for member in members]),
        options=WriteOptions(mode=0o755, on_progress=progress(job.console), before_rename=before_rename),
    )
    chunks.write(job.chunks, written.chunks)
    write_atomic(job.manifest, dump_manifest(built[0]))
    return job.done(built[0], is_new=True)


def progress(console: Console) -> Progress:
    """Return a callback that shows what the writer is doing."""

    def show(what: str, done: int, total: int) -> None:
        if total >= _SHOWN_FROM_BYTES:
            console.status(f"{what}: {done >> 20} of {total >> 20} MiB")

    return show


def _indexed(inputs: PackageInputs, member: WrittenMember) -> IndexedFile:
    return IndexedFile(
        name=member.name,
        sha256=member.sha256,
        size=member.size,
        mode=_mode_text(member.mode),
        is_part=member.name in inputs.parts,
    )


def _mode_text(mode: int) -> IndexMode:
    return "0755" if mode == 0o755 else "0644"


def _last_members(inputs: PackageInputs, files: Sequence[IndexedFile]) -> list[NewMember]:
    return [_index_member(inputs, files)] if inputs.lane == "elf" else []


def _index_member(inputs: PackageInputs, files: Sequence[IndexedFile]) -> NewMember:
    index = make_index(version=inputs.version_string, entry=inputs.entry.name, files=files)
    return NewMember(name=INDEX_NAME, mode=0o644, data=render_index(index))


def _manifest(job: _Job, written: WrittenArchive) -> Manifest:
    table = written.chunks
    members = tuple(
        Member(
            name=member.name,
            offset=member.offset,
            size=member.size,
            sha256=member.sha256,
            mode=_mode_text(member.mode),
        )
        for member in written.members
    )
    sidecar = Chunks(
        file=job.chunks.name,
        sha256=sha256_bytes(chunks.render_table(table)),
        chunk_size=table.chunk_size,
        count=table.count,
    )
    return _describe(job, sha256=written.sha256, size=written.size, members=members, sidecar=sidecar)


def _describe(job: _Job, *, sha256: str, size: int, members: tuple[Member, ...], sidecar: Chunks) -> Manifest:
    """Return the manifest of an artifact with these bytes. Raises `ConfigError` (`manifest-malformed`)."""
    inputs = job.inputs
    manifest = Manifest.model_construct(
        schema_id="opencoti.manifest/1",
        name=job.artifact.name,
        sha256=sha256,
        size=size,
        lane=inputs.lane,
        flavor=inputs.flavor,
        os=OS,
        arch=inputs.arch,
        version_string=inputs.version_string,
        opencoti_tag=inputs.tag,
        git_commit=inputs.git_commit,
        git_dirty=inputs.git_dirty,
        cpu_only=inputs.is_cpu_only,
        windows_runnable=inputs.lane == "ape" and size < WINDOWS_MAX_BYTES,
        partial=inputs.partial,
        sources=inputs.sources,
        patches=inputs.patches,
        patch_set_hash=inputs.patch_set_hash,
        toolchains=inputs.toolchains,
        loader=job.loader,
        host_binary=inputs.host_binary,
        cpu_variants=inputs.cpu_variants,
        dsos=inputs.dsos,
        skipped_backends=inputs.skipped_backends,
        members=members,
        chunks=sidecar,
    )
    # Read back through the one reader, so that nothing is written that a client would refuse.
    return load_manifest(dump_manifest(manifest), job.manifest.name)


def _current_manifest(job: _Job) -> Manifest | None:
    """Return the manifest on disk if all three files are exactly what the inputs give."""
    try:
        data = job.manifest.read_bytes()
        old = load_manifest(data, str(job.manifest))
        table = chunks.load(job.chunks)
        is_whole = job.artifact.stat().st_size == old.size and job.artifact.stat().st_mode & 0o777 == 0o755
    except (OSError, OpencotiError):
        return None  # absent, unreadable or damaged: all of it is written again
    if not is_whole or sha256_bytes(chunks.render_table(table)) != old.chunks.sha256:
        return None
    if old.loader != job.loader or not _has_same_members(job, old):
        return None
    new = _describe(job, sha256=old.sha256, size=old.size, members=old.members, sidecar=old.chunks)
    if dump_manifest(new) != data or chunks.verify_file(job.artifact, table):
        return None
    return old


def _has_same_members(job: _Job, old: Manifest) -> bool:
    files: list[IndexedFile] = []
    for member in job.members:
        recorded = old.member(member.name)
        if recorded is None or not _is_same(member, recorded):
            return False
        files.append(
            IndexedFile(
                name=member.name,
                sha256=recorded.sha256,
                size=recorded.size,
                mode=_mode_text(member.mode),
                is_part=member.name in job.inputs.parts,
            )
        )
    last = _last_members(job.inputs, files)
    for index in last:
        recorded = old.member(INDEX_NAME)
        if recorded is None or not _is_same(index, recorded):
            return False
    return len(old.members) == len(job.members) + len(last)


def _is_same(member: NewMember, recorded: Member) -> bool:
    if _mode_text(member.mode) != recorded.mode:
        return False
    if member.path is None:
        return sha256_bytes(member.data) == recorded.sha256
    with open_input(member.path) as source:
        return source.size == recorded.size and sha256_stream(source.file) == recorded.sha256


def _sweep(folder: Path, name: str) -> None:
    """Remove what a killed run left; nobody else writes here while we hold the lock."""
    for path in folder.glob(f".{name}*.tmp"):
        _remove(path)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as exc:
        raise storage_error(exc, f"cannot remove {path}") from exc
