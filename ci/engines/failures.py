"""Turning the end of a step into an error that says what to do."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ci.stages.model import Stage, Step
from opencoti.errors import BuildError, OpencotiError, StorageError

_KILLED_CODE: Final = 128 + signal.SIGKILL
_DISK_FULL_BYTES: Final = 64 << 20


@dataclass(frozen=True, kw_only=True)
class StepExit:
    """How the command of a step ended; `code` above 128 stands for a signal, as in a shell."""

    code: int
    is_out_of_memory: bool = False


class StageError(BuildError):
    """A step of a stage failed.

    Args:
        stage: name of the stage.
        step: title of the step.
        code: exit code, 128 + N for signal N.
        lines: what was printed about it, at most 15 lines.
        log: the whole output.
    """

    def __init__(
        self,
        error_id: str,
        *,
        stage: str,
        step: str,
        code: int,
        lines: Sequence[str],
        log: Path,
        cause: str,
        hint: str,
    ) -> None:
        printed = "".join(f"\n    {line}" for line in lines)
        super().__init__(
            error_id, f"stage {stage} failed in step {step}", why=f"{cause}{printed}", hint=f"{hint}{log}"
        )
        self.stage = stage
        self.step = step
        self.code = code
        self.lines = tuple(lines)
        self.log = log


def step_error(
    stage: Stage,
    step: Step,
    ended: StepExit,
    *,
    lines: Sequence[str],
    failed_codes: set[int],
    log: Path,
    out: Path,
    jobs: int,
) -> OpencotiError:
    """Make the error for a step that did not end with 0.

    `failed_codes` are the exit codes of the commands that the step itself started. The disk of `out` is
    looked at, since a full one shows as any failure of any tool.
    """
    if shutil.disk_usage(out).free < _DISK_FULL_BYTES:
        return StorageError(
            "stage-disk-full",
            f"stage {stage.name} failed in step {step.title}",
            why=f"the disk of {out} is full",
            hint=f"free some space and run the command again; log: {log}",
        )
    if ended.is_out_of_memory or _KILLED_CODE in {ended.code, *failed_codes}:
        error_id, cause = "stage-killed", f"{_describe(ended.code)}: most likely the memory ran out"
        hint = f"run it again with fewer compilers (--jobs {max(1, jobs // 2)}); log: "
    else:
        error_id, cause, hint = "stage-failed", _describe(ended.code), "read the whole log: "
    return StageError(
        error_id,
        stage=stage.name,
        step=step.title,
        code=ended.code,
        lines=lines,
        log=log,
        cause=cause,
        hint=hint,
    )


def _describe(code: int) -> str:
    if code <= 128:
        return f"exit code {code}"
    try:
        return f"ended by {signal.Signals(code - 128).name}"
    except ValueError:
        return f"exit code {code}"
