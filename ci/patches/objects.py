"""Applying patches in git's object store: trees and commits are made, no working tree is touched.

`git apply --cached` without fuzz does the work: every context line must match. A hunk may lie some lines away
from where the patch says; that is reported, and refused where the same lines stand in the file twice, since
then the nearest place is a guess (case B03).
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ci.git import Repository, split_z
from ci.patches.lint import LINK_MODE, SUBMODULE_MODE
from ci.patches.model import AppliedPatch, Offset
from ci.patches.series import Patch
from ci.pins import SourcePin
from ci.process import Completed
from ci.sources.treepath import link_problem, path_problem
from ci.sources.vendoring import origin_text
from opencoti.errors import BuildError, VerificationError

_LINE: Final = re.compile(rb"[^\n]*\n|[^\n]+")
_CHECKING: Final = re.compile(r"Checking patch (.*)\.\.\.")
_OFFSET: Final = re.compile(r"Hunk #(\d+) succeeded at \d+ \(offset (-?\d+) lines?\)\.")
_FAILED: Final = re.compile(r"error: patch failed: (.*):(\d+)")
_ERROR: Final = re.compile(r"error: (.*)")


@dataclass(frozen=True, kw_only=True)
class Base:
    """The first commit of a working tree: the pristine source."""

    commit: str
    tree: str


def write_base(repository: Repository, pin: SourcePin, tree: str) -> Base:
    """Commit the pristine tree. The id depends on the pin and the tree only."""
    message = (
        f"Pristine {pin.name} {pin.version}\n\nOrigin: {origin_text(pin)}\nUpstream-commit: {pin.commit}\n"
    )
    return Base(commit=repository.commit_tree(tree, None, message, 0), tree=tree)


@contextmanager
def private_index(repository: Repository) -> Iterator[Repository]:
    """Yield the repository with an empty index of its own, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="opencoti-index-", dir=repository.git_dir) as folder:
        yield Repository(git_dir=repository.git_dir, index=Path(folder) / "index")


def apply_series(
    repository: Repository, base: Base, patches: tuple[Patch, ...], done: tuple[AppliedPatch, ...] = ()
) -> tuple[AppliedPatch, ...]:
    """Make one commit per patch on top of `base` and return them all.

    Args:
        repository: where the objects are and go.
        base: what the first patch applies to.
        patches: the whole series, linted.
        done: the first patches of it, applied by an earlier run.

    Raises:
        BuildError: `patch-failed`, `patch-ambiguous`; later patches are not tried.
    """
    applied = list(done)
    with private_index(repository) as indexed:
        indexed.run("read-tree", applied[-1].tree if applied else base.tree)
        for patch in patches[len(done) :]:
            parent, tree = (applied[-1].commit, applied[-1].tree) if applied else (base.commit, base.tree)
            applied.append(_apply_one(indexed, patch, parent, tree, len(applied) + 1))
    return tuple(applied)


def apply_to_tree(repository: Repository, patch: Patch, tree: str) -> tuple[str, tuple[Offset, ...]]:
    """Apply one patch to a tree; return the id of the new tree, and the offsets."""
    with private_index(repository) as indexed:
        indexed.run("read-tree", tree)
        offsets = _apply_to_index(indexed, patch, tree)
        return indexed.write_tree(), offsets


def _apply_one(indexed: Repository, patch: Patch, parent: str, tree: str, number: int) -> AppliedPatch:
    offsets = _apply_to_index(indexed, patch, tree)
    new_tree = indexed.write_tree()
    # Whole, so that a commit that is captured again keeps what was said of it.
    said = f"{patch.title}\n\n{patch.description}".rstrip()
    message = f"{said}\n\nPatch: {patch.name}\nPatch-SHA256: {patch.sha256}\n"
    return AppliedPatch(
        name=patch.name,
        sha256=patch.sha256,
        commit=indexed.commit_tree(new_tree, parent, message, number),
        tree=new_tree,
        title=patch.title,
        offsets=offsets,
    )


def _apply_to_index(indexed: Repository, patch: Patch, tree: str) -> tuple[Offset, ...]:
    done = indexed.try_run(
        "apply", "--cached", "--verbose", "--whitespace=nowarn", "-p1", "-", stdin=patch.data
    )
    if not done.is_ok:
        raise _failed(patch, done)
    offsets = _offsets(patch, done.error_text)
    _refuse_guesses(indexed, patch, tree, offsets)
    return offsets


