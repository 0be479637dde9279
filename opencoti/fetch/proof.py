"""How strongly the documents of a release are proven: by its signatures, or by GitHub's attestation as well.

The attestation is one file for the whole release. It is looked for where the package that checks it is
installed, and must be there and be right where it is required or was seen before.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from opencoti.console import Console
from opencoti.errors import VerificationError
from opencoti.fetch.documents import Reader
from opencoti.fetch.source import HttpSource
from opencoti.trust import attestation
from opencoti.trust.memory import Strength

if TYPE_CHECKING:
    from collections.abc import Callable

    from opencoti.trust.attestation import Attestation
    from opencoti.trust.checks import Asked
    from opencoti.trust.memory import TrustState


@dataclass(frozen=True, kw_only=True)
class Proofs:
    """What is known about the files of one release beside their signatures."""

    attested: Attestation | None

    def of(self, data: bytes) -> Strength:
        """Return the strength of proof of a file whose signature is right."""
        is_attested = self.attested is not None and self.attested.covers(data)
        return Strength.ATTESTATION if is_attested else Strength.SIGNATURE


def read_proofs(
    tag: str,
    url_of: Callable[[str], str],
    *,
    asked: Asked,
    state: TrustState,
    reader: Reader,
    console: Console,
    trusted_root: Path | None,
) -> Proofs:
    """Fetch and check the attestation of a release.

    Args:
        tag: of the release, from something that was verified or asked for.
        url_of: where a file of that name lies.
        asked: whose it must be, and what is required.
        state: what was seen before.
        reader: the network.
        console: told about one that does not count and is not needed.
        trusted_root: see `attestation.verify_attestation`.

    Raises:
        MissingError: `attestation-unsupported`; it is needed, and the package is not installed.
        VerificationError: `attestation-refused`; it is needed, and does not count.
        NetworkError, ConfigError: as `documents` and `attestation`.
    """
    before = None if asked.allow_weaker else state.memory(asked.scope).strength
    is_needed = Strength.ATTESTATION in (asked.require, before)
    if is_needed:
        attestation.require_available(asked.repo)
    elif not attestation.is_available():
        return Proofs(attested=None)
    url = url_of(attestation.bundle_name(tag))
    bundle = reader.read_if_there(HttpSource(url=url), max_bytes=attestation.MAX_BUNDLE_BYTES)
    if bundle is None:
        return Proofs(attested=None)
    try:
        found = attestation.verify_attestation(
            bundle, repository=asked.repo, tag=tag, trusted_root=trusted_root
        )
    except VerificationError as error:
        if is_needed:
            raise
        console.warn(f"{error}; going on with the signatures alone")
        return Proofs(attested=None)
    return Proofs(attested=found)
