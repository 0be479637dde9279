"""Finds out what a `run:` calls, by letting bash expand it with programs that only write down their words."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

# Programs that a workflow may start, by the path that it writes.
PROGRAMS: Final = (
    "./noxw",
    ".nox/pipeline/bin/python",
    ".nox/dev/bin/python",
    ".small/bin/python",
    "python3",
    "sudo",
)
_RECORDER: Final = """#!/bin/bash
printf '%s\\0' "{program}" "$@" >> "{log}"
printf '\\n' >> "{log}"
"""


def record(text: str, folder: Path, environ: dict[str, str]) -> list[list[str]]:
    """Return the words of every program that `text` starts; a program that is none of ours is an error."""
    log = folder / "log"
    tools = folder / "tools"
    work = folder / "work" / "inner"
    for program in PROGRAMS:
        path = work / program if "/" in program else tools / program
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_RECORDER.format(program=program, log=log))
        path.chmod(0o755)
    for name in ("dist", "evidence"):
        (work / name).mkdir(exist_ok=True)
    log.write_bytes(b"")
    done = subprocess.run(
        ["/bin/bash", "--noprofile", "--norc", "-euo", "pipefail", "-c", text],
        cwd=work, env={"PATH": str(tools), "HOME": str(folder), **environ}, capture_output=True, text=True,
        timeout=30,
    )  # fmt: skip
    assert done.returncode == 0, f"{text}\n{done.stderr}"
    lines = log.read_text().split("\0\n")
    return [line.split("\0") for line in lines if line]


def open_files(folder: Path) -> list[str]:
    """Return what the commands wrote by redirection, relative to the folder where they ran."""
    work = folder / "work" / "inner"
    known = {work / program for program in PROGRAMS}
    return sorted(
        os.path.relpath(path, work)
        for path in (folder / "work").rglob("*")
        if path.is_file() and path not in known
    )
