"""What a verification found, as data and as text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["missing", "extra", "changed", "moved"]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One thing that is not what the manifest says.

    Attributes:
        kind: what is wrong with it.
        subject: member name, or `the file`, `the loader`, `the chunk table`, `the index`, `the directory`,
            `padding and directory`.
        detail: expected and found values.
    """

    kind: Kind
    subject: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind:<8} {self.subject}: {self.detail}"


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """The result of one verification.

    Attributes:
        proof: what vouches for every byte: the chunk table, the whole file's SHA-256, or both.
        members: how many members were compared.
    """

    artifact: str
    sha256: str
    size: int
    version_string: str
    proof: tuple[Literal["chunks", "sha256"], ...]
    members: int
    differences: tuple[Difference, ...]

    @property
    def is_ok(self) -> bool:
        """Whether the artifact is what its manifest says."""
        return not self.differences

    def text(self) -> str:
        """Return one line when all is well, else one line per difference."""
        if self.is_ok:
            proof = " and ".join(self.proof)
            return (
                f"ok: {self.artifact}: {self.version_string}, {self.size} bytes, {self.members} members, "
                f"every byte proved by {proof}"
            )
        return "\n".join(str(difference) for difference in self.differences)

    def as_dict(self) -> dict[str, object]:
        """Return the report as data, the form that `--json` prints."""
        return {
            "ok": self.is_ok,
            "artifact": self.artifact,
            "sha256": self.sha256,
            "size": self.size,
            "versionString": self.version_string,
            "proof": list(self.proof),
            "members": self.members,
            "differences": [
                {"kind": item.kind, "subject": item.subject, "detail": item.detail}
                for item in self.differences
            ],
        }
