"""Why an engine did not start, or did not live: from error numbers, exit codes, mounts and its log."""

from __future__ import annotations

import errno
import os
import signal
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from opencoti.errors import MissingError, OpencotiError, StorageError

_TAIL_BYTES: Final = 8192
_TAIL_LINES: Final = 12
_MAX_LINE: Final = 300
_BINFMT: Final = Path("/proc/sys/fs/binfmt_misc")
# What another program prints when the kernel hands it a file that starts with `MZ` (case B51).
_HIJACKERS: Final = (b"run-detectors", b"wine:", b"wine64", b"winehq", b"wslinterop", b"ape on win32")
_LOADER_STORAGE_CODE: Final = 8


def tail_lines(log: Path, count: int = _TAIL_LINES) -> list[str]:
    """Return the last lines of a log, whatever bytes are in it."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return ["".join(c if c.isprintable() else "?" for c in line[:_MAX_LINE]) for line in lines[-count:]]


def log_tail(log: Path) -> str:
    """Return the last lines of a log as an indented block, empty without any."""
    return "".join(f"\n    {line}" for line in tail_lines(log))


def is_noexec(path: Path) -> bool:
    """Tell whether programs on the file system of `path` cannot be run."""
    try:
        return bool(os.statvfs(path).f_flag & os.ST_NOEXEC)
    except OSError:
        return False


def start_error(
    number: int, artifact: Path, *, has_no_programs: Callable[[Path], bool] = is_noexec
) -> OpencotiError:
    """Explain why the kernel refused to run a file. `has_no_programs` judges its file system."""
    if number in (errno.EACCES, errno.EPERM):
        return _refused(artifact, has_no_programs)
    if number == errno.ENOENT:
        why = "it is gone, or the program that its header asks for is not on this machine"
        hint = "is it an artifact for this system and architecture?"
        return MissingError("engine-interpreter-missing", f"cannot run {artifact}", why=why, hint=hint)
    if number == errno.ETXTBSY:
        return MissingError(
            "engine-cannot-start",
            f"cannot run {artifact}",
            why="another process is still writing it",
            hint="wait until the copy or download has ended",
        )
    return MissingError(
        "engine-cannot-start",
        f"cannot run {artifact}",
        why=os.strerror(number),
        hint="is it an artifact for this system? `python -m opencoti.fetch verify` checks it",
    )


def _refused(artifact: Path, has_no_programs: Callable[[Path], bool]) -> StorageError:
    what = f"cannot run {artifact}"
    if artifact.is_dir():
        return StorageError("engine-not-permitted", what, why="it is a folder")
    if has_no_programs(artifact):
        return StorageError(
            "engine-on-noexec",
            what,
            why="its file system is mounted noexec",
            hint="copy it to another folder, or set OPENCOTI_CACHE_DIR to one",
        )
    if not artifact.stat().st_mode & (stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH):
        return StorageError(
            "engine-not-executable",
            what,
            why="it has no executable bit (copying through a zip or a web page drops it)",
            hint=f"chmod +x {artifact}",
        )
    return StorageError(
        "engine-not-permitted",
        what,
        why="the system refuses it to this user",
        hint="check owner, mode and security policy of the file",
    )


def died_error(code: int | None, log: Path, *, when: str, kept_log: Path | None = None) -> OpencotiError:
    """Explain why an engine ended by itself, from its exit code and its log."""
    tail = log_tail(log)
    if _is_hijacked(log):
        return MissingError(
            "engine-hijacked",
            "another program took the engine's file",
            why=f"this system hands files of its kind to {hijacker_names()}:{tail}",
            hint="run it as `sh FILE`, or remove that rule (`python -m opencoti.doctor` shows it)",
        )
    if code == _LOADER_STORAGE_CODE:
        return StorageError(
            "engine-cannot-unpack",
            "the engine cannot unpack its parts",
            why=f"it said:{tail}",
            hint="set OPENCOTI_EXTRACT_DIR to a folder that can be written and may hold programs",
        )
    return MissingError(
        "engine-died",
        f"the engine {describe_exit(code)} {when}",
        why=f"its last lines:{tail}" if tail else "it printed nothing",
        hint=f"the full log is {kept_log or log}"
        if tail
        else "is it an engine? see what `FILE --version` says",
    )


def describe_exit(code: int | None) -> str:
    """Say how a process ended: `ended with exit code 1` or `was ended by SIGABRT`."""
    if code is None:
        return "ended"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def _is_hijacked(log: Path) -> bool:
    try:
        with open(log, "rb") as file:
            head = file.read(_TAIL_BYTES).lower()
    except OSError:
        return False
    return any(name in head for name in _HIJACKERS)


def hijacker_names(folder: Path = _BINFMT) -> str:
    """Name the programs that this system starts for files beginning with `MZ`."""
    found = [interpreter for interpreter in _interpreters(folder) if interpreter]
    return ", ".join(sorted(set(found))) or "Wine, WSL or run-detectors"


def _interpreters(folder: Path) -> Sequence[str]:
    """Return the interpreters of enabled rules whose magic is `MZ` (4d5a) and not the longer one of APE."""
    result = []
    try:
        rules = [path for path in folder.iterdir() if path.name not in ("register", "status")]
    except OSError:
        return []
    for rule in rules:
        try:
            lines = rule.read_text(errors="replace").splitlines()
        except OSError:
            continue
        fields = {name: value for name, _, value in (line.partition(" ") for line in lines)}
        if "enabled" in fields and fields.get("magic") == "4d5a":
            result.append(fields.get("interpreter", ""))
    return result
