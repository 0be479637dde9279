"""Which artifact of a release suits this host, and why each other one does not. Pure: facts in, verdicts out.

Looked at: operating system, machine, C library, what the user asked for, and GPUs with their drivers. What a
GPU cannot run is no reason to drop an artifact, since the engine falls back to what works; but one whose
backend can be used here is preferred.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opencoti.fetch.devices import Use, uses_of
from opencoti.fetch.versions import parse_version as parse_version

if TYPE_CHECKING:
    from opencoti.hardware import Hardware
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
    uses: tuple[Use, ...] = ()

    def as_dict(self) -> dict[str, object]:
        """Return it as data."""
        return {**vars(self), "uses": [vars(use) for use in self.uses]}


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The artifact that is taken, if one fits, and the verdict on each in the order of the index.

    `hardware` is what was found, None where it did not matter.
    """

    taken: ReleasedArtifact | None
    verdicts: tuple[Verdict, ...]
    hardware: Hardware | None = None


def choose(
    artifacts: Iterable[ReleasedArtifact], host: Host, wish: Wish, hardware: Hardware | None = None
) -> Choice:
    """Choose among the artifacts of a release.

    Of those that fit, one is preferred whose GPU backend can be used here, then one without a flavor, then
    one with more backends, then the first by name.
    """
    artifacts = tuple(artifacts)
    uses = {item.name: uses_of(item.requires.backends, hardware) if hardware else () for item in artifacts}
    objections = {artifact.name: _objection(artifact, host, wish) for artifact in artifacts}
    fitting = [item for item in artifacts if not objections[item.name]]
    taken = min(fitting, key=lambda item: _rank(item, uses[item.name]), default=None)
    verdicts = tuple(_verdict(item, objections[item.name], taken, host, uses) for item in artifacts)
    return Choice(taken=taken, verdicts=verdicts, hardware=hardware)


def asks_for_devices(artifacts: Iterable[ReleasedArtifact]) -> bool:
    """Tell whether the GPUs of the machine matter for choosing among them."""
    return any(need.backend != "cpu" for artifact in artifacts for need in artifact.requires.backends)


def _rank(artifact: ReleasedArtifact, uses: Sequence[Use]) -> tuple[int, bool, int, str]:
    return -_best(uses), artifact.flavor is not None, -len(artifact.requires.backends), artifact.name


def _best(uses: Sequence[Use]) -> int:
    return max((use.rank for use in uses), default=0)


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
    artifact: ReleasedArtifact,
    objection: str,
    taken: ReleasedArtifact | None,
    host: Host,
    uses: Mapping[str, tuple[Use, ...]],
) -> Verdict:
    is_taken = taken is not None and artifact.name == taken.name
    reason = objection
    if is_taken:
        backends = _join([item.backend for item in artifact.requires.backends])
        reason = f"it fits {host.os}-{host.arch}; backends: {backends}"
    elif not objection and taken is not None:
        reason = f"it fits, but {taken.name} is preferred ({_preference(artifact, taken, uses)})"
    return Verdict(
        name=artifact.name,
        is_fit=not objection,
        is_taken=is_taken,
        reason=reason,
        uses=uses[artifact.name],
    )


def _preference(
    artifact: ReleasedArtifact, taken: ReleasedArtifact, uses: Mapping[str, tuple[Use, ...]]
) -> str:
    best = _best(uses[taken.name])
    if best > _best(uses[artifact.name]):
        return f"its {next(use.backend for use in uses[taken.name] if use.rank == best)} can be used here"
    if artifact.flavor is not None and taken.flavor is None:
        return "no flavor was asked for"
    if len(artifact.requires.backends) < len(taken.requires.backends):
        return "it has more backends"
    return "first by name"


def _join(words: Sequence[str]) -> str:
    return ", ".join(words) or "none"
