"""Rules about a series that git knows nothing of: they are looked at by `check`, and say what to mend. Pure.

- The README of a series tells of each patch, under a heading with its name, whether it could go upstream.
- In the ape lane a patch that adds a source file to ggml's core names it in every list that such a file must
  be in: the GPU libraries compile the core for themselves, and one that lacks a file loads nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from ci.patches.names import PatchSyntaxError
from ci.patches.parsing import FileChange
from ci.patches.series import SUFFIX, Patch, Series

README: Final = "README.md"
_UPSTREAM_NOTE: Final = "**Upstream?**"
_CORE_SOURCE: Final = re.compile(r"llama\.cpp/ggml/src/[^/]+\.(?:c|cpp)")
# The GPU scripts; the list that upstream's own patch step copies into the library; that copy, read by make.
# That the program is linked again, the third thing to do by hand upstream, is done by the build (`mirror`).
CORE_LISTS: Final = (
    "llamafile/build-functions.sh",
    "llama.cpp.patches/llamafile-files/BUILD.mk",
    "llama.cpp/BUILD.mk",
)


def series_problems(series: Series, readme: str | None, *, lane: str) -> tuple[str, ...]:
    """Return what is wrong with a series, one sentence each.

    Args:
        series: its patches.
        readme: the text of its README, None if it has none.
        lane: `ape` or `elf`.
    """
    return (*note_problems(series, readme), *(core_problems(series) if lane == "ape" else ()))


def note_problems(series: Series, readme: str | None) -> tuple[str, ...]:
    """Return which patches the README does not describe, or whose way upstream it does not tell."""
    if not series.patches:
        return ()
    if readme is None:
        return (f"the series has no {README}",)
    sections = dict(_sections(readme))
    problems = []
    for patch in series.patches:
        stem = patch.name.removesuffix(SUFFIX)
        text = sections.get(stem)
        if text is None:
            problems.append(f"{README} has no section `## {stem}`")
        elif _UPSTREAM_NOTE not in text:
            problems.append(f"the section of {stem} in {README} does not say {_UPSTREAM_NOTE}")
    return tuple(problems)


def core_problems(series: Series) -> tuple[str, ...]:
    """Return which new core sources are missing in which list. A malformed patch has other faults."""
    return tuple(problem for patch in series.patches for problem in _core_problems(patch))


def _core_problems(patch: Patch) -> Iterator[str]:
    try:
        changes = patch.parsed.changes
    except PatchSyntaxError:
        return
    for change in changes:
        if not change.is_new or not _CORE_SOURCE.fullmatch(change.new_name):
            continue
        name = change.new_name.rpartition("/")[2]
        lacking = [place for place in CORE_LISTS if not _adds(changes, place, name.encode())]
        if lacking:
            yield f"{patch.name} adds {change.new_name} and does not name it in {', '.join(lacking)}"


def _adds(changes: tuple[FileChange, ...] | list[FileChange], place: str, word: bytes) -> bool:
    """Tell whether a patch brings a line with `word` into the file `place`."""
    hunks = [hunk for change in changes if change.new_name == place for hunk in change.hunks]
    pattern = re.compile(rb"(?<![\w.-])" + re.escape(word) + rb"(?![\w.-])")
    return any(
        sum(bool(pattern.search(line)) for line in hunk.new)
        > sum(bool(pattern.search(line)) for line in hunk.old)
        for hunk in hunks
    )


def _sections(readme: str) -> Iterator[tuple[str, str]]:
    parts = re.split(r"^## +(.+?) *$", readme, flags=re.MULTILINE)
    yield from zip(parts[1::2], parts[2::2], strict=True)
