"""What a client has seen before, per repo and product: newest sequence per key, strength of proof. Pure.

Why per key: whoever steals a signing key can push the sequence very high. When that key is retired up to a
lower sequence, what was seen above it no longer counts, and clients follow the new key.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import IntEnum

from opencoti.errors import VerificationError
from opencoti.trust.keys import TrustedKeys


class Strength(IntEnum):
    """How well a file was proven to be the publisher's. Higher is stronger."""

    HASH = 1
    SIGNATURE = 2
    ATTESTATION = 3

    @property
    def label(self) -> str:
        """The word for it in options, files and messages."""
        return self.name.lower()


@dataclass(frozen=True, kw_only=True)
class Scope:
    """What a memory belongs to."""

    repo: str
    product: str


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The newest index that one key (its minisign text) has signed, as far as this client saw."""

    key: str
    sequence: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Memory:
    """All that was seen of one repo and product."""

    scope: Scope
    strength: Strength | None = None
    seen: tuple[Seen, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What a verified and finished fetch has shown; to be remembered, never before it is finished.

    `seen` is None where no index was involved. `allow_replacement` comes from `--allow-downgrade`.
    """

    scope: Scope
    strength: Strength
    seen: Seen | None = None
    allow_replacement: bool = False


@dataclass(frozen=True, kw_only=True)
class TrustState:
    """Everything remembered."""

    memories: tuple[Memory, ...] = field(default=())

    def memory(self, scope: Scope) -> Memory:
        """Return what is known of `scope`; an empty memory where nothing is."""
        return next((item for item in self.memories if item.scope == scope), Memory(scope=scope))


def check_ratchet(candidate: Seen, memory: Memory, keys: TrustedKeys) -> None:
    """Refuse an index that is older than, or contradicts, one that was seen.

    What counts is everything seen under keys that are still accepted for it, so the last index of a retired
    key cannot be replayed after one of its successor was seen.

    Raises:
        VerificationError: `index-rollback`, `index-equivocation`.
    """
    counted = _still_accepted(memory.seen, keys)
    newest = max((seen.sequence for seen in counted), default=0)
    if candidate.sequence < newest:
        raise VerificationError(
            "index-rollback",
            f"the release index of {memory.scope.repo} is older than one seen before",
            why=f"it has sequence {candidate.sequence}, sequence {newest} was seen",
            hint="a mirror may be stale: try another one; --allow-downgrade goes back on purpose",
        )
    for seen in counted:
        check_equal(seen, candidate, memory.scope)


def check_equal(old: Seen, new: Seen, scope: Scope) -> None:
    """Refuse two different indexes of one sequence.

    Raises:
        VerificationError: `index-equivocation`.
    """
    if old.sequence == new.sequence and old.sha256 != new.sha256:
        raise VerificationError(
            "index-equivocation",
            f"there are two release indexes of {scope.repo} with one sequence",
            why=f"sequence {old.sequence} was seen with SHA-256 {old.sha256}, now {new.sha256}",
            hint="report this to the publisher: one of them is wrong, or a key has leaked",
        )


def merge(state: TrustState, observation: Observation) -> TrustState:
    """Return `state` with an observation added. Sequence and strength never go down.

    Raises:
        VerificationError: `index-equivocation`, another process saw another index of this sequence meanwhile.
    """
    before = state.memory(observation.scope)
    after = replace(
        before,
        strength=max(before.strength or observation.strength, observation.strength),
        seen=_merge_seen(before, observation),
    )
    others = [item for item in state.memories if item.scope != observation.scope]
    return TrustState(
        memories=tuple(sorted([*others, after], key=lambda item: (item.scope.repo, item.scope.product)))
    )


def _merge_seen(before: Memory, observation: Observation) -> tuple[Seen, ...]:
    new = observation.seen
    if new is None:
        return before.seen
    old = next((seen for seen in before.seen if seen.key == new.key), None)
    if old is not None and old.sequence > new.sequence:
        return before.seen
    if old is not None and not observation.allow_replacement:
        check_equal(old, new, before.scope)
    return tuple(
        sorted([seen for seen in before.seen if seen.key != new.key] + [new], key=lambda seen: seen.key)
    )


def _still_accepted(seen: Iterable[Seen], keys: TrustedKeys) -> list[Seen]:
    accepted = {key.public.text: key for key in keys.keys}
    return [item for item in seen if item.key in accepted and accepted[item.key].accepts(item.sequence)]
