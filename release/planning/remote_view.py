"""What a plan must know about the remote: the releases that are there, and what their signed indexes say.

`RemoteView` is all that a kind of remote has to offer; `survey` does the thinking. An index counts only when
its signature is good: a number that anybody could write there must not push the sequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol

from opencoti.errors import VerificationError
from opencoti.index import MAX_INDEX_BYTES, ReleaseIndex
from opencoti.minisign import MAX_SIGNATURE_BYTES, SIGNATURE_SUFFIX
from opencoti.policy import Asked, verify_index
from opencoti.trust.comment import INDEX_NAME
from opencoti.trust.keys import TrustedKeys
from opencoti.trust.memory import TrustState

TagState = Literal["none", "draft", "published", "burned"]


@dataclass(frozen=True, kw_only=True)
class RemoteRelease:
    """One release of a remote. `release_id` is its own name there, for messages."""

    tag: str
    release_id: str
    is_draft: bool = False
    asset_names: tuple[str, ...] = ()


class RemoteView(Protocol):
    """A place where releases are. All methods only read, and raise `NetworkError` and the like."""

    @property
    def where(self) -> str:
        """What it is called in messages."""

    def releases(self) -> Sequence[RemoteRelease]:
        """Return all releases, drafts among them."""

    def tag_commit(self, tag: str) -> str | None:
        """Return the commit (40 hex digits) that a tag is on, None where it is not there or unknown."""

    def is_tag_burned(self, tag: str) -> bool:
        """Tell whether the remote will never take this tag again."""

    def read(self, release: RemoteRelease, name: str, max_bytes: int) -> bytes | None:
        """Return a small asset, None where there is none of that name."""


@dataclass(frozen=True, kw_only=True)
class Surveyed:
    """A published release with its verified index."""

    release: RemoteRelease
    index: ReleaseIndex
    data: bytes


@dataclass(frozen=True, kw_only=True)
class RemoteFacts:
    """What matters of a remote for one tag. `surveyed` is sorted by sequence, the newest last."""

    where: str
    tag_state: TagState
    tag_commit: str | None = None
    drafts: tuple[str, ...] = ()
    asset_names: tuple[str, ...] = ()
    surveyed: tuple[Surveyed, ...] = field(default=())

    @property
    def highest_sequence(self) -> int:
        """The number of the newest release, 0 where there is none."""
        return self.surveyed[-1].index.sequence if self.surveyed else 0

    @property
    def previous(self) -> Surveyed | None:
        """The newest published release."""
        return self.surveyed[-1] if self.surveyed else None


def survey(view: RemoteView, *, repo: str, tag: str, keys: TrustedKeys, now: datetime) -> RemoteFacts:
    """Look at a remote.

    Args:
        view: the remote.
        repo: whose releases they must be.
        tag: the tag that is to be released.
        keys: who may have signed.
        now: the current time.

    Raises:
        VerificationError: as `opencoti.policy`; `remote-index-unsigned`. A release that is there and cannot
            be verified stops the plan: its sequence and its bytes would be unknown.
        NetworkError, StorageError: the remote cannot be read.
    """
    releases = tuple(view.releases())
    published = [release for release in releases if not release.is_draft]
    surveyed = [
        found for release in published if (found := _open(view, release, repo, keys, now)) is not None
    ]
    surveyed.sort(key=lambda item: item.index.sequence)
    drafts = [release for release in releases if release.is_draft and release.tag == tag]
    mine = [release for release in published if release.tag == tag]
    return RemoteFacts(
        where=view.where,
        tag_state=_state(mine, drafts, is_burned=view.is_tag_burned(tag)),
        tag_commit=view.tag_commit(tag),
        drafts=tuple(release.release_id for release in drafts),
        asset_names=tuple(sorted({name for release in (*mine, *drafts) for name in release.asset_names})),
        surveyed=tuple(surveyed),
    )


def _state(
    published: Iterable[RemoteRelease], drafts: Iterable[RemoteRelease], *, is_burned: bool
) -> TagState:
    if any(published):
        return "published"
    if is_burned:
        return "burned"
    return "draft" if any(drafts) else "none"


def _open(
    view: RemoteView, release: RemoteRelease, repo: str, keys: TrustedKeys, now: datetime
) -> Surveyed | None:
    """Return a release of ours; None for a release that has no index, which was not made by us."""
    if INDEX_NAME not in release.asset_names:
        return None
    data = view.read(release, INDEX_NAME, MAX_INDEX_BYTES)
    signature = view.read(release, INDEX_NAME + SIGNATURE_SUFFIX, MAX_SIGNATURE_BYTES)
    if data is None or signature is None:
        raise VerificationError(
            "remote-index-unsigned",
            f"release {release.tag} of {view.where} has an index without a signature",
            hint="publish it again, or remove it",
        )
    asked = Asked(repo=repo, tag=release.tag, on_expired="warn")
    verified = verify_index(data, signature, asked=asked, root=keys, state=TrustState(), now=now)
    return Surveyed(release=release, index=verified.index, data=data)
