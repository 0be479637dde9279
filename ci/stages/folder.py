"""The build folder of a stage: kept between runs so that ninja is incremental, wiped when that is unsafe.

Beside the folder lies `<stage>.state.json` with the fingerprint of what configured it; inside, while a
step runs, `.opencoti-step` names it. A step that did not end well leaves that file behind: ninja and make
repair their own half-done work, a half-done configuration is thrown away.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ci.stages.model import Stage, Step, digest
from opencoti.console import Console
from opencoti.errors import storage_error
from opencoti.files import write_atomic

_MARKER: Final = ".opencoti-step"
_RESUMABLE_PROGRAMS: Final = frozenset({"make", "ninja"})


def prepare_folder(out: Path, fingerprint: str, console: Console, *, is_fresh: bool = False) -> None:
    """Make `out` ready for a run: reuse what is safe to reuse, else empty it.

    Another `fingerprint` (of `stage_fingerprint`) than last time empties the folder, `is_fresh` in any case.

    Raises:
        StorageError: the folder cannot be emptied or made.
    """
    state = out.with_name(f"{out.name}.state.json")
    reason = "from scratch, as asked" if is_fresh else _reason_to_wipe(out, state, fingerprint)
    try:
        if reason and out.exists():
            console.info(f"build folder {out} is emptied: {reason}")
            state.unlink(missing_ok=True)
            shutil.rmtree(out)
        out.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise storage_error(exc, f"cannot prepare build folder {out}") from exc
    write_atomic(state, json.dumps({"fingerprint": fingerprint}).encode() + b"\n")


def stage_fingerprint(stage: Stage, toolchain_id: str, source: Path, out: Path) -> str:
    """Hash what a configured build folder depends on: the tools, the commands less the labels, the places."""
    steps = [[word for word in step.argv if word not in stage.labels] for step in stage.steps]
    return digest([toolchain_id, steps, dict(stage.env), dict(stage.inputs), str(source), str(out)])


@contextmanager
def step_marker(out: Path, step: Step) -> Iterator[None]:
    """Leave a mark in `out` while `step` runs; it stays when the step fails or this process dies."""
    write_atomic(out / _MARKER, json.dumps({"program": Path(step.argv[0]).name}).encode() + b"\n")
    yield
    (out / _MARKER).unlink(missing_ok=True)


def _reason_to_wipe(out: Path, state: Path, fingerprint: str) -> str:
    if _read_field(state, "fingerprint") != fingerprint:
        return "the toolchain or the configuration changed"
    if (out / _MARKER).exists() and _read_field(out / _MARKER, "program") not in _RESUMABLE_PROGRAMS:
        return "its configuration did not end last time"
    return ""


def _read_field(path: Path, field: str) -> str:
    try:
        return str(json.loads(path.read_bytes())[field])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
