"""Judging what one of upstream's GPU scripts printed and left: its exit code and last words prove nothing.

The scripts wait for their parallel compiles without looking at how these ended, then link the objects that
they find. So no line may tell of an error, nothing may have been taken from an earlier run, and as many
objects must have been linked as sources were announced.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ci.toolchains.table import Kind
from opencoti.errors import BuildError, storage_error

# `x.cu(7): error: …`, `fatal error: …`, `ptxas error   : …`, `error C2065: …`, `Error: nvcc not found`
_ERROR: Final = re.compile(r"(?:^|[\s)\]])error(?: [A-Z]*\d+)?\s*: |^Killed$|: Killed\b", re.IGNORECASE)
_SKIPPED: Final = re.compile(r"Skipping: |\(up to date\)|is up to date")
# `Linking 57 object files...`
_LINKED: Final = re.compile(r"Linking (\d+) object files")
# `Compiling 52 files with 8 parallel jobs...`; `Found 150 shader C++ files`
_ANNOUNCED: Final = {
    "cuda": re.compile(r"Compiling (\d+) files with"),
    "hip": re.compile(r"Compiling (\d+) files with"),
    "vulkan": re.compile(r"Found (\d+) shader C\+\+ files"),
}
# `Found 150 shader files`: each must have become a C++ file.
_SHADERS: Final = re.compile(r"Found (\d+) shader files")
# `  Compiling: ggml.c`, of the sources that are compiled after this line.
_CORE_BEGINS: Final = "Compiling core GGML sources..."
_CORE: Final = re.compile(r"\s+Compiling: (\S+\.(?:c|cpp))$")
_BUILD_FOLDERS: Final = ".cache/llamafile-*-build"


@dataclass(frozen=True, kw_only=True)
class ObjectCount:
    """How many objects a library is made of.

    Attributes:
        announced: sources of the backend that the script said it would compile.
        core: sources of ggml itself.
        linked: objects that the script said it linked.
        found: objects in its build folder.
    """

    announced: int
    core: int
    linked: int
    found: int

    @property
    def expected(self) -> int:
        """How many there must be."""
        return self.announced + self.core


def check_script(kind: Kind, log: Path, home: Path) -> ObjectCount:
    """Judge a run.

    Args:
        kind: of the backend.
        log: what the script printed.
        home: its home folder.

    Raises:
        BuildError: `ape-script-errors`, `ape-script-stale`, `ape-script-objects`; `ape-script-unreadable`, it
            does not print the lines that are counted.
        StorageError: the log cannot be read.
    """
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as exc:
        raise storage_error(exc, f"cannot read {log}") from exc
    if broken := [line for line in lines if _ERROR.search(line)]:
        raise BuildError(
            "ape-script-errors",
            "upstream's script ended well and printed errors",
            why=f"{broken[0].strip()[:200]} ({len(broken)} such lines)",
            hint=f"log: {log}",
        )
    if stale := [line for line in lines if _SKIPPED.search(line)]:
        raise BuildError(
            "ape-script-stale",
            "upstream's script took objects of an earlier run",
            why=stale[0].strip()[:200],
            hint="it decides by the time of one source alone; it was given --clean and a new home folder",
        )
    count = count_objects(kind, lines, home, log)
    if not count.expected == count.linked == count.found:
        raise BuildError(
            "ape-script-objects",
            "the library is not made of all its sources",
            why=f"{count.expected} sources ({count.core} of ggml itself), {count.found} objects, "
            f"{count.linked} linked",
            hint=f"a compile failed and the script went on; log: {log}",
        )
    return count


def count_objects(kind: Kind, lines: Sequence[str], home: Path, log: Path) -> ObjectCount:
    """Return the numbers. Raises `BuildError` (`ape-script-unreadable`)."""
    assert kind != "cpu"
    announced = [int(match[1]) for line in lines if (match := _ANNOUNCED[kind].search(line))]
    linked = [int(match[1]) for line in lines if (match := _LINKED.search(line))]
    begins = [number for number, line in enumerate(lines) if line.endswith(_CORE_BEGINS)]
    if not announced or not linked or not begins:
        lacking = [
            what
            for what, found in (("sources", announced), ("ggml's sources", begins), ("objects", linked))
            if not found
        ]
        raise BuildError(
            "ape-script-unreadable",
            f"upstream's script does not say how many {', '.join(lacking)} there were",
            why="its output has another form than that of 0.10.x",
            hint=f"look at the log, and at ci/ape/script_log.py: {log}",
        )
    core = [line for line in lines[begins[-1] + 1 :] if _CORE.match(line)]
    sources = announced[-1]
    if kind == "vulkan":
        shaders = [int(match[1]) for line in lines if (match := _SHADERS.search(line))]
        # One more for the backend itself.
        sources = max(sources, *shaders) + 1
    return ObjectCount(
        announced=sources,
        core=len(core),
        linked=linked[-1],
        found=sum(1 for folder in home.glob(_BUILD_FOLDERS) for _ in folder.rglob("*.o")),
    )
