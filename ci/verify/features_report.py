"""From marks to a verdict: full, partial, vanilla. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ci.dso.elf import ElfFacts
from ci.verify.features import Features
from ci.verify.features_scan import Scan
from ci.verify.report import Difference

State = Literal["present", "partial", "missing"]
Verdict = Literal["full", "partial", "vanilla", "untouched", "foreign"]

# The interfaces between the engine's own files; names of systems and drivers are none of our business.
_ENGINE_NAME = re.compile(r"(ggml|gguf|llama|mtmd)_[a-z0-9_]+")
_ENGINE_LIBRARY = re.compile(r"lib(ggml|llama|mtmd)[^/]*")
_MEANING = {
    "full": "every patch that these files can show is in them",
    "partial": "some patches are in them, or some signs of a patch",
    "vanilla": "an engine without any patch of this series",
    "untouched": "an engine's files, none of which a patch of this series changes",
    "foreign": "no file of this engine",
}


@dataclass(frozen=True, kw_only=True)
class PatchState:
    """One patch: whether its signs are in the files that hold the code it changes.

    Attributes:
        missing: signs that are not there, each with its file.
    """

    name: str
    state: State
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FeatureReport:
    """What binaries show of a patch series.

    Attributes:
        files: every file that holds code of the engine, with the parts it holds.
        unseen: patches that these files cannot show, with the reason.
        identities: version strings found.
        problems: what does not fit together, or is not what a manifest says.
        notes: what was not looked at, and why.
    """

    subject: str
    series: str
    verdict: Verdict
    patches: tuple[PatchState, ...]
    files: dict[str, tuple[str, ...]]
    unseen: dict[str, str]
    identities: tuple[str, ...]
    problems: tuple[Difference, ...]
    notes: tuple[str, ...] = ()

    @property
    def is_ok(self) -> bool:
        """Whether nothing is missing and everything fits together."""
        return self.verdict in ("full", "untouched") and not self.problems

    def text(self) -> str:
        """Return the report for people; the first line is the answer."""
        lines = [f"{self.verdict}: {self.subject}: {_MEANING[self.verdict]}"]
        for patch in self.patches:
            lines.append(f"  {patch.state:<8} {patch.name}")
            lines += [f"           no {sign}" for sign in patch.missing]
        lines += [f"  not seen {name}: {why}" for name, why in self.unseen.items()]
        lines += [f"  says     {identity}" for identity in self.identities]
        lines += [f"  file     {label} ({', '.join(parts)})" for label, parts in self.files.items()]
        lines += [f"  {problem}" for problem in self.problems]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, object]:
        """Return the report as data."""
        return {
            "ok": self.is_ok,
            "subject": self.subject,
            "series": self.series,
            "verdict": self.verdict,
            "patches": [{"name": p.name, "state": p.state, "missing": list(p.missing)} for p in self.patches],
            "unseen": dict(self.unseen),
            "identities": list(self.identities),
            "files": {label: list(parts) for label, parts in self.files.items()},
            "differences": [
                {"kind": p.kind, "subject": p.subject, "detail": p.detail} for p in self.problems
            ],
            "notes": list(self.notes),
        }


def judge(
    subject: str,
    series: str,
    features: Features,
    scans: Sequence[Scan],
    *,
    problems: Sequence[Difference] = (),
    notes: Sequence[str] = (),
) -> FeatureReport:
    """Return the report on files that belong together."""
    parts = {scan.subject.label: _parts(scan, features) for scan in scans}
    files = {label: found for label, found in parts.items() if found}
    engine = [scan for scan in scans if scan.subject.label in files]
    states = [state for name in features.patch if (state := _patch_state(name, features, engine)) is not None]
    seen = {state.name for state in states}
    return FeatureReport(
        subject=subject,
        series=series,
        verdict=_verdict(states, has_engine=bool(engine)),
        patches=tuple(states),
        files=files,
        unseen={
            name: signs.invisible or "no file here holds the code that it changes"
            for name, signs in features.patch.items()
            if engine and name not in seen
        },
        identities=tuple(dict.fromkeys(text for scan in engine for text in scan.identities)),
        problems=(*problems, *_mixture(features, engine), *_pairing(engine)),
        notes=tuple(notes),
    )


def _parts(scan: Scan, features: Features) -> tuple[str, ...]:
    return tuple(name for name, part in features.part.items() if scan.has(part))


def _patch_state(name: str, features: Features, scans: Sequence[Scan]) -> PatchState | None:
    """Return the state of a patch, None where no file holds code that it changes."""
    found, missing = 0, []
    for scan in scans:
        for sign in features.patch[name].sign:
            if not scan.has(features.part[sign.part]):
                continue
            if scan.has(sign):
                found += 1
            else:
                missing.append(f"{sign} in {scan.subject.label}")
    if not found and not missing:
        return None
    state: State = "present" if not missing else "partial" if found else "missing"
    return PatchState(name=name, state=state, missing=tuple(missing) if found else ())


def _verdict(states: Sequence[PatchState], *, has_engine: bool) -> Verdict:
    if not states:
        return "untouched" if has_engine else "foreign"
    kinds = {state.state for state in states}
    if kinds == {"present"}:
        return "full"
    return "vanilla" if kinds == {"missing"} else "partial"


def _mixture(features: Features, scans: Sequence[Scan]) -> Iterator[Difference]:
    """Yield a difference if some files have patches and others, which should, have none at all."""
    signs = [sign for patch in features.patch.values() for sign in patch.sign]
    with_any: list[str] = []
    with_none: list[str] = []
    for scan in scans:
        own = [sign for sign in signs if scan.has(features.part[sign.part])]
        if own:
            (with_any if any(scan.has(sign) for sign in own) else with_none).append(scan.subject.label)
    if with_any and with_none:
        detail = f"it has no patch at all, {with_any[0]} has: they are from different cuts"
        yield from (Difference(kind="changed", subject=label, detail=detail) for label in with_none)


def _pairing(scans: Sequence[Scan]) -> Iterator[Difference]:
    """Yield what tells that files are from different cuts: names that nobody offers, two identities."""
    facts = [scan.elf for scan in scans if scan.elf is not None]
    offered = frozenset[str]().union(*(item.exports for item in facts))
    names = {name for item in facts for name in (item.soname, item.path.name) if name}
    for item in facts:
        lacking = [name for name in item.undefined if _ENGINE_NAME.fullmatch(name) and name not in offered]
        if lacking and _has_its_libraries(item, names):
            detail = f"it needs {len(lacking)} names that no other file offers, {lacking[0]} for example"
            yield Difference(kind="changed", subject=item.path.name, detail=f"from another cut: {detail}")
    identities = {text for scan in scans for text in scan.identities}
    if len(identities) > 1:
        detail = f"they name different cuts: {', '.join(sorted(identities))}"
        yield Difference(kind="changed", subject="the files", detail=detail)


def _has_its_libraries(item: ElfFacts, names: set[str]) -> bool:
    needed = {name for name in item.needed if _ENGINE_LIBRARY.fullmatch(name)}
    return bool(needed) and needed <= names
