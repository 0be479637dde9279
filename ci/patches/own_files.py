"""The files that a series adds to upstream's, and whether they compile without a warning.

Each is compiled again as the build did it, with all that its command says, but to a folder that goes away:
nothing of the build folder changes. Warnings of upstream's files are not ours and are left out.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ci import process
from ci.patches.series import Series
from ci.paths import Layout
from ci.toolchains.expiry import mark_used
from opencoti.console import Console
from opencoti.errors import MissingError, storage_error

_COMMANDS: Final = "compile_commands.json"
# `/…/common/opencoti/store.cpp:12:5: warning: unused variable 'x' [-Wunused-variable]`
_WARNING: Final = re.compile(r"(?P<file>[^:\s][^:]*):\d+:\d+: (?:warning|error|fatal error): .*")
_OUTPUT_WORDS: Final = ("-o", "-MF", "-MT", "-MQ")
_LONE_WORDS: Final = ("-MD", "-MMD")


@dataclass(frozen=True, kw_only=True)
class OwnWarnings:
    """What the compiler said about files of the series; `compiled` names those that a build compiles."""

    folder: Path
    compiled: tuple[str, ...]
    lines: tuple[str, ...]

    def text_lines(self) -> Iterator[str]:
        """Yield the findings as lines of text."""
        yield f"warnings:  {len(self.lines)} in {len(self.compiled)} files compiled as in {self.folder}"
        yield from (f"  {line}" for line in self.lines)

    def as_dict(self) -> dict[str, object]:
        """Return the findings as data."""
        return {"folder": str(self.folder), "compiled": list(self.compiled), "lines": list(self.lines)}


def own_files(series: Series) -> tuple[str, ...]:
    """Return the paths that the series adds and does not take away again, sorted."""
    found: set[str] = set()
    for patch in series.patches:
        for change in patch.parsed.changes:
            if change.is_new:
                found.add(change.name)
            elif change.is_deleted:
                found.discard(change.name)
    return tuple(sorted(found))


def find_warnings(layout: Layout, console: Console, own: Sequence[str]) -> OwnWarnings:
    """Compile the own files of the newest configured build and return what is said about them.

    Raises:
        MissingError: `warnings-no-build`, nothing was configured yet.
    """
    commands = _newest_commands(layout)
    entries = [entry for entry in _read_commands(commands) if _own_name(entry["file"], own)]
    lines: dict[str, None] = {}
    kept = layout.cache / "tool-cache" / "warnings"
    with tempfile.TemporaryDirectory(prefix="opencoti-warnings-") as scratch:
        env = _environment(kept, scratch)
        for entry in entries:
            console.status(f"compiling {entry['file']}")
            argv = _compiling_to(entry["command"], Path(scratch) / "out.o")
            done = process.run(argv, cwd=Path(entry["directory"]), env=env)
            lines |= dict.fromkeys(_lines_of_own(done.error_text, own, is_ok=done.is_ok))
    compiled = tuple(dict.fromkeys(_own_name(entry["file"], own) for entry in entries))
    return OwnWarnings(folder=commands.parent, compiled=compiled, lines=tuple(lines))


def _newest_commands(layout: Layout) -> Path:
    # The docker engine's paths are those inside a container.
    found = [path for path in (layout.build / "stages" / "host").glob(f"cpu-*/{_COMMANDS}") if path.is_file()]
    if not found:
        raise MissingError(
            "warnings-no-build",
            "there is no configured build to look for warnings with",
            why=f"no {_COMMANDS} lies under {layout.build / 'stages' / 'host'}",
            hint="run `python -m ci make --engine host` first",
        )
    return max(found, key=lambda path: path.stat().st_mtime_ns)


def _read_commands(path: Path) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return entries


def _own_name(file: str, own: Sequence[str]) -> str:
    """Return the path inside the tree of a file that is the series' own, else an empty text.

    A file that CMake generates from an own template (`identity.cpp` of `identity.cpp.in`) counts.
    """
    return next((name for name in own if file.endswith(f"/{name.removesuffix('.in')}")), "")


def _compiling_to(command: str, out: Path) -> list[str]:
    """Return a compile command with another output, and without files of dependencies."""
    words, skip = [], False
    for word in shlex.split(command):
        if skip or word in _LONE_WORDS:
            skip = False
        elif word in _OUTPUT_WORDS:
            skip = True
        else:
            words.append(word)
    return [*words, "-o", str(out)]


def _environment(kept: Path, scratch: str) -> Mapping[str, str]:
    """Return what the compiler wrappers need; zig's own cache is kept, since it takes a minute to fill."""
    try:
        kept.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise storage_error(exc, f"cannot make {kept}") from exc
    mark_used(kept)
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "LC_ALL": "C.UTF-8",
        "HOME": scratch,
        "TMPDIR": scratch,
        "ZIG_GLOBAL_CACHE_DIR": str(kept),
        "ZIG_LOCAL_CACHE_DIR": str(kept),
    }


def _lines_of_own(text: str, own: Sequence[str], *, is_ok: bool) -> Iterator[str]:
    """Yield warnings about own files, and errors wherever they are: without an end nothing was judged."""
    for line in text.splitlines():
        match = _WARNING.fullmatch(line)
        if match and (_own_name(match["file"], own) or not is_ok):
            yield line