def _failed(patch: Patch, done: Completed) -> BuildError:
    lines = done.error_text.splitlines()
    places = [_place(patch, match[1], int(match[2])) for line in lines if (match := _FAILED.fullmatch(line))]
    reasons = [
        match[1] for line in lines if (match := _ERROR.fullmatch(line)) and "while searching" not in line
    ]
    why = (
        f"the lines around {'; '.join(places)} are not those of the patch"
        if places
        else "; ".join(reasons[:2])
    )
    return BuildError(
        "patch-failed",
        f"patch {patch.name} does not apply",
        why=why or f"git apply ended with code {done.code}",
        hint="the working tree is as it was; mend the patch as docs/how-to/patch-the-engine.md says",
    )


def _place(patch: Patch, name: str, line: int) -> str:
    hunks = [
        hunk.number
        for change in patch.parsed.changes
        if name in change.names
        for hunk in change.hunks
        if hunk.old_start == line
    ]
    return f"{name}:{line} (hunk {hunks[0]})" if hunks else f"{name}:{line}"


def _offsets(patch: Patch, report: str) -> tuple[Offset, ...]:
    """Read the offsets from git's report, which goes through the changes in the order of the patch."""
    found: list[Offset] = []
    names = iter([change.name for change in patch.parsed.changes])
    name = ""
    for line in report.splitlines():
        if _CHECKING.fullmatch(line):
            name = next(names, name)
        elif match := _OFFSET.fullmatch(line):
            found.append(Offset(file=name, hunk=int(match[1]), lines=int(match[2])))
    return tuple(found)


def _refuse_guesses(indexed: Repository, patch: Patch, tree: str, offsets: tuple[Offset, ...]) -> None:
    for offset in offsets:
        change = next(change for change in patch.parsed.changes if change.name == offset.file)
        content = indexed.run("cat-file", "blob", f"{tree}:{change.old_name}").stdout
        wanted = change.hunks[offset.hunk - 1].old
        count = count_runs(_LINE.findall(content), wanted)
        if count > 1:
            raise BuildError(
                "patch-ambiguous",
                f"patch {patch.name} does not say where {offset.file}, hunk {offset.hunk} belongs",
                why=f"its lines have moved, and they stand in the file {count} times",
                hint="capture the patch again for this source, or give the hunk more context lines",
            )


def count_runs(lines: list[bytes], wanted: tuple[bytes, ...]) -> int:
    """Count where the lines `wanted` stand one after another in `lines`."""
    size = len(wanted)
    return sum(tuple(lines[at : at + size]) == wanted for at in range(len(lines) - size + 1)) if size else 0


def links_of(repository: Repository, tree: str) -> dict[str, str]:
    """Return the symbolic links of a tree, path to target."""
    entries = split_z(repository.run("ls-tree", "-r", "-z", "--full-tree", tree).stdout)
    links = [entry for entry in entries if entry.startswith(LINK_MODE)]
    return {entry.partition("\t")[2]: _blob(repository, entry.split()[2]) for entry in links}


def _blob(repository: Repository, object_id: str) -> str:
    return os.fsdecode(repository.run("cat-file", "blob", object_id).stdout)


def check_result(repository: Repository, base_tree: str, tree: str) -> None:
    """Judge what git really made of a series, whatever the lint read in the patches.

    Raises:
        VerificationError: `patched-tree-unsafe`.
    """
    raw = split_z(repository.run("diff-tree", "-r", "-z", "--raw", "--no-renames", base_tree, tree).stdout)
    changes = {path: facts.split()[1] for facts, path in zip(raw[::2], raw[1::2], strict=True)}
    links = links_of(repository, tree) if LINK_MODE in changes.values() else {}
    for path, mode in changes.items():
        problem = path_problem(path)
        if mode == SUBMODULE_MODE:
            problem = "it is a submodule"
        elif mode == LINK_MODE:
            problem = problem or link_problem(path, links[path], links)
        if problem:
            raise VerificationError(
                "patched-tree-unsafe",
                f"the patched tree is refused, for {path[:120]!r}",
                why=problem,
                hint="nothing was changed; find the patch that does this (`git log -- PATH` in a copy)",
            )
