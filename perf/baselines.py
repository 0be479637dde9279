"""Baselines: the samples of earlier runs, kept per device, model and flags, in one JSON file per key.

A run is added only when it is asked for, only when every row counts, and never when the gate found it slower:
else the next run would be compared with the loss. A run that is faster for sure is not added either until
somebody says that it is meant (`is_forced`): one lucky run must not make all later ones fail (case B59).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from opencoti.errors import ConfigError, VerificationError, storage_error
from opencoti.files import write_atomic
from opencoti.hashing import sha256_bytes
from opencoti.jsonio import parse_strict
from perf.gate import FLOOR_S, judge
from perf.results import PairedReport, Row

SCHEMA: Final = "opencoti.perf-baseline/1"
MAX_RUNS: Final = 7


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """Runs of one bench on one device with one model and the same flags, oldest first."""

    key: Mapping[str, str]
    runs: tuple[Mapping[str, tuple[float, ...]], ...] = ()

    def samples(self, row: str) -> list[tuple[float, ...]]:
        """Return the samples of a row, one tuple per run that has it."""
        return [run[row] for run in self.runs if run.get(row)]


def baseline_path(folder: Path, key: Mapping[str, str]) -> Path:
    """Return the file of a key; another device, driver, model or flag gives another file."""
    digest = sha256_bytes(json.dumps(dict(key), sort_keys=True).encode())
    return folder / f"{key['bench']}-{digest[:16]}.json"


def load_baseline(folder: Path, key: Mapping[str, str]) -> Baseline:
    """Return the baseline of a key, one without runs if there is none.

    Raises:
        ConfigError: `baseline-malformed`, also when the file is of another key.
    """
    path = baseline_path(folder, key)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return Baseline(key=key)
    except OSError as exc:
        raise storage_error(exc, f"cannot read {path}") from exc
    return _parse(path, parse_strict(data, f"baseline {path.name}"), key)


def _parse(path: Path, data: Any, key: Mapping[str, str]) -> Baseline:
    try:
        if data["schema"] != SCHEMA or data["key"] != dict(key):
            raise ValueError("its schema or its key is another")
        runs = tuple(
            {str(name): tuple(float(value) for value in values) for name, values in run.items()}
            for run in data["runs"]
        )
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise ConfigError(
            "baseline-malformed",
            f"cannot use the baseline {path}",
            why=f"{type(exc).__name__}: {exc}",
            hint="remove it; the gate learns anew from the next runs",
        ) from exc
    return Baseline(key=key, runs=runs)


def judged(report: PairedReport, baseline: Baseline) -> PairedReport:
    """Return the report with what the gate says of every timing of ours that counts."""
    return report.with_rows([_judged(row, baseline) for row in report.rows])


def _judged(row: Row, baseline: Baseline) -> Row:
    if row.problems or not row.is_timing:
        return row
    floor = FLOOR_S if row.unit == "s" else 0.0
    judgement = judge(row.ours, baseline.samples(row.key), is_lower_better=row.better == "lower", floor=floor)
    return replace(row, judgement=judgement)


def accept(folder: Path, baseline: Baseline, report: PairedReport, *, is_forced: bool = False) -> Baseline:
    """Add a judged run to a baseline and write it.

    Raises:
        VerificationError: `baseline-refused`: a row does not count, is slower, or is faster
            and not `is_forced`.
        StorageError: the file cannot be written.
    """
    if reason := _refusal(report, is_forced=is_forced):
        raise VerificationError(
            "baseline-refused",
            "this run does not become part of the baseline",
            why=reason,
            hint="run it again; what is meant to be faster is accepted with --accept-faster",
        )
    run = {row.key: row.ours for row in report.rows if row.is_timing}
    # After a change that made things faster, the old runs would only hide a loss.
    kept = () if is_forced else baseline.runs
    grown = replace(baseline, runs=(*kept, run)[-MAX_RUNS:])
    _write(baseline_path(folder, baseline.key), grown)
    return grown


def _refusal(report: PairedReport, *, is_forced: bool) -> str:
    for row in report.rows:
        if row.problems:
            return f"{row.key} does not count: {row.problems[0]}"
        verdict = row.judgement.verdict if row.judgement else ""
        if verdict == "slower" or (verdict == "faster" and not is_forced):
            return f"{row.key} is {verdict} than the baseline"
    return ""


def _write(path: Path, baseline: Baseline) -> None:
    data = {
        "schema": SCHEMA,
        "key": dict(baseline.key),
        "runs": [{name: list(values) for name, values in run.items()} for run in baseline.runs],
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise storage_error(exc, f"cannot make {path.parent}") from exc
    write_atomic(path, (json.dumps(data, indent=1) + "\n").encode())
