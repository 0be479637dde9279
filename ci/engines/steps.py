"""Running the steps of a stage one after another: the part that every engine shares."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from ci.engines.compiler_cache import CompilerCache
from ci.engines.failures import StepExit, step_error
from ci.engines.jobs import pool_environment, pool_of, without_job_words
from ci.engines.progress import NINJA_STATUS, OutputReader
from ci.stages.checks import check_found, is_not_found_line, not_found_error
from ci.stages.folder import step_marker
from ci.stages.model import Expansion, Stage, Step
from opencoti.console import Console
from opencoti.errors import storage_error

# Folders of the tool cache that `stage_environment` names.
TOOL_FOLDERS: Final = ("home", "tmp", "ccache", "zig")

Execute = Callable[[tuple[str, ...], Callable[[str], None]], StepExit]


def stage_environment(
    stage: Stage,
    expansion: Expansion,
    *,
    tool_cache: str,
    path: str,
    cache: CompilerCache | None = None,
    pool: str = "",
) -> dict[str, str]:
    """Return the whole environment of a stage: nothing of the caller's own gets in.

    Args:
        stage: its own variables come last.
        expansion: what its placeholders stand for.
        tool_cache: the folder for everything that tools keep, as the stage sees it.
        path: becomes PATH.
        cache: the compiler cache, if one is used.
        pool: the job pool as the stage sees it, empty when it has its jobs for itself.
    """
    fixed = {
        "PATH": path,
        "HOME": f"{tool_cache}/home",
        "TMPDIR": f"{tool_cache}/tmp",  # noqa: S108
        "XDG_CACHE_HOME": f"{tool_cache}/home/.cache",
        "CCACHE_DIR": f"{tool_cache}/ccache",
        "ZIG_GLOBAL_CACHE_DIR": f"{tool_cache}/zig",
        "ZIG_LOCAL_CACHE_DIR": f"{tool_cache}/zig",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "SOURCE_DATE_EPOCH": "0",
        "NINJA_STATUS": NINJA_STATUS,
        # The compiler wrappers map these two to fixed names, so that no path of this machine
        # gets into a product.
        "OPENCOTI_SRC": expansion.src,
        "OPENCOTI_OUT": expansion.out,
    }
    cached = cache.environment() if cache else {}
    pooled = pool_environment(pool, expansion.jobs) if pool else {}
    return fixed | cached | pooled | {name: expansion.expand(value) for name, value in stage.env.items()}


def make_tool_folders(tool_cache: Path) -> None:
    """Make the folders that `stage_environment` names. Raises `StorageError`."""
    try:
        for name in TOOL_FOLDERS:
            (tool_cache / name).mkdir(exist_ok=True)
    except OSError as exc:
        raise storage_error(exc, f"cannot make folders in {tool_cache}") from exc


def run_steps(
    stage: Stage,
    expansion: Expansion,
    execute: Execute,
    *,
    out: Path,
    log: Path,
    console: Console,
) -> None:
    """Run every step through `execute`, with log, progress and the checks between steps.

    Raises:
        BuildError: a step failed, or used something that was not found.
        StorageError: the log cannot be written, or the disk is full.
    """
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        file = open(log, "w", encoding="utf-8", buffering=1)  # noqa: SIM115
    except OSError as exc:
        raise storage_error(exc, f"cannot write log {log}") from exc
    with file:
        for number, step in enumerate(stage.steps, start=1):
            with step_marker(out, step):
                runner = _StepRun(stage, step, console, write=lambda line: file.write(line + "\n"), log=log)
                runner.run(expansion, execute, out, f"{number}/{len(stage.steps)}")


class _StepRun:
    """One step being run."""

    def __init__(
        self, stage: Stage, step: Step, console: Console, *, write: Callable[[str], object], log: Path
    ) -> None:
        self._stage = stage
        self._step = step
        self._console = console
        self._write = write
        self._log = log
        self._not_found = ""

    def run(self, expansion: Expansion, execute: Execute, out: Path, position: str) -> None:
        words = without_job_words(self._step.argv) if pool_of(expansion.jobs) else self._step.argv
        argv = tuple(expansion.expand(word) for word in words)
        title = f"{self._stage.name}, {self._step.title}"
        self._console.info(f"   step {position}: {self._step.title} (log: {self._log})")
        reader = OutputReader(title, self._console, step=f"step {position}")
        self._write(f"$ {' '.join(argv)}")
        ended = execute(argv, lambda line: self._take(line, reader))
        if ended.code != 0:
            raise step_error(
                self._stage,
                self._step,
                ended,
                lines=reader.lines(),
                failed_codes=reader.failed_codes,
                log=self._log,
                out=out,
                jobs=expansion.jobs,
            )
        if self._not_found:
            raise not_found_error(self._stage, self._not_found, log=self._log)
        check_found(self._stage, out, log=self._log)

    def _take(self, line: str, reader: OutputReader) -> None:
        self._write(line)
        if not self._not_found and is_not_found_line(line):
            self._not_found = line
        reader.feed(line)
