"""Trying a patch series on another upstream source: what fits, what moved, what is there already, what not.

Everything happens in a repository that is thrown away (`upstreams.borrowing`). With an output folder, patches
that could be carried over are written anew for the new source; the folder appears whole or not at all.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ci.git import Repository
from ci.patches.carrying import STATE_TEXTS, Carried, Conflict, carry
from ci.patches.lint import lint_series
from ci.patches.making import Work, mail_header, make_patch
from ci.patches.model import AppliedPatch
from ci.patches.objects import apply_series, links_of, write_base
from ci.patches.record import write_lock
from ci.patches.series import SUFFIX, Patch, Series, read_series, require_valid
from ci.patches.upstreams import Upstream, borrowing, find_upstream
from ci.paths import Layout
from ci.pins import SourcePin
from ci.sources.lanes import find_lane
from ci.sources.vendoring import vendor
from opencoti.console import Console
from opencoti.errors import BuildError, StorageError, UsageError, VerificationError, storage_error


@dataclass(frozen=True, kw_only=True)
class PatchOutcome:
    """What became of one patch of the series.

    Attributes:
        refreshed: the patch for the new source; none where it conflicts or is upstream.
        without: patches before it that could not be carried over; it was tried without them.
    """

    patch: Patch
    carried: Carried
    refreshed: Patch | None
    without: tuple[str, ...]

    def lines(self) -> Iterator[str]:
        """Yield the outcome as lines of text."""
        without = f" (tried without {', '.join(self.without)})" if self.without else ""
        yield f"{self.patch.name}  {STATE_TEXTS[self.carried.state]}{without}"
        yield from (f"    {offset}" for offset in self.carried.offsets)
        yield from (f"    merged: {text}" for text in self.carried.merged)
        yield from (f"    {conflict}" for conflict in self.carried.conflicts)

    def as_dict(self) -> dict[str, object]:
        """Return the outcome as data."""
        return {
            "name": self.patch.name,
            "title": self.patch.title,
            "state": self.carried.state,
            "offsets": [
                {"file": item.file, "hunk": item.hunk, "lines": item.lines} for item in self.carried.offsets
            ],
            "merged": list(self.carried.merged),
            "conflicts": [
                {"file": item.file, "hunks": list(item.hunks), "message": item.message}
                for item in self.carried.conflicts
            ],
            "without": list(self.without),
            "refreshed_sha256": self.refreshed.sha256 if self.refreshed else None,
        }


@dataclass(frozen=True, kw_only=True)
class RebaseReport:
    """What became of a series on another source. `written` is the output folder, if one was asked for."""

    lane: str
    old: SourcePin
    new: Upstream
    outcomes: tuple[PatchOutcome, ...]
    written: Path | None = None

    @property
    def is_carried(self) -> bool:
        """Whether no patch conflicts."""
        return all(outcome.carried.state != "conflict" for outcome in self.outcomes)

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        conflicts = sum(outcome.carried.state == "conflict" for outcome in self.outcomes)
        return [
            f"lane:    {self.lane}",
            f"from:    {self.old.name} {self.old.version}",
            f"onto:    {self.new.name}, tree {self.new.tree}",
            *(line for outcome in self.outcomes for line in outcome.lines()),
            f"result:  {len(self.outcomes) - conflicts} of {len(self.outcomes)} patches carried over"
            + (f", {conflicts} to mend by hand" if conflicts else ""),
            *([f"written: {self.written}"] if self.written else []),
        ]

    def as_dict(self) -> dict[str, object]:
        """Return the report as data, the form that `--json` prints."""
        return {
            "lane": self.lane,
            "from": {"name": self.old.name, "version": self.old.version, "commit": self.old.commit},
            "onto": {"name": self.new.name, "tree": self.new.tree},
            "is_carried": self.is_carried,
            "patches": [outcome.as_dict() for outcome in self.outcomes],
            "written": str(self.written) if self.written else None,
        }


def rebase(
    layout: Layout,
    console: Console,
    onto: str,
    *,
    lane: str = "auto",
    clone: Path | None = None,
    out: Path | None = None,
) -> RebaseReport:
    """Try the series of a lane on another source; the series itself stays as it is.

    Args:
        layout: the checkout.
        console: gets progress.
        onto: what `find_upstream` takes, with `clone`.
        lane: whose series.
        clone: a git repository of this machine in which `onto` is looked up.
        out: folder to make, with the patches that could be carried over, and a `series.lock` when all were.

    Raises:
        UsageError: `rebase-onto`; `rebase-out`, the folder is there and not empty.
        BuildError: `patch-failed`, the series does not even apply to its own source.
        MissingError: `git-too-old`.
        OpencotiError: what `vendor` raises.
    """
    found = find_lane(layout, lane)
    if out is not None:
        _require_free(out)
    series = read_series(found.series)
    require_valid(series)
    pin = SourcePin.load(found.pin)
    source = vendor(layout, pin, console)
    new = find_upstream(layout, onto, console, like=pin, clone=clone)
    with borrowing(layout, [source.objects, new.objects]) as repository:
        lint_series(series, links_of(repository, source.tree))
        base = write_base(repository, pin, source.tree)
        applied = apply_series(repository, base, series.patches)
        outcomes = _carry_all(repository, series, source.tree, applied, new.tree)
        report = RebaseReport(lane=found.name, old=pin, new=new, outcomes=outcomes)
        return replace(report, written=_write(repository, report, out)) if out else report


def _carry_all(
    repository: Repository, series: Series, old: str, applied: tuple[AppliedPatch, ...], new: str
) -> tuple[PatchOutcome, ...]:
    target, before = new, old
    outcomes: list[PatchOutcome] = []
    done = replace(series, patches=())
    for patch, old_patch in zip(series.patches, applied, strict=True):
        carried = carry(repository, patch, target, before=before, after=old_patch.tree)
        without = tuple(o.patch.name for o in outcomes if o.carried.state == "conflict")
        outcome = _refreshed(repository, done, patch, carried, source=new, below=target)
        outcomes.append(replace(outcome, without=without))
        if outcome.refreshed is not None:
            done = replace(done, patches=(*done.patches, outcome.refreshed))
        target, before = outcome.carried.tree, old_patch.tree
    return tuple(outcomes)


def _refreshed(
    repository: Repository, done: Series, patch: Patch, carried: Carried, *, source: str, below: str
) -> PatchOutcome:
    """Make the patch for the new source; one that cannot be written safely is a conflict after all."""
    if carried.tree == below:
        return PatchOutcome(patch=patch, carried=carried, refreshed=None, without=())
    header = mail_header(patch.title, patch.description)
    work = Work(parent_tree=below, tree=carried.tree)
    try:
        made, _ = make_patch(repository, done, work, patch.name.removesuffix(SUFFIX), header, source)
    except (BuildError, VerificationError) as error:
        conflict = Conflict(file=patch.parsed.changes[0].name, hunks=(), message=error.why)
        carried = Carried(state="conflict", tree=below, conflicts=(conflict,))
        return PatchOutcome(patch=patch, carried=carried, refreshed=None, without=())
    return PatchOutcome(patch=patch, carried=carried, refreshed=made, without=())


def _require_free(out: Path) -> None:
    if out.is_symlink() or (out.exists() and not (out.is_dir() and not any(out.iterdir()))):
        raise UsageError(
            "rebase-out",
            f"--out {out} is there already",
            why="patches of two sources must not mix",
            hint="name a folder that does not exist, or an empty one",
        )


def _write(repository: Repository, report: RebaseReport, out: Path) -> Path:
    """Write the refreshed patches to a folder beside `out`, then put it in place in one step."""
    out = out.absolute()
    patches = tuple(outcome.refreshed for outcome in report.outcomes if outcome.refreshed)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
        try:
            _fill(repository, report, patches, temporary)
            temporary.chmod(0o755)
            os.replace(temporary, out)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    except OSError as exc:
        raise _cannot_write(exc, out) from exc
    return out


def _fill(repository: Repository, report: RebaseReport, patches: tuple[Patch, ...], folder: Path) -> None:
    for patch in patches:
        (folder / patch.name).write_bytes(patch.data)
    if report.is_carried:
        base = write_base(repository, report.old, report.new.tree)
        applied = apply_series(repository, base, patches)
        write_lock(folder, report.old, report.new.tree, applied)


def _cannot_write(exc: OSError, out: Path) -> StorageError:
    return storage_error(exc, f"cannot write {out}")
