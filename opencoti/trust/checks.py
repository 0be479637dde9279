"""The checks between a good signature and what a user asked for. Pure; `opencoti.policy` calls them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from opencoti.errors import VerificationError
from opencoti.trust.comment import Comment, render_time
from opencoti.trust.keys import AcceptedKey
from opencoti.trust.memory import Scope, Strength, TrustState

PRODUCT: Final = "opencoti"
AGAIN: Final = "do not use this file: get it from the publisher, or from another mirror, again"


@dataclass(frozen=True, kw_only=True)
class Platform:
    """A kind of host, in the words of the manifest."""

    os: str
    arch: str

    def __str__(self) -> str:
        return f"{self.os}-{self.arch}"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the user wants, and what may be passed over.

    Attributes:
        repo: `<owner>/<name>`.
        product: the product.
        tag: tag of the release; None asks for the newest.
        artifact: file name of the artifact, None where the index decides.
        platform: the host it is for, None where that does not matter.
        sha256: SHA-256 of the artifact from a pin. Then neither ratchet nor expiry is needed.
        require: the least proof that will do.
        on_expired: whether an expired index is an error, or a warning in the result.
        allow_downgrade: accept an index older than one seen before.
        allow_weaker: accept a weaker proof than was seen before (never a weaker one than `require`).
    """

    repo: str
    product: str = PRODUCT
    tag: str | None = None
    artifact: str | None = None
    platform: Platform | None = None
    sha256: str | None = None
    require: Strength = Strength.SIGNATURE
    on_expired: Literal["error", "warn"] = "error"
    allow_downgrade: bool = False
    allow_weaker: bool = False

    @property
    def scope(self) -> Scope:
        """What memories of this request belong to."""
        return Scope(repo=self.repo, product=self.product)


def require_comment(text: str, *, asked: Asked, file: str) -> Comment:
    """Read a verified trusted comment and compare it with what was asked.

    Raises:
        VerificationError: `comment-malformed`, `comment-incomplete`, `wrong-product`, `wrong-repo`,
            `wrong-tag`, `wrong-file`.
    """
    comment = Comment.parse(text, file)
    if comment.repo is None or comment.tag is None or comment.version is None:
        raise incomplete(file, "it lacks repo, tag or version")
    check_scope(comment, file=file, product=asked.product, repo=asked.repo, tag=asked.tag)
    if comment.file != file:
        raise VerificationError(
            "wrong-file",
            f"{file} was signed under another name",
            why=differ(comment.file, file),
            hint=AGAIN,
        )
    return comment


def check_scope(
    comment: Comment,
    *,
    file: str,
    product: str | None = None,
    repo: str | None = None,
    tag: str | None = None,
) -> None:
    """Compare product, repo and tag of a comment with what was asked; None was not asked.

    Raises:
        VerificationError: `wrong-product`, `wrong-repo`, `wrong-tag`.
    """
    if product is not None and comment.product != product:
        raise VerificationError(
            "wrong-product",
            f"{file} is of another product",
            why=differ(comment.product, product),
            hint=AGAIN,
        )
    if repo is not None and comment.repo != repo:
        raise VerificationError(
            "wrong-repo", f"{file} is of another repository", why=differ(comment.repo, repo), hint=AGAIN
        )
    if tag is not None and comment.tag != tag:
        raise VerificationError(
            "wrong-tag", f"{file} is of another release", why=differ(comment.tag, tag), hint=AGAIN
        )


def require_active(key: AcceptedKey, *, sequence: int | None, what: str) -> None:
    """Refuse a retired key, unless the release is from before its retirement.

    Args:
        key: the key that signed.
        sequence: the sequence of the release, None where it is not known.
        what: the signed file, for the message.

    Raises:
        VerificationError: `signing-key-retired`.
    """
    if key.last_sequence is None or (sequence is not None and key.accepts(sequence)):
        return
    is_of = (
        f"this is of sequence {sequence}" if sequence is not None else "nothing tells the sequence of this"
    )
    raise VerificationError(
        "signing-key-retired",
        f"{what} is signed with a retired key",
        why=f"key {key.public.name} is accepted up to sequence {key.last_sequence}; {is_of}",
        hint=AGAIN,
    )


def check_expiry(
    expires: datetime, *, now: datetime, on_expired: Literal["error", "warn"]
) -> tuple[str, ...]:
    """Return warnings about an expired index.

    Raises:
        VerificationError: `index-expired`.
    """
    if now < expires:
        return ()
    why = f"it expired at {render_time(expires)}, now it is {render_time(now)}"
    if on_expired == "warn":
        return (f"the release index is out of date: {why}; a newer release may be held back from you",)
    raise VerificationError(
        "index-expired",
        "the release index is out of date",
        why=why,
        hint="a newer release may be held back from you: check the clock, try another mirror, or use a pin",
    )


def require_strength(proven: Strength, *, asked: Asked, state: TrustState, what: str) -> None:
    """Compare the proof that there is with what is required and with what was seen before.

    Raises:
        VerificationError: `proof-too-weak`, `proof-weaker-than-before`.
    """
    if proven < asked.require:
        raise VerificationError(
            "proof-too-weak",
            f"{what} is proven by {proven.label} only",
            why=f"{asked.require.label} is required",
            hint="ask the publisher for the missing proof, or require less",
        )
    before = state.memory(asked.scope).strength
    if before is not None and proven < before and not asked.allow_weaker:
        raise VerificationError(
            "proof-weaker-than-before",
            f"{what} is proven by {proven.label} only",
            why=f"files of {asked.repo} were proven by {before.label} before",
            hint="try again later or from another source; --allow-weaker takes it, if you know why",
        )


def differ(found: str | None, expected: str) -> str:
    """Return the reason for a refusal: what a document says, against what was expected."""
    return f"it says {found!r}, expected {expected!r}"


def incomplete(file: str, why: str) -> VerificationError:
    """Return the error for a comment that lacks something."""
    return VerificationError(
        "comment-incomplete",
        f"the trusted comment in the signature of {file} is not enough",
        why=why,
        hint=AGAIN,
    )
