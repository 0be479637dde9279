"""The files that a stage must leave: finding them, hashing them, copying them with fixed modes."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path

from ci.stages.model import Stage
from opencoti.errors import BuildError, storage_error
from opencoti.hashing import sha256_file


def collect_outputs(stage: Stage, out: Path) -> dict[str, str]:
    """Return every output of `stage` below `out`: relative path to SHA-256, sorted.

    A symbolic link stands for the file it points to, which must lie below `out` too.

    Raises:
        BuildError: `stage-output-missing`, `stage-output-outside-folder`.
    """
    found: dict[str, Path] = {}
    for pattern in stage.outputs:
        matches = [path for path in sorted(out.glob(pattern)) if path.is_file()]
        if not matches:
            raise BuildError(
                "stage-output-missing",
                f"stage {stage.name} ended without {pattern}",
                why=f"no such file below {out}",
                hint="look at the log of the stage; a target may have been switched off by its configuration",
            )
        found.update({path.relative_to(out).as_posix(): path for path in matches})
    return {name: _hash_inside(found[name], out, stage) for name in sorted(found)}


def copy_outputs(files: Mapping[str, str], source: Path, target: Path) -> None:
    """Copy files with mode 0755 or 0644, as their owner may or may not execute them.

    Raises:
        OSError: a file cannot be read or written.
    """
    for name in files:
        destination = target / name
        destination.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, destination)
        is_executable = (source / name).stat().st_mode & stat.S_IXUSR
        os.chmod(destination, 0o755 if is_executable else 0o644)


def _hash_inside(path: Path, out: Path, stage: Stage) -> str:
    resolved = path.resolve()
    if not resolved.is_relative_to(out.resolve()):
        raise BuildError(
            "stage-output-outside-folder",
            f"output {path.name} of stage {stage.name} is a link to {resolved}",
            why="a product must come from the build itself",
        )
    try:
        return sha256_file(resolved)
    except OSError as exc:
        raise storage_error(exc, f"cannot read {resolved}") from exc
