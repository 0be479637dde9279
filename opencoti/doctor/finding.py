"""One thing that was looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from opencoti.errors import OpencotiError

Status = Literal["ok", "note", "warn", "fail"]
_MARKS: Final = {"ok": "ok  ", "note": "    ", "warn": "WARN", "fail": "FAIL"}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        topic: the heading that it stands under.
        status: `fail` means that the engine cannot be used until it is fixed, `warn` that something is worse
            than it could be, `note` that it is neither good nor bad.
        found: what is there.
        advice: what to do.
        exit_code: of the command, if this is what is wrong.
        data: more of it, for programs.
    """

    topic: str
    name: str
    status: Status
    found: str
    advice: str = ""
    exit_code: int = 0
    data: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_error(cls, topic: str, name: str, error: OpencotiError, *, status: Status = "fail") -> Finding:
        """Make a finding of a failure."""
        return cls(
            topic=topic,
            name=name,
            status=status,
            found=str(error),
            advice=error.hint,
            exit_code=error.exit_code if status == "fail" else 0,
            data={"error": error.error_id},
        )

    def as_lines(self) -> list[str]:
        """Render as lines of text."""
        lines = [f"  {_MARKS[self.status]} {self.name:<14} {self.found}"]
        return (
            [*lines, f"       {'':<14} fix: {self.advice}"] if self.advice and self.status != "ok" else lines
        )

    def as_dict(self) -> dict[str, Any]:
        """Return it as data."""
        return {
            "topic": self.topic,
            "name": self.name,
            "status": self.status,
            "found": self.found,
            "advice": self.advice,
            "data": dict(self.data),
        }
