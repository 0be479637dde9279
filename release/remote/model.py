"""What a place of releases offers, and the types that travel between it and the publisher. Does no I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

MakeLatest = Literal["true", "false"]


@dataclass(frozen=True, kw_only=True)
class LocalFile:
    """A file to be published; size and SHA-256 were verified."""

    name: str
    path: Path
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class NewRelease:
    """What a release shall say. `commit` is the full SHA that its tag will be on."""

    tag: str
    title: str
    body: str
    commit: str


@dataclass(frozen=True, kw_only=True)
class RemoteAsset:
    """A file of a remote release as the remote describes it.

    Attributes:
        is_uploaded: False for a placeholder whose upload never came to its end.
        sha256: what the remote says it hashed; None where it does not say.
    """

    asset_id: int
    name: str
    size: int
    is_uploaded: bool
    sha256: str | None


@dataclass(frozen=True, kw_only=True)
class RemoteRelease:
    """A release of a remote. `assets` are those that its listing shows, which may be out of date.

    Attributes:
        target: commit or branch that the tag will be made on, for a draft.
        published: when it became public, ISO 8601; empty for a draft.
        page: its web page.
        upload_url: where its assets are sent to.
    """

    release_id: int
    tag: str
    is_draft: bool
    target: str
    body: str = ""
    published: str = ""
    page: str = ""
    upload_url: str = ""
    assets: tuple[RemoteAsset, ...] = ()


class PassingError(Exception):
    """A call failed in a way that may pass; whether it had its effect is not known.

    Attributes:
        wait_s: how long the remote asked to wait, None where it did not.
    """

    def __init__(self, text: str, *, wait_s: float | None = None) -> None:
        super().__init__(text)
        self.wait_s = wait_s


class NotThereError(Exception):
    """The remote has no such thing, or does not show it to this token."""


class RefusedError(Exception):
    """The remote understood the request and refuses it (status 422).

    Attributes:
        text: its reasons, for people.
        codes: pairs of field and code.
    """

    def __init__(self, text: str, codes: frozenset[tuple[str, str]] = frozenset()) -> None:
        super().__init__(text)
        self.text = text
        self.codes = codes


class Remote(Protocol):
    """A place where releases are published.

    Every method is one attempt. It raises `PassingError`, `NotThereError`, `RefusedError`, or an
    `OpencotiError` that no repetition would mend.
    """

    @property
    def where(self) -> str:
        """What it is called in messages."""

    def releases(self) -> Sequence[RemoteRelease]:
        """Return all releases, drafts among them. What was made just now may be missing."""

    def tag_commit(self, tag: str) -> str | None:
        """Return the commit that a tag is on, None where there is no such tag or the remote has none."""

    def has_commit(self, commit: str) -> bool:
        """Tell whether a commit is there for a tag to be made on."""

    def create(self, new: NewRelease) -> RemoteRelease:
        """Make a draft."""

    def assets(self, release: RemoteRelease) -> tuple[RemoteAsset, ...]:
        """Return the files of a release."""

    def asset(self, release: RemoteRelease, asset: RemoteAsset) -> RemoteAsset:
        """Return the present state of one file."""

    def delete_asset(self, release: RemoteRelease, asset: RemoteAsset) -> None:
        """Remove one file, by its id."""

    def delete_draft(self, release: RemoteRelease) -> None:
        """Remove a draft, by its id."""

    def send(self, release: RemoteRelease, file: LocalFile, tell: Callable[[int], None]) -> RemoteAsset:
        """Send one file; `tell` is given the number of bytes sent so far."""

    def sha256_of(self, release: RemoteRelease, asset: RemoteAsset) -> str:
        """Fetch a file and return its SHA-256."""

    def read(self, release: RemoteRelease, asset: RemoteAsset, max_bytes: int) -> bytes:
        """Fetch a small file; at most one byte more than `max_bytes`."""

    def find(self, release: RemoteRelease) -> RemoteRelease:
        """Return the present state of a release, by its id."""

    def publish(self, release: RemoteRelease, new: NewRelease, make_latest: MakeLatest) -> RemoteRelease:
        """Make a draft public, with this text, on this commit."""

    def settle(self, release: RemoteRelease, make_latest: MakeLatest) -> None:
        """Finish what a killed run may have left undone after it made a release public."""
