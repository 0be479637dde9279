"""Which build an engine says it is, compared with what its manifest says. Pure (case B09)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from opencoti.errors import VerificationError
from opencoti.evidence import BuildIdentity
from opencoti.manifest import Manifest

_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_VERSION: Final = re.compile(r"opencoti-[0-9A-Za-z][0-9A-Za-z._+-]{0,150}")
_LINES: Final = {
    "opencoti": "version_string",
    "patch set": "patch_set",
    "upstream commit": "upstream_commit",
}
_SHAPES: Final = {"version_string": _VERSION, "patch_set": _DIGEST, "upstream_commit": _COMMIT}


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What an engine must say. None stands for any well-formed value, an empty set for any commit."""

    version_string: str | None = None
    patch_set: str | None = None
    upstream_commits: frozenset[str] = frozenset()

    @classmethod
    def from_manifest(cls, manifest: Manifest) -> Expected:
        """Take the identity of an artifact from its manifest."""
        return cls(
            version_string=manifest.version_string,
            patch_set=manifest.patch_set_hash,
            upstream_commits=frozenset(source.commit for source in manifest.sources),
        )


def from_props(document: Any) -> dict[str, str]:
    """Take the identity from the answer of `/props`; what is not there is left out."""
    given = document.get("opencoti") if isinstance(document, dict) else None
    if not isinstance(given, dict):
        return {}
    return {name: given[name] for name in _SHAPES if isinstance(given.get(name), str)}


def from_version_output(text: str) -> dict[str, str]:
    """Take the identity from what `--version` prints, lines like `patch set: 0123…`."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        label, separator, value = line.strip().partition(": ")
        # The loader says `opencoti: notice: …` when it unpacks much: a value of the right form wins.
        name = _LINES.get(label, "") if separator else ""
        if name and not _SHAPES[name].fullmatch(found.get(name, "")):
            found[name] = value.strip()
    return found


def check_identity(values: dict[str, str], expected: Expected, *, source: str) -> BuildIdentity:
    """Return the identity if it is complete and the expected one.

    Args:
        values: what was found, by field name.
        expected: what it must be.
        source: where it was found, for the message.

    Raises:
        VerificationError: `smoke-no-build-identity`, a field is missing, empty or not of its form (an engine
            that was built without identity says "unidentified"); `smoke-other-build`, it is another one.
    """
    for name, shape in _SHAPES.items():
        if not shape.fullmatch(values.get(name, "")):
            raise VerificationError(
                "smoke-no-build-identity",
                f"no build identity in {source}",
                why=f"{name} is {values.get(name, '')[:80]!r}" if name in values else f"{name} is missing",
                hint="build it with the patch series applied and the identity passed in",
            )
    identity = BuildIdentity(**values)
    _compare("version_string", identity.version_string, expected.version_string, source)
    _compare("patch_set", identity.patch_set, expected.patch_set, source)
    if expected.upstream_commits and identity.upstream_commit not in expected.upstream_commits:
        _compare("upstream_commit", identity.upstream_commit, min(expected.upstream_commits), source)
    return identity


def _compare(name: str, found: str, wanted: str | None, source: str) -> None:
    if wanted is not None and found != wanted:
        raise VerificationError(
            "smoke-other-build",
            f"{source} shows another build than the manifest",
            why=f"{name} is {found}, the manifest says {wanted}",
            hint="package the artifact again; its manifest belongs to other bytes",
        )
