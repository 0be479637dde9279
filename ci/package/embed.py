"""Embedding chosen files into a chosen host, with the checks that need to see the finished archive."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import IO

from ci.package.artifact import progress
from ci.package.content import ARGS_NAME, check_args, check_models
from ci.package.inputs import Input, open_input
from ci.package.naming import WINDOWS_MAX_BYTES
from ci.package.zipreader import Archive, find_archive
from ci.package.zipwriter import NewMember, WriteOptions, WrittenArchive, write_archive
from opencoti.console import Console
from opencoti.errors import BuildError

_APE_MAGICS = (b"MZqFpD", b"jartsr")
_MAX_ARGS_BYTES = 1 << 16


def embed(
    host: Path,
    files: Sequence[Path],
    out: Path,
    console: Console,
    *,
    allow_replace: bool = False,
    windows_max_bytes: int = WINDOWS_MAX_BYTES,
) -> WrittenArchive:
    """Write `out`: the host with `files` as members, each under its base name.

    Raises:
        ConfigError: `args-malformed`, `models-ambiguous`, `model-not-gguf`, `member-duplicate`.
        BuildError: `windows-too-large`, `out` is an `.exe` of 4 GiB or more; nothing was written.
        OpencotiError: whatever `write_archive` raises.
    """
    members = [_member(path) for path in files]
    with open_input(host) as source:
        archive = find_archive(source.file, str(host))
        _check_content(source, archive, members)
        is_ape = _is_ape(source.file)
        _check_windows_target(source.size, files, out, windows_max_bytes)
    written = write_archive(
        host, members, out, options=WriteOptions(allow_replace=allow_replace, on_progress=progress(console))
    )
    if is_ape and written.size >= windows_max_bytes:
        console.warn(
            f"{out} has {written.size} bytes: Windows runs no executable of {windows_max_bytes} or more; "
            "for Windows users leave the model out and give it with -m"
        )
    return written


def _member(path: Path) -> NewMember:
    with open_input(path) as source:
        is_executable = bool(source.before.st_mode & 0o100)
    return NewMember(name=path.name, mode=0o755 if is_executable else 0o644, path=path)


def _check_content(source: Input, archive: Archive | None, members: Sequence[NewMember]) -> None:
    given = next((member.path for member in members if member.name == ARGS_NAME), None)
    args = None
    if given is not None:
        with open_input(given) as file:
            args = check_args(file.file.read(_MAX_ARGS_BYTES + 1), str(given))
    elif archive is not None and (entry := archive.entry(ARGS_NAME)) is not None and entry.method == 0:
        source.file.seek(entry.data_offset)
        args = source.file.read(min(entry.size, _MAX_ARGS_BYTES))
    names = {entry.name for entry in archive.entries} if archive else set()
    check_models(members, sorted(names | {member.name for member in members}), args)


def _is_ape(file: IO[bytes]) -> bool:
    file.seek(0)
    return file.read(6) in _APE_MAGICS


def _check_windows_target(host_size: int, files: Sequence[Path], out: Path, windows_max_bytes: int) -> None:
    if out.suffix.lower() != ".exe":
        return
    total = host_size + sum(path.stat().st_size for path in files)
    if total >= windows_max_bytes:
        raise BuildError(
            "windows-too-large",
            f"{out} would have {total} bytes or more",
            why=f"Windows runs no executable of {windows_max_bytes} bytes or more",
            hint="leave the model out and give it with -m, or write a file that is no .exe",
        )
