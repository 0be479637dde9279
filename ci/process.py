"""The one place of the build side that starts processes.

Commands are sequences, never shell text. A child never outlives this process: it gets SIGTERM when we
unwind (an error, Ctrl-C, SIGTERM) and, on Linux, the kernel sends it SIGTERM when we are killed hard.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from opencoti.errors import MissingError

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_TERMINATE_GRACE_S = 10.0
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


@dataclass(frozen=True, kw_only=True)
class Completed:
    """A process that ended."""

    argv: tuple[str, ...]
    code: int
    stdout: bytes
    stderr: bytes

    @property
    def is_ok(self) -> bool:
        """Whether the exit code was 0."""
        return self.code == 0

    @property
    def text(self) -> str:
        """Standard output as text, stripped."""
        return self.stdout.decode("utf-8", "replace").strip()

    @property
    def error_text(self) -> str:
        """Standard error as text, stripped."""
        return self.stderr.decode("utf-8", "replace").strip()


def run(
    argv: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    timeout_s: float | None = None,
) -> Completed:
    """Run a short command to its end and capture its output; any exit code is returned, not raised.

    Raises:
        MissingError: `program-missing`, the program is not there or cannot be executed.
        subprocess.TimeoutExpired: it ran longer than `timeout_s` and was killed.
    """
    words = tuple(str(word) for word in argv)
    with _start(words, cwd=cwd, env=env, stdin=stdin, merge=False) as process:
        try:
            stdout, stderr = process.communicate(stdin, timeout=timeout_s)
        except BaseException:
            terminate(process)
            raise
    return Completed(argv=words, code=process.returncode, stdout=stdout, stderr=stderr)


def stream(
    argv: Sequence[str | Path],
    on_line: Callable[[str], None],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> int:
    """Run a long command in a process group of its own and pass each output line (both streams) on.

    Returns the exit code, negative for a signal. When `on_line` raises, or we are interrupted, the whole
    group is ended before the exception goes on. Raises `MissingError` like `run`.
    """
    words = tuple(str(word) for word in argv)
    with _start(words, cwd=cwd, env=env, stdin=None, merge=True) as process:
        assert process.stdout is not None
        try:
            for raw in process.stdout:
                on_line(raw.decode("utf-8", "replace").rstrip("\r\n"))
            return process.wait()
        except BaseException:
            terminate(process)
            raise


def spawn(
    argv: Sequence[str | Path],
    *,
    log: IO[bytes],
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    errors: int = subprocess.STDOUT,
) -> subprocess.Popen[bytes]:
    """Start a program that goes on running, in a session of its own; both output streams go to `log`.

    With `errors=subprocess.PIPE` the caller reads standard error, to its end.

    The output goes straight to the file, so that no reader is needed and a full pipe cannot stop the
    program. The caller ends it (`terminate`). Call it from the main thread: the kernel ends the child when
    the thread that started it dies.

    Raises:
        OSError: it cannot be started; the number says why (`ENOEXEC`, `EACCES`, `ENOENT`).
    """
    return subprocess.Popen(
        [str(word) for word in argv],
        cwd=cwd,
        env=None if env is None else dict(env),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=errors,
        start_new_session=True,
        preexec_fn=die_with_parent if _LIBC else None,
    )


def terminate(process: subprocess.Popen[bytes], *, grace_s: float = _TERMINATE_GRACE_S) -> None:
    """End a process and its group: SIGTERM, a grace (ten seconds if not given), SIGKILL. Waits for it."""
    for sig in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sig)
        except (ProcessLookupError, PermissionError):
            process.kill()
        try:
            process.wait(timeout=grace_s)
            return
        except subprocess.TimeoutExpired:
            continue


def _start(
    argv: tuple[str, ...],
    *,
    cwd: Path | None,
    env: Mapping[str, str] | None,
    stdin: bytes | None,
    merge: bool,
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            argv,
            cwd=cwd,
            env=None if env is None else dict(env),
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merge else subprocess.PIPE,
            start_new_session=True,
            preexec_fn=die_with_parent if _LIBC else None,
        )
    except (FileNotFoundError, PermissionError) as exc:
        raise MissingError(
            "program-missing",
            f"cannot run {argv[0]}",
            why=exc.strerror or str(exc),
            hint=f"install {Path(argv[0]).name}, or run `nox -s doctor` to see what is missing",
        ) from exc


def die_with_parent() -> None:
    """Ask the kernel to end the calling process when its parent dies (Linux; for `preexec_fn`)."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
