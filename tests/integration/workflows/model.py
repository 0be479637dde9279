"""Reading our workflows: jobs, what a matrix makes of them, and their steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML

from tests.conftest import ROOT

FOLDER: Final = ROOT / ".github" / "workflows"


@dataclass(frozen=True, kw_only=True)
class Run:
    """One `run:` of one job, in one row of its matrix."""

    workflow: str
    job: str
    matrix: dict[str, Any]
    data: dict[str, Any]
    step: dict[str, Any]
    document: dict[str, Any]

    @property
    def title(self) -> str:
        row = ",".join(map(str, self.matrix.values()))
        return f"{self.workflow}:{self.job}({row}): {self.step.get('name')}"


def load(name: str, folder: Path = FOLDER) -> dict[str, Any]:
    """Return a workflow."""
    document: dict[str, Any] = YAML(typ="safe", pure=True).load((folder / name).read_text(encoding="utf-8"))
    return document


def all_names() -> list[str]:
    return sorted(path.name for path in FOLDER.glob("*.yml"))


def rows(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every row of the matrix of a job; one empty row without a matrix."""
    matrix = job.get("strategy", {}).get("matrix")
    if not matrix:
        return [{}]
    if "include" in matrix:
        return [dict(row) for row in matrix["include"]]
    ((name, values),) = matrix.items()
    return [{name: value} for value in values]


def runs() -> Iterator[Run]:
    """Yield every command text of every workflow."""
    for name in all_names():
        document = load(name)
        for job, data in document["jobs"].items():
            for matrix in rows(data):
                for step in data.get("steps", ()):
                    if "run" in step:
                        yield Run(
                            workflow=name, job=job, matrix=matrix, data=data, step=step, document=document
                        )
