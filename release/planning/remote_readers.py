"""Kinds of remotes that a plan can look at: those of the publisher, a static web root, and none at all.

A web root has the layout of the addresses that clients ask: `<owner>/<name>/releases/download/<tag>/<asset>`
and `…/releases/latest/download/<asset>`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from opencoti.errors import ConfigError, UsageError
from opencoti.fetch.addresses import latest_url, release_url, require_allowed
from opencoti.fetch.documents import Reader
from opencoti.fetch.source import HttpSource
from opencoti.index import load_index
from opencoti.minisign import SIGNATURE_SUFFIX
from opencoti.trust.comment import INDEX_NAME
from release.planning.publisher_view import open_folder, open_github
from release.planning.remote_view import RemoteRelease, RemoteView


@dataclass(frozen=True, kw_only=True)
class NoRemote:
    """Nothing was released yet, or the user answers for it: a plan without the network."""

    where: str = "no remote"

    def releases(self) -> Sequence[RemoteRelease]:
        """Return none."""
        return ()

    def tag_commit(self, tag: str) -> str | None:
        """Return None."""
        return None

    def is_tag_burned(self, tag: str) -> bool:
        """Return False."""
        return False

    def read(self, release: RemoteRelease, name: str, max_bytes: int) -> bytes | None:
        """Return None."""
        return None


@dataclass(frozen=True, kw_only=True)
class WebRemote:
    """A static web root, or a mirror: it shows the newest release and the one of a known tag, no list."""

    base_url: str
    repo: str
    tag: str
    reader: Reader

    @property
    def where(self) -> str:
        """What it is called in messages."""
        return self.base_url

    def releases(self) -> Sequence[RemoteRelease]:
        """Return the newest release and that of the tag."""
        data = self.reader.read_if_there(HttpSource(url=latest_url(self.base_url, self.repo, INDEX_NAME)))
        # Which tag the newest one has is only a question here: what lies under it is verified later.
        newest = load_index(data, f"the index of {self.where}").tag if data is not None else None
        tags = [tag for tag in dict.fromkeys((newest, self.tag)) if tag is not None]
        return tuple(found for tag in tags if (found := self._release(tag)) is not None)

    def _release(self, tag: str) -> RemoteRelease | None:
        url = release_url(self.base_url, self.repo, tag, INDEX_NAME)
        if self.reader.read_if_there(HttpSource(url=url)) is None:
            return None
        names = (INDEX_NAME, INDEX_NAME + SIGNATURE_SUFFIX)
        return RemoteRelease(tag=tag, release_id=url, asset_names=names)

    def tag_commit(self, tag: str) -> str | None:
        """Return None: a web root has no tags."""
        return None

    def is_tag_burned(self, tag: str) -> bool:
        """Return False: a web root does not know."""
        return False

    def read(self, release: RemoteRelease, name: str, max_bytes: int) -> bytes | None:
        """Fetch a small asset."""
        url = release_url(self.base_url, self.repo, release.tag, name)
        return self.reader.read_if_there(HttpSource(url=url), max_bytes=max_bytes)


@contextmanager
def open_remote(words: str, *, repo: str, tag: str, reader: Reader) -> Iterator[RemoteView]:
    """Yield the remote that `--remote` names: `github`, `none`, `dir:PATH`, or an address.

    Raises:
        UsageError: `remote-unknown`.
        ConfigError: `address-refused`; as `open_github`.
    """
    if words == "github":
        with open_github(repo) as view:
            yield view
    elif words == "none":
        yield NoRemote()
    elif words.startswith("dir:") and len(words) > len("dir:"):
        yield open_folder(Path(words.removeprefix("dir:")), repo)
    elif words.startswith(("https://", "http://")):
        yield WebRemote(base_url=require_allowed(words, "--remote"), repo=repo, tag=tag, reader=reader)
    else:
        raise UsageError(
            "remote-unknown",
            f"there is no remote {words[:80]!r}",
            hint="--remote is github, none, dir:PATH, or the address of a web root",
        )


def require_sequence(given: int | None, highest: int) -> int:
    """Return the number of the new release: the next one, or the one that was given.

    Raises:
        ConfigError: `sequence-not-higher`.
    """
    if given is None:
        return highest + 1
    if given <= highest:
        raise ConfigError(
            "sequence-not-higher",
            f"release {given} cannot follow release {highest}",
            why="the remote has a release of that number already, and clients refuse older ones",
            hint="leave out --sequence",
        )
    return given
