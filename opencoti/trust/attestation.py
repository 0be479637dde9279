"""The attestation of a release: GitHub's word on which workflow of which repository made these files.

A Sigstore bundle lies beside the release as `<tag>.sigstore.json`. It holds an in-toto statement with the
SHA-256 of every file, signed with a key that lived for minutes, the certificate that ties that key to a run
of a workflow, and the proof that all this stands in a public log. It is checked offline with the `sigstore`
package (the extra `opencoti[attest]`), against the root that comes with that package. This is a proof beside
the signature of the publisher, made with keys that the publisher does not have.

What is pinned: the issuer, the repository, the workflow file, the branch or tag that it ran on, and that it
ran on a machine of GitHub. Not known here: which files are wanted, and how strong a proof they need.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from opencoti.errors import ConfigError, MissingError, VerificationError
from opencoti.hashing import is_sha256, sha256_bytes
from opencoti.jsonio import parse_strict
from opencoti.trust.checks import AGAIN

if TYPE_CHECKING:
    from sigstore.models import TrustedRoot
    from sigstore.verify.policy import VerificationPolicy

BUNDLE_SUFFIX: Final = ".sigstore.json"
MAX_BUNDLE_BYTES: Final = 4 << 20
ISSUER: Final = "https://token.actions.githubusercontent.com"
WORKFLOW: Final = ".github/workflows/release.yml"
_SITE = "https://github.com"
_RUNNER = "github-hosted"
_PAYLOAD = "application/vnd.in-toto+json"
_STATEMENT = "https://in-toto.io/Statement/v1"
_PREDICATE = "https://slsa.dev/provenance/v1"
_TAG = re.compile(r"[0-9A-Za-z][0-9A-Za-z._+-]{0,127}")


@dataclass(frozen=True, kw_only=True)
class Attestation:
    """A verified bundle: `digests` are the SHA-256 of the files that it speaks of."""

    repository: str
    digests: frozenset[str]

    def covers(self, data: bytes) -> bool:
        """Tell whether it speaks of these very bytes."""
        return sha256_bytes(data) in self.digests


def is_available() -> bool:
    """Tell whether the package that checks attestations is installed."""
    return find_spec("sigstore") is not None


def require_available(repository: str) -> None:
    """Refuse to go on without that package.

    Raises:
        MissingError: `attestation-unsupported`.
    """
    if not is_available():
        raise MissingError(
            "attestation-unsupported",
            f"an attestation of {repository} is required and cannot be checked here",
            why="the Python package sigstore is not installed",
            hint="pip install 'opencoti[attest]'",
        )


def bundle_name(tag: str) -> str:
    """Return the file name of the bundle of a release."""
    return tag + BUNDLE_SUFFIX


def verify_attestation(
    bundle: bytes, *, repository: str, tag: str, trusted_root: Path | None = None
) -> Attestation:
    """Verify a bundle, offline.

    Args:
        bundle: its bytes.
        repository: `<owner>/<name>`, whose workflow must have made it.
        tag: the release that it lies beside; the workflow ran on this tag or on the main branch.
        trusted_root: another Sigstore instance than the public one (its `trusted_root.json`).

    Raises:
        VerificationError: `attestation-refused`; says which check failed.
        ConfigError: `attestation-root-unusable`, the trusted root cannot be read.
        MissingError: `attestation-unsupported`.
    """
    require_available(repository)
    # A library of ours does not decide about logs; without this, warnings would go to standard error.
    logging.getLogger("sigstore").addHandler(logging.NullHandler())
    payload = _open(bundle, _policy(repository, tag), _root(trusted_root))
    return Attestation(repository=repository, digests=_digests(payload))


def _root(path: Path | None) -> TrustedRoot:
    from sigstore.errors import Error
    from sigstore.models import ClientTrustConfig, TrustedRoot

    try:
        if path is not None:
            return TrustedRoot.from_file(str(path))
        return ClientTrustConfig.production(offline=True).trusted_root
    except (Error, OSError, ValueError) as exc:
        raise ConfigError(
            "attestation-root-unusable",
            f"cannot read the trusted root of Sigstore{f' in {path}' if path else ''}",
            why=str(exc)[:200],
            hint="install the package sigstore again" if path is None else "name another file",
        ) from exc


def _policy(repository: str, tag: str) -> VerificationPolicy:
    """Return who must have signed: one workflow of one repository, run by GitHub on main or on the tag."""
    from sigstore.verify import policy

    assert _TAG.fullmatch(tag)
    workflow = f"{_SITE}/{repository}/{WORKFLOW}"
    runs: list[VerificationPolicy] = [
        policy.AllOf([policy.Identity(identity=f"{workflow}@{ref}"), policy.OIDCSourceRepositoryRef(ref)])
        for ref in ("refs/heads/main", f"refs/tags/{tag}")
    ]
    return policy.AllOf(
        [
            policy.OIDCIssuerV2(ISSUER),
            policy.OIDCSourceRepositoryURI(f"{_SITE}/{repository}"),
            policy.OIDCRunnerEnvironment(_RUNNER),
            policy.AnyOf(runs),
        ]
    )


def _open(bundle: bytes, policy: VerificationPolicy, root: TrustedRoot) -> bytes:
    """Return the payload of a bundle that is right in every respect."""
    from sigstore.models import Bundle
    from sigstore.verify import Verifier

    if len(bundle) > MAX_BUNDLE_BYTES:
        raise _refused(f"it has more than {MAX_BUNDLE_BYTES} bytes")
    try:
        kind, payload = Verifier(trusted_root=root).verify_dsse(Bundle.from_json(bundle), policy)
    except Exception as exc:
        # Bytes from anywhere went through parsers of others: whatever they raise, nothing is proven.
        raise _refused(str(exc)[:300] or type(exc).__name__) from exc
    if kind != _PAYLOAD:
        raise _refused(f"its payload is {kind[:80]!r}, not {_PAYLOAD}")
    return payload


def _digests(payload: bytes) -> frozenset[str]:
    """Return the SHA-256 of all subjects of an in-toto statement with SLSA provenance."""
    try:
        statement = parse_strict(payload, "the attestation", max_bytes=MAX_BUNDLE_BYTES)
    except ConfigError as exc:
        raise _refused(exc.why) from exc
    kinds = (statement.get("_type"), statement.get("predicateType")) if isinstance(statement, dict) else ()
    if kinds != (_STATEMENT, _PREDICATE):
        raise _refused(f"it is no statement about a build: {str(kinds)[:120]}")
    subjects = statement.get("subject")
    found = [_digest(subject) for subject in subjects] if isinstance(subjects, list) else []
    if not found:
        raise _refused("it speaks of no file")
    return frozenset(found)


def _digest(subject: object) -> str:
    """Read `{"name": "x", "digest": {"sha256": "…"}}`."""
    digest = subject.get("digest") if isinstance(subject, dict) else None
    sha256 = digest.get("sha256") if isinstance(digest, dict) else None
    if not isinstance(sha256, str) or not is_sha256(sha256):
        raise _refused("a file in it has no SHA-256")
    return sha256


def _refused(why: str) -> VerificationError:
    return VerificationError(
        "attestation-refused", "the attestation of the release does not count", why=why, hint=AGAIN
    )
