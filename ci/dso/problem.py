"""The form in which a difference between a file and its rules is told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One difference from the rules: a kebab-case id, the file, and what was found."""

    problem_id: str
    file: str
    detail: str

    def __str__(self) -> str:
        return f"{self.file}: {self.detail} [{self.problem_id}]"
