"""Does a fetched engine start on this host? `--version` in a scratch HOME, before it is handed over."""

from __future__ import annotations

import errno
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from opencoti.errors import MissingError
from opencoti.formats import is_ape

TRIAL_TIMEOUT_S = 120.0
_ENGINE = re.compile(
    r"opencoti-(?:llamafile|embedder)-.+?(?:-(?P<os>linux))?-(?P<arch>x86_64|aarch64)(?:-cuda\d+)?\.llamafile"
)
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_TAIL_CHARS = 300


def suits_this_host(asset: str, *, system: str | None = None, machine: str | None = None) -> bool:
    """Tell whether an asset is, by its name, an engine that this host should be able to start."""
    match = _ENGINE.fullmatch(asset)
    if match is None:
        return False
    machine = (machine or platform.machine()).lower()
    is_system = match["os"] is None or (system or sys.platform).startswith(match["os"])
    return is_system and match["arch"] == _MACHINES.get(machine, machine)


def try_engine(engine: Path, *, timeout_s: float = TRIAL_TIMEOUT_S) -> None:
    """Run `<engine> --version` once.

    The engine gets an empty HOME of its own, which is removed afterwards; its whole process group is ended
    when it takes too long or we are interrupted.

    Raises:
        MissingError: `engine-unusable`; it does not start, or ends with an error.
    """
    with tempfile.TemporaryDirectory(prefix="opencoti-try-", ignore_cleanup_errors=True) as home:
        env = {**os.environ, "HOME": home, "XDG_CACHE_HOME": os.path.join(home, ".cache")}
        try:
            outcome = _run_either_way(engine, env, timeout_s)
        except OSError as exc:
            raise _unusable(engine, exc.strerror or str(exc), _hint(exc)) from exc
    if outcome.code != 0:
        raise _unusable(engine, outcome.describe(timeout_s), "")


@dataclass(frozen=True, kw_only=True)
class _Outcome:
    code: int | None  # None: it took too long
    output: str

    def describe(self, timeout_s: float) -> str:
        if self.code is None:
            how = f"`--version` did not end within {timeout_s:g} s"
        elif self.code < 0:
            how = f"`--version` was ended by signal {-self.code}"
        else:
            how = f"`--version` ended with code {self.code}"
        tail = " ".join(self.output.split())[-_TAIL_CHARS:]
        return f"{how}: {tail}" if tail else how


def _run_either_way(engine: Path, env: Mapping[str, str], timeout_s: float) -> _Outcome:
    """Start it the direct way, or through `sh` where the kernel does not know its format (APE)."""
    try:
        return _run([str(engine), "--version"], env, timeout_s)
    except OSError as exc:
        if exc.errno != errno.ENOEXEC or not is_ape(engine):
            raise
    return _run(["sh", str(engine), "--version"], env, timeout_s)


def _run(argv: Sequence[str], env: Mapping[str, str], timeout_s: float) -> _Outcome:
    process = subprocess.Popen(
        argv,
        env=dict(env),
        cwd=env["HOME"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    with process:
        try:
            output, _ = process.communicate(timeout=timeout_s)
            code: int | None = process.returncode
        except subprocess.TimeoutExpired:
            output, code = b"", None
        finally:
            _end_group(process.pid)
    return _Outcome(code=code, output=output.decode("utf-8", "replace"))


def _end_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _hint(exc: OSError) -> str:
    if exc.errno in (errno.EACCES, errno.EPERM):
        return "programs may not run there (noexec?): choose another folder, --dest or OPENCOTI_CACHE_DIR"
    return ""


def _unusable(engine: Path, why: str, hint: str) -> MissingError:
    return MissingError(
        "engine-unusable",
        f"the engine is verified but does not start on this host; it stays as {engine}",
        why=why,
        hint=hint or "to have it all the same, run the command again with --no-try",
    )
