"""Which artifact of a release suits this host, and why each other one does not. Pure: facts in, verdicts out.

Looked at: operating system, machine, C library, and what the user asked for. GPUs and their drivers are not:
the engine itself falls back to what works.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opencoti.index import ReleasedArtifact

ANY = "any"


@dataclass(frozen=True, kw_only=True)
class Host:
    """What this machine is, in the words of the manifest. No `glibc` means another C library."""

    os: str
    arch: str
    glibc: str | None


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What the user asked for beyond "what suits": a backend that must be in it, a flavor."""

    backend: str | None = None
    flavor: str | None = None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of one artifact, and the rule that decided."""

    name: str
    is_fit: bool
    is_taken: bool
    reason: str


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The artifact that is taken, if one fits, and the verdict on each in the order of the index."""

    taken: ReleasedArtifact | None
    verdicts: tuple[Verdict, ...]


def choose(artifacts: Iterable[ReleasedArtifact], host: Host, wish: Wish) -> Choice:
    """Choose among the artifacts of a release.

    Of those that fit, one without a flavor is preferred, then one with more backends, then the first by name.
    """
    artifacts = tuple(artifacts)
    objections = {artifact.name: _objection(artifact, host, wish) for artifact in artifacts}
    fitting = sorted((item for item in artifacts if not objections[item.name]), key=_rank)
    taken = fitting[0] if fitting else None
    return Choice(
        taken=taken,
        verdicts=tuple(_verdict(item, objections[item.name], taken, host) for item in artifacts),
    )


def parse_version(text: str) -> tuple[int, ...]:
    """Return a version as numbers that compare: `2.28` is before `2.100`, and `2` is `2.0`."""
    numbers = [int(part) for part in text.split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _rank(artifact: ReleasedArtifact) -> tuple[bool, int, str]:
    return artifact.flavor is not None, -len(artifact.requires.backends), artifact.name


def _objection(artifact: ReleasedArtifact, host: Host, wish: Wish) -> str:
    """Say why an artifact does not fit; empty when it does."""
    needs = artifact.requires
    if needs.os not in (ANY, host.os):
        return f"it is for {needs.os}, this is {host.os}"
    if needs.arch not in (ANY, host.arch):
        return f"it is for {needs.arch}, this is {host.arch}"
    if needs.glibc is not None and host.glibc is None:
        return f"it needs glibc {needs.glibc}, this host has another C library"
    if _is_older(host.glibc, needs.glibc):
        return f"it needs glibc {needs.glibc}, this host has {host.glibc}"
    return _unwanted(artifact, wish)


def _is_older(found: str | None, needed: str | None) -> bool:
    return found is not None and needed is not None and parse_version(found) < parse_version(needed)


def _unwanted(artifact: ReleasedArtifact, wish: Wish) -> str:
    if wish.flavor is not None and artifact.flavor != wish.flavor:
        return f"flavor {wish.flavor} was asked for, this has {artifact.flavor or 'none'}"
    backends = [item.backend for item in artifact.requires.backends]
    if wish.backend is not None and wish.backend not in backends:
        return f"backend {wish.backend} was asked for, this has {_join(backends)}"
    return ""


def _verdict(
    artifact: ReleasedArtifact, objection: str, taken: ReleasedArtifact | None, host: Host
) -> Verdict:
    is_taken = taken is not None and artifact.name == taken.name
    reason = objection
    if is_taken:
        backends = _join([item.backend for item in artifact.requires.backends])
        reason = f"it fits {host.os}-{host.arch}; backends: {backends}"
    elif not objection and taken is not None:
        reason = f"it fits, but {taken.name} is preferred ({_preference(artifact, taken)})"
    return Verdict(name=artifact.name, is_fit=not objection, is_taken=is_taken, reason=reason)


def _preference(artifact: ReleasedArtifact, taken: ReleasedArtifact) -> str:
    if artifact.flavor is not None and taken.flavor is None:
        return "no flavor was asked for"
    if len(artifact.requires.backends) < len(taken.requires.backends):
        return "it has more backends"
    return "first by name"


def _join(words: Sequence[str]) -> str:
    return ", ".join(words) or "none"
