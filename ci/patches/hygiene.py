"""Judging a patch series that applies: which patches hang together, and would capturing give them again.

All on git objects in a repository that is thrown away, so it is cheap and touches nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Final

from ci.git import Repository
from ci.patches.lint import lint_series
from ci.patches.making import Work, mail_header, make_patch
from ci.patches.model import AppliedPatch
from ci.patches.objects import apply_series, apply_to_tree, links_of, write_base
from ci.patches.own_files import OwnWarnings, find_warnings, own_files
from ci.patches.series import SUFFIX, Patch, Series, read_series, require_valid
from ci.patches.upstreams import borrowing
from ci.paths import Layout
from ci.pins import SourcePin
from ci.sources.lanes import find_lane
from ci.sources.vendoring import vendor
from opencoti.console import Console
from opencoti.errors import BuildError

# A file of this name is found by its folder and named by nobody.
_EVERYWHERE: Final = "CMakeLists.txt"


@dataclass(frozen=True, kw_only=True)
class Dependants:
    """Which later patches need one.

    Attributes:
        unfitting: they do not apply without it.
        users: they apply, but name a file that it adds, so they would not compile.
    """

    name: str
    unfitting: tuple[str, ...]
    users: tuple[str, ...]

    @property
    def is_alone(self) -> bool:
        """Whether it can be left out alone."""
        return not self.unfitting and not self.users

    def __str__(self) -> str:
        if self.is_alone:
            return f"{self.name}  can be left out alone"
        facts = [f"{name} does not apply without it" for name in self.unfitting]
        facts += [f"{name} uses its files" for name in self.users]
        return f"{self.name}  cannot: {'; '.join(facts)}"


@dataclass(frozen=True, kw_only=True)
class RoundTrip:
    """Whether capturing a patch gives its file again; `why` is empty if it does."""

    name: str
    why: str


@dataclass(frozen=True, kw_only=True)
class HygieneReport:
    """What `judge` found. `warnings` is none where they were not looked for."""

    lane: str
    dependants: tuple[Dependants, ...]
    round_trips: tuple[RoundTrip, ...]
    own: tuple[str, ...]
    warnings: OwnWarnings | None

    @property
    def is_clean(self) -> bool:
        """Whether nothing has to be mended."""
        return not any(trip.why for trip in self.round_trips) and not (self.warnings and self.warnings.lines)

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        return [
            f"lane:      {self.lane}, {len(self.dependants)} patches, {len(self.own)} files of their own",
            *(f"leave out: {item}" for item in self.dependants),
            *(f"capture:   {trip.name}  {trip.why or 'gives the same bytes'}" for trip in self.round_trips),
            *(self.warnings.text_lines() if self.warnings else ()),
        ]

    def as_dict(self) -> dict[str, object]:
        """Return the report as data, the form that `--json` prints."""
        return {
            "lane": self.lane,
            "is_clean": self.is_clean,
            "own_files": list(self.own),
            "patches": [
                {
                    "name": item.name,
                    "can_be_left_out": item.is_alone,
                    "needed_to_apply_by": list(item.unfitting),
                    "used_by": list(item.users),
                    "capture_differs": trip.why or None,
                }
                for item, trip in zip(self.dependants, self.round_trips, strict=True)
            ],
            "warnings": self.warnings.as_dict() if self.warnings else None,
        }


def judge(
    layout: Layout, console: Console, *, lane: str = "auto", has_warnings: bool = False
) -> HygieneReport:
    """Judge the series of a lane.

    Args:
        layout: the checkout.
        console: gets progress.
        lane: whose series.
        has_warnings: compile the files that the series adds; a build must have been configured.

    Raises:
        BuildError: `patch-failed`, `patch-ambiguous`, the series does not apply.
        MissingError: `warnings-no-build`.
        OpencotiError: what `vendor` raises.
    """
    found = find_lane(layout, lane)
    series = read_series(found.series)
    require_valid(series)
    pin = SourcePin.load(found.pin)
    source = vendor(layout, pin, console)
    with borrowing(layout, [source.objects]) as repository:
        lint_series(series, links_of(repository, source.tree))
        applied = apply_series(repository, write_base(repository, pin, source.tree), series.patches)
        trees = (source.tree, *(patch.tree for patch in applied))
        dependants = tuple(_dependants(repository, series, trees))
        trips = tuple(_round_trips(repository, series, applied, source.tree))
    own = own_files(series)
    return HygieneReport(
        lane=found.name,
        dependants=dependants,
        round_trips=trips,
        own=own,
        warnings=find_warnings(layout, console, own) if has_warnings else None,
    )


def _dependants(repository: Repository, series: Series, trees: tuple[str, ...]) -> Iterator[Dependants]:
    """Leave out each patch in turn and apply those after it; one that fails is left out too."""
    for at, patch in enumerate(series.patches):
        tree, unfitting = trees[at], []
        for later in series.patches[at + 1 :]:
            try:
                tree, _ = apply_to_tree(repository, later, tree)
            except BuildError:
                unfitting.append(later.name)
        users = [
            later.name
            for later in series.patches[at + 1 :]
            if later.name not in unfitting and _uses(later, patch)
        ]
        yield Dependants(name=patch.name, unfitting=tuple(unfitting), users=tuple(users))


def _uses(later: Patch, patch: Patch) -> bool:
    """Tell whether a patch names, in the lines that it adds, a file that another one makes.

    A line that asks whether the file is there can do without it.
    """
    made = {PurePosixPath(change.name).name for change in patch.parsed.changes if change.is_new}
    names = [rb"(?<![\w.-])" + re.escape(name.encode()) for name in made if name != _EVERYWHERE]
    added = [
        line
        for change in later.parsed.changes
        for hunk in change.hunks
        for line in hunk.new
        if line not in hunk.old and b"__has_include(" not in line
    ]
    return any(re.search(name, line) for line in added for name in names)


def _round_trips(
    repository: Repository, series: Series, applied: tuple[AppliedPatch, ...], source: str
) -> Iterator[RoundTrip]:
    below = source
    for at, (patch, result) in enumerate(zip(series.patches, applied, strict=True)):
        before = replace(series, patches=series.patches[:at])
        work = Work(parent_tree=below, tree=result.tree)
        header = mail_header(patch.title, patch.description)
        try:
            made, _ = make_patch(repository, before, work, patch.name.removesuffix(SUFFIX), header, source)
            why = _first_difference(patch.data, made.data)
        except BuildError as error:
            why = error.why
        yield RoundTrip(name=patch.name, why=why)
        below = result.tree


def _first_difference(old: bytes, new: bytes) -> str:
    if old == new:
        return ""
    pairs = zip(old.split(b"\n"), new.split(b"\n"), strict=False)
    number = next((at for at, (a, b) in enumerate(pairs, start=1) if a != b), 0)
    where = f"line {number}" if number else "its end"
    return f"capturing again gives other bytes, first at {where} (`capture --replace` mends the last patch)"
