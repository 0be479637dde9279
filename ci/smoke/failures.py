"""Why an engine did not start or did not live: from error numbers, exit codes and its log. Starts nothing."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

from ci.smoke.scratch import is_noexec
from opencoti.errors import MissingError, OpencotiError, StorageError, VerificationError
from opencoti.launch.failures import describe_exit

_TAIL_BYTES: Final = 8192
_TAIL_LINES: Final = 12
# What another program prints when the kernel's binfmt_misc hands it a file that starts with `MZ` (case B51).
_HIJACKERS: Final = (b"run-detectors", b"wine:", b"wine64", b"winehq")


def log_tail(log: Path) -> str:
    """Return the last lines of a log, whatever bytes are in it."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "\n".join("    " + line[:300] for line in lines[-_TAIL_LINES:])


def start_error(exc: OSError, artifact: Path) -> OpencotiError:
    """Explain why the kernel refused to run a file (case B51)."""
    if exc.errno in (errno.EACCES, errno.EPERM):
        return _refused(artifact)
    if exc.errno == errno.ENOENT:
        return MissingError(
            "smoke-interpreter-missing",
            f"cannot run {artifact}",
            why="the program that its first line or its ELF header asks for is not on this machine",
            hint="is it an artifact for this system and architecture?",
        )
    return MissingError(
        "smoke-cannot-start",
        f"cannot run {artifact}",
        why=exc.strerror or str(exc),
        hint="is it an artifact for this system and architecture?",
    )


def _refused(artifact: Path) -> StorageError:
    if not artifact.stat().st_mode & (stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH):
        return StorageError(
            "smoke-not-executable",
            f"cannot run {artifact}",
            why="it has no executable bit (copying through a zip or a web page drops it)",
            hint=f"chmod +x {artifact}",
        )
    if is_noexec(artifact):
        return StorageError(
            "smoke-noexec",
            f"cannot run {artifact}",
            why="its file system is mounted noexec",
            hint="copy it to another folder",
        )
    return StorageError(
        "smoke-not-permitted",
        f"cannot run {artifact}",
        why="the system refuses it to this user",
        hint="check owner, mode and security policy of the file",
    )


def died_error(code: int, log: Path, *, what: str) -> OpencotiError:
    """Explain why a program ended by itself, from its exit code and its log."""
    tail = log_tail(log)
    if any(name in line for line in _first_lines(log) for name in _HIJACKERS):
        return MissingError(
            "smoke-hijacked",
            "another program took the artifact",
            why=f"this system starts files of its kind with Wine or run-detectors:\n{tail}",
            hint="register the APE loader in binfmt_misc, or run it as `sh ARTIFACT`",
        )
    return VerificationError(
        "smoke-died",
        f"the engine {describe_exit(code)} {what}",
        why=f"its last lines:\n{tail}" if tail else "it printed nothing",
        hint=f"the full log is {log}",
    )


def _first_lines(log: Path) -> list[bytes]:
    try:
        with open(log, "rb") as file:
            return file.read(_TAIL_BYTES).lower().splitlines()
    except OSError:
        return []
