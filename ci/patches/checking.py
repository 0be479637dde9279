"""The look at a lane that changes nothing: pin, working tree, series, and how the patches would fit."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ci.patches.conventions import README, series_problems
from ci.patches.lint import lint_series
from ci.patches.objects import Base, apply_series, links_of
from ci.patches.series import Series, patch_set_hash, read_series
from ci.patches.worktree import BASE_REF, TreeState, WorkTree, read_refs, read_state
from ci.paths import Layout
from ci.pins import SourcePin, SubmoduleOrigin
from ci.sources.lanes import find_lane
from ci.sources.submodule import look, recorded_commit, shown
from opencoti.console import Console
from opencoti.errors import OpencotiError, storage_error


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """What `check` found. `state` is one word: missing, interrupted, unusable, drifted, edited or clean."""

    lane: str
    pin: SourcePin
    state: str
    details: tuple[str, ...]
    series: Series
    patch_set_hash: str
    offsets: tuple[str, ...]
    problem: str
    """Why the series would not apply, empty when it would, or when there is no tree to try it on."""
    lint: tuple[str, ...] = ()
    """Rules of `ci.patches.conventions` that the series breaks."""

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        return [
            f"lane:    {self.lane}",
            f"pin:     {self.pin.name} {self.pin.version}, tree {self.pin.tree or 'not pinned'}",
            f"tree:    {self.state}" + (f" ({'; '.join(self.details)})" if self.details else ""),
            f"series:  {self.series.summary()}, set {self.patch_set_hash[:12]}",
            *(f"  {patch.name}  {patch.title}" for patch in self.series.patches),
            *(f"  INVALID {patch.name}: {patch.why}" for patch in self.series.invalid),
            *(f"  offset  {offset}" for offset in self.offsets),
            *(f"  LINT    {text}" for text in self.lint),
            *([f"  FAILS   {self.problem}"] if self.problem else []),
        ]

    def as_dict(self) -> dict[str, object]:
        """Return the report as data, the form that `--json` prints."""
        return {
            "lane": self.lane,
            "pin": {"name": self.pin.name, "version": self.pin.version, "commit": self.pin.commit},
            "pinned_tree": self.pin.tree,
            "state": self.state,
            "details": list(self.details),
            "patches": [
                {"name": patch.name, "sha256": patch.sha256, "title": patch.title}
                for patch in self.series.patches
            ],
            "invalid": [{"name": patch.name, "why": patch.why} for patch in self.series.invalid],
            "ignored": list(self.series.ignored),
            "patch_set_hash": self.patch_set_hash,
            "offsets": list(self.offsets),
            "problem": self.problem,
            "lint": list(self.lint),
        }


def check(layout: Layout, console: Console, *, lane: str = "auto") -> CheckReport:
    """Look at a lane and warn about what `apply` would stumble over; that itself is no failure.

    Raises:
        ConfigError: the pin cannot be read.
        MissingError: `lane-missing`; `submodule-uninitialized`.
        StorageError: a file of the series cannot be read.
    """
    tree = WorkTree(lane=find_lane(layout, lane))
    pin = SourcePin.load(tree.lane.pin)
    series = read_series(tree.lane.series)
    report = replace(
        _look(tree, pin, series), lint=series_problems(series, _readme(series), lane=tree.lane.name)
    )
    for patch in series.invalid:
        console.warn(f"{patch.name} is invalid: {patch.why}")
    for text in (*report.lint, *_submodule_drift(layout, pin)):
        console.warn(text)
    if report.state not in ("clean", "missing"):
        console.warn(f"the working tree is {report.state}: {'; '.join(report.details)}")
    if report.problem:
        console.warn(report.problem)
    return report


def _readme(series: Series) -> str | None:
    try:
        return (series.folder / README).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise storage_error(exc, f"cannot read {series.folder / README}") from exc


def _submodule_drift(layout: Layout, pin: SourcePin) -> tuple[str, ...]:
    """Say where a submodule is not what the pin names: its developer may just be moving on."""
    if not isinstance(pin.origin, SubmoduleOrigin):
        return ()
    state = look(layout, pin)
    folder = shown(layout, layout.sources / pin.name)
    found = [f"it holds edits, first {state.edits[0]}"] if state.edits else []
    if state.head != pin.commit:
        found.append(f"it is at {state.head[:12]}, pin {pin.path.name} says {pin.commit[:12]}")
    drift = [f"{folder}: {text}; `apply` refuses that" for text in found]
    recorded = recorded_commit(layout, pin)
    if recorded is not None and recorded != pin.commit:
        drift.append(
            f"{folder}: this checkout records commit {recorded[:12]}, pin {pin.path.name} says "
            f"{pin.commit[:12]}: `git submodule update` would bring the wrong one"
        )
    return tuple(drift)


def _look(tree: WorkTree, pin: SourcePin, series: Series) -> CheckReport:
    state, problem = "missing", ""
    details: tuple[str, ...] = ("`apply` makes it",)
    offsets: tuple[str, ...] = ()
    if tree.exists:
        with tree.locked():
            state, details = _tree_state(tree, pin)
            offsets, problem = _try_series(tree, pin, series)
    return CheckReport(
        lane=tree.lane.name,
        pin=pin,
        state=state,
        details=details,
        series=series,
        patch_set_hash=patch_set_hash(series),
        offsets=offsets,
        problem=problem,
    )


def _tree_state(tree: WorkTree, pin: SourcePin) -> tuple[str, tuple[str, ...]]:
    if tree.marker.exists():
        return "interrupted", ("a run that moved it was killed; `apply` or `reset` finishes that",)
    try:
        state = read_state(tree)
    except OpencotiError as error:
        return "unusable", (str(error),)
    if drift := _drift(tree, pin, state):
        return "drifted", (drift,)
    return ("clean", ()) if state.is_clean else ("edited", _edits(state))


def _drift(tree: WorkTree, pin: SourcePin, state: TreeState) -> str:
    base_tree = tree.repository.resolve(f"{BASE_REF}^{{tree}}")
    if pin.tree is not None and base_tree != pin.tree:
        return f"it was made from tree {(base_tree or 'unknown')[:12]}, the pin is {pin.tree[:12]}"
    if (
        state.base is None
        or not tree.repository.try_run("merge-base", "--is-ancestor", state.base, state.head).is_ok
    ):
        return f"HEAD {state.head[:12]} does not descend from the pristine source"
    return ""


def _edits(state: TreeState) -> tuple[str, ...]:
    facts = [f"{len(state.edits)} files changed, first {state.edits[0]}"] if state.edits else []
    facts += ["commits that are in no patch"] if state.has_commits else []
    facts += [f"unfinished: {', '.join(state.unfinished)}"] if state.unfinished else []
    return tuple(facts)


def _try_series(tree: WorkTree, pin: SourcePin, series: Series) -> tuple[tuple[str, ...], str]:
    """Apply the valid patches in the object store only; return the offsets, and why it would fail."""
    base = read_refs(tree).get(BASE_REF)
    base_tree = tree.repository.resolve(f"{BASE_REF}^{{tree}}")
    if base is None or base_tree is None or pin.tree not in (None, base_tree):
        return (), ""
    try:
        lint_series(series, links_of(tree.repository, base_tree))
        applied = apply_series(tree.repository, Base(commit=base, tree=base_tree), series.patches)
    except OpencotiError as error:
        return (), str(error)
    return tuple(f"{patch.name}: {offset}" for patch in applied for offset in patch.offsets), ""
