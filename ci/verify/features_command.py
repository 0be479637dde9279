"""`verify FILE --features` and `verify --pid N`: what to look at, and what the pipeline calls."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ci.package.inputs import open_input
from ci.package.zipformat import STORED, Entry
from ci.package.zipreader import find_archive
from ci.patches.series import read_series
from ci.paths import Layout
from ci.sources.lanes import find_lane
from ci.verify.features import TABLE_NAME, Features, load_features
from ci.verify.features_report import FeatureReport, judge
from ci.verify.features_scan import Scan, Subject, is_elf, scan
from ci.verify.report import Difference
from opencoti import procfs
from opencoti.errors import MissingError, UsageError, storage_error
from opencoti.hashing import sha256_file
from opencoti.manifest import Manifest, load_manifest

_COPY_BYTES = 1 << 20
_ENGINE_FILE = re.compile(r"(lib)?(ggml|llama|mtmd)[^/]*\.(so|dylib)[0-9.]*|.*\.llamafile")


@dataclass(frozen=True, kw_only=True)
class _Series:
    name: str
    table: Features
    undescribed: tuple[str, ...]

    def notes(self) -> list[str]:
        return [f"{TABLE_NAME} says nothing about {name}" for name in self.undescribed]


def inspect_features(path: Path, layout: Layout, *, lane: str = "elf") -> FeatureReport:
    """Say which patches of a lane's series are in a binary, an artifact, or a folder of libraries.

    Raises:
        UsageError: `member-unreadable`, there is nothing to read.
        VerificationError: `zip-malformed`, the file ends in a broken archive.
        ConfigError: the table of the series is missing or malformed.
        StorageError: no room for a member that is to be looked at.
    """
    series = _load_series(layout, lane)
    notes = series.notes()
    with tempfile.TemporaryDirectory(prefix="opencoti-features-") as scratch:
        subjects = _subjects(path, Path(scratch), notes)
        scans = [scan(subject, series.table) for subject in subjects]
    return judge(str(path), series.name, series.table, scans, notes=notes)


def inspect_process(
    pid: int, layout: Layout, *, manifest: Path | None = None, lane: str = "elf"
) -> FeatureReport:
    """Say which patches a running engine has, and whether what it has mapped is what the manifest says.

    Files are identified by inode: one that was replaced on disk since is reported, not taken for the one
    that runs.

    Raises:
        UsageError: `process-missing`.
        MissingError: `process-unreadable`, it belongs to another user.
        ConfigError: a table or the manifest is malformed.
    """
    series = _load_series(layout, lane)
    expected = load_manifest(_read(manifest), str(manifest)) if manifest else None
    problems: list[Difference] = []
    scans: list[Scan] = []
    for item in _engine_files(pid):
        if not item.is_at_path:
            detail = f"the process runs inode {item.inode}, which no longer lies there"
            problems.append(Difference(kind="changed", subject=str(item.path), detail=detail))
            continue
        scans.append(scan(Subject(label=str(item.path), path=item.path), series.table))
        problems += _compare(item.path, expected)
    notes = series.notes() + ([] if manifest else ["no --manifest was given: bytes were not compared"])
    return judge(f"process {pid}", series.name, series.table, scans, problems=problems, notes=notes)


def _load_series(layout: Layout, lane: str) -> _Series:
    folder = find_lane(layout, lane).series
    table = load_features(folder / TABLE_NAME)
    names = [patch.name for patch in read_series(folder).patches]
    return _Series(name=folder.name, table=table, undescribed=table.undescribed(names))


def _subjects(path: Path, scratch: Path, notes: list[str]) -> list[Subject]:
    if path.is_dir():
        files = sorted(item for item in path.iterdir() if item.is_file() and not item.is_symlink())
        return [Subject(label=item.name, path=item) for item in files if is_elf(item)]
    with open_input(path) as source:
        archive = find_archive(source.file, str(path))
        if archive is None:
            return [Subject(label=path.name, path=path)]
        prefix = min((entry.header_offset for entry in archive.entries), default=archive.directory_offset)
        subjects = [Subject(label=path.name, path=path, size=prefix)]
        subjects += _unpack(path, source.handle, archive.entries, scratch, notes)
        return subjects


def _unpack(
    path: Path, handle: int, entries: tuple[Entry, ...], scratch: Path, notes: list[str]
) -> Iterator[Subject]:
    """Copy the ELF members out, since their symbols are found through offsets from their own start."""
    packed = [entry.name for entry in entries if entry.method != STORED]
    if packed:
        notes.append(f"{len(packed)} compressed members were not looked at, {packed[0]} for example")
    for number, entry in enumerate(entries):
        if entry.method == STORED and is_elf(path, entry.data_offset):
            # The member's name is only the last part, in a folder of its own: names may repeat there.
            target = scratch / str(number) / (Path(entry.name).name or "member")
            _copy(handle, entry, target)
            yield Subject(label=entry.name, path=target)


def _copy(handle: int, entry: Entry, target: Path) -> None:
    try:
        target.parent.mkdir()
        with open(target, "wb") as file:
            for at in range(0, entry.size, _COPY_BYTES):
                length = min(_COPY_BYTES, entry.size - at)
                file.write(os.pread(handle, length, entry.data_offset + at))
    except OSError as exc:
        shutil.rmtree(target.parent, ignore_errors=True)
        raise storage_error(exc, f"cannot unpack member {entry.name}") from exc


def _engine_files(pid: int) -> list[procfs.MappedFile]:
    """Return the program of a process and the engine's libraries that it has mapped."""
    program = procfs.executable(pid)
    mapped = procfs.mapped_files(pid)
    if program is None and not mapped:
        _refuse_process(pid)
    name = str(program).removesuffix(" (deleted)")
    return [item for item in mapped if str(item.path) == name or _ENGINE_FILE.fullmatch(item.path.name)]


def _refuse_process(pid: int) -> None:
    if not Path(f"/proc/{pid}").exists():
        raise UsageError("process-missing", f"there is no process {pid}", hint="see `ps` for running ones")
    raise MissingError(
        "process-unreadable",
        f"cannot see what process {pid} has mapped",
        why="it belongs to another user, or is a part of the kernel",
        hint="run this as that user or as root",
    )


def _compare(path: Path, manifest: Manifest | None) -> Iterator[Difference]:
    if manifest is None:
        return
    known = {Path(member.name).name: member.sha256 for member in manifest.members}
    known[manifest.name] = manifest.sha256
    try:
        found = sha256_file(path)
    except OSError as exc:
        raise storage_error(exc, f"cannot read {path}") from exc
    expected = known.get(path.name)
    if expected is None:
        yield Difference(kind="extra", subject=str(path), detail="the manifest lists no such file")
    elif expected != found:
        detail = f"sha256: expected {expected}, found {found}"
        yield Difference(kind="changed", subject=str(path), detail=detail)


def _read(path: Path) -> bytes:
    with open_input(path) as source:
        return source.file.read()
