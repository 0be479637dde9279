"""A place that the publisher knows (GitHub, a folder) as something that a plan can look at.

The publisher's remotes make one attempt per call; here a call that may pass is made again a few times.
Whether a tag was used up by an immutable release that is gone, GitHub does not tell before one tries.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from opencoti.errors import NetworkError
from release.planning.remote_view import RemoteRelease, RemoteView
from release.remote import model
from release.remote.model import NotThereError, PassingError, RefusedError, Remote

T = TypeVar("T")
_ATTEMPTS: Final = 5
_LONGEST_PAUSE_S: Final = 60.0


@dataclass
class PublisherView:
    """Looks at releases through the publisher's own remote; keeps the list that it got last."""

    remote: Remote
    sleep: Callable[[float], None] = time.sleep
    _listed: dict[tuple[str, bool], model.RemoteRelease] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """What it is called in messages."""
        return self.remote.where

    def releases(self) -> Sequence[RemoteRelease]:
        """Return all releases, drafts among them."""
        found = self._try(lambda: tuple(self.remote.releases()))
        self._listed = {(str(release.release_id), release.is_draft): release for release in found}
        return tuple(
            RemoteRelease(
                tag=release.tag,
                release_id=str(release.release_id),
                is_draft=release.is_draft,
                asset_names=tuple(sorted(asset.name for asset in release.assets if asset.is_uploaded)),
            )
            for release in found
        )

    def tag_commit(self, tag: str) -> str | None:
        """Return the commit that a tag is on."""
        return self._try(lambda: self.remote.tag_commit(tag))

    def is_tag_burned(self, tag: str) -> bool:
        """Return False: it shows only when the release is made, and the publisher says so then."""
        return False

    def read(self, release: RemoteRelease, name: str, max_bytes: int) -> bytes | None:
        """Fetch a small asset."""
        found = self._listed[release.release_id, release.is_draft]
        asset = next((asset for asset in found.assets if asset.name == name), None)
        if asset is None:
            return None
        try:
            return self._try(lambda: self.remote.read(found, asset, max_bytes))
        except NotThereError:
            return None

    def _try(self, call: Callable[[], T]) -> T:
        for number in range(_ATTEMPTS):
            try:
                return call()
            except PassingError as trouble:
                if number == _ATTEMPTS - 1 or (trouble.wait_s or 0.0) > _LONGEST_PAUSE_S:
                    raise _given_up(self.remote.where, str(trouble)) from trouble
                self.sleep(trouble.wait_s if trouble.wait_s is not None else 2.0**number)
            except RefusedError as refused:
                raise _given_up(self.remote.where, refused.text) from refused
        raise AssertionError


def open_folder(root: Path, repo: str) -> RemoteView:
    """Return the releases of a repository below a folder."""
    from release.remote.folder import FolderRemote

    return PublisherView(FolderRemote(root, repo))


@contextmanager
def open_github(repo: str) -> Iterator[RemoteView]:
    """Yield the releases of a repository on GitHub, by its API; connections are closed at the end.

    Raises:
        ConfigError: `github-token-missing`, `github-token-malformed`, `address-refused`.
    """
    from release.remote.github import GitHubRemote
    from release.remote.settings import GitHubSettings

    with GitHubRemote(repo, GitHubSettings.from_environ(os.environ)) as remote:
        yield PublisherView(remote)


def _given_up(where: str, why: str) -> NetworkError:
    return NetworkError(
        "remote-unreadable",
        f"cannot see what is released on {where}",
        why=why,
        hint="try again later; without the API, --remote https://github.com sees the newest release",
    )
