"""GitHub and GitHub Enterprise as a remote: PyGithub for what is described, our own streams for bytes.

PyGithub's own retries and pauses are off: it would repeat a POST whose answer was lost.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from opencoti.errors import NetworkError
from release.remote.download import Downloader
from release.remote.failures import broken_off, failure_of, permission_error, redirected
from release.remote.limits import Clock
from release.remote.model import (
    LocalFile,
    MakeLatest,
    NewRelease,
    NotThereError,
    PassingError,
    RefusedError,
    RemoteAsset,
    RemoteRelease,
)
from release.remote.payloads import AssetPayload, asset_of, release_of
from release.remote.settings import GitHubSettings
from release.remote.upload import Uploader

if TYPE_CHECKING:
    from github.Repository import Repository

ResultT = TypeVar("ResultT")
_PER_PAGE = 100
# What PyGithub raises besides its own errors when a proxy answers in place of GitHub.
_TRIPPED = (TypeError, KeyError, AttributeError, AssertionError, RecursionError)
_MAX_TAG_DEPTH = 8  # a tag may point to a tag


class GitHubRemote:
    """The releases of one repository. Holds connections until `close` (or the end of its `with` block).

    Args:
        repo: `<owner>/<name>`.
        settings: addresses and token.
        clock: where time comes from.
    """

    def __init__(self, repo: str, settings: GitHubSettings, clock: Clock | None = None) -> None:
        import github

        from opencoti import __version__

        self._repo_name = repo
        self._settings = settings
        self._clock = clock or Clock()
        self._api = github.Github(
            auth=github.Auth.Token(settings.token),
            base_url=settings.api_url,
            timeout=max(1, round(settings.stall_s)),
            verify=settings.ca_file or True,
            user_agent=f"opencoti/{__version__}",
            per_page=_PER_PAGE,
            retry=None,
            seconds_between_requests=None,
            seconds_between_writes=None,
            lazy=True,
        )
        self._uploader = Uploader(settings, self._clock)
        self._downloader = Downloader(settings, self._clock)

    def __enter__(self) -> GitHubRemote:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._api.close()
        self._uploader.close()
        self._downloader.close()

    @property
    def where(self) -> str:
        """What it is called in messages."""
        return f"{self._settings.server_url}/{self._repo_name}"

    def releases(self) -> tuple[RemoteRelease, ...]:
        """Return all releases, drafts among them (`Remote.releases`)."""
        try:
            return self._ask(
                f"list the releases of {self.where}",
                lambda repo: tuple(release_of(item) for item in repo.get_releases()),
            )
        except NotThereError as exc:
            raise _no_repository(self.where) from exc

    def tag_commit(self, tag: str) -> str | None:
        """Return the commit of a tag, whether it is annotated or not (`Remote.tag_commit`)."""
        try:
            return self._ask(f"look up tag {tag}", lambda repo: _commit_of_tag(repo, tag))
        except NotThereError:
            return None

    def has_commit(self, commit: str) -> bool:
        """Tell whether the repository has a commit (`Remote.has_commit`)."""
        try:
            found = self._ask(
                f"look up commit {commit[:12]}", lambda repo: _id_of(repo.get_git_commit(commit).sha)
            )
        except (NotThereError, RefusedError):
            return False
        return found == commit

    def create(self, new: NewRelease) -> RemoteRelease:
        """Make a draft (`Remote.create`)."""
        what = f"make a draft of {new.tag} on {self.where}"
        try:
            return self._ask(
                what,
                lambda repo: release_of(
                    repo.create_git_release(
                        new.tag,
                        new.title,
                        new.body,
                        draft=True,
                        target_commitish=new.commit,
                        make_latest="false",
                    )
                ),
            )
        except NotThereError as exc:
            raise permission_error({}, what) from exc  # who may not write is told that nothing is there

    def find(self, release: RemoteRelease) -> RemoteRelease:
        """Return the present state of a release (`Remote.find`)."""
        return self._ask(
            f"read release {release.release_id}",
            lambda repo: release_of(repo.get_release(release.release_id).complete()),
        )

    def assets(self, release: RemoteRelease) -> tuple[RemoteAsset, ...]:
        """Return the files of a release (`Remote.assets`)."""
        return self._ask(
            f"list the assets of release {release.release_id}",
            lambda repo: tuple(asset_of(item) for item in repo.get_release(release.release_id).get_assets()),
        )

    def asset(self, release: RemoteRelease, asset: RemoteAsset) -> RemoteAsset:
        """Return the present state of one file (`Remote.asset`)."""
        return self._ask(
            f"read asset {asset.asset_id}",
            lambda repo: asset_of(repo.get_release_asset(asset.asset_id).complete()),
        )

    def delete_asset(self, release: RemoteRelease, asset: RemoteAsset) -> None:
        """Remove one file (`Remote.delete_asset`)."""
        self._ask(
            f"delete asset {asset.asset_id} ({asset.name})",
            lambda repo: repo.get_release_asset(asset.asset_id).delete_asset(),
        )

    def delete_draft(self, release: RemoteRelease) -> None:
        """Remove a draft (`Remote.delete_draft`)."""
        assert release.is_draft
        self._ask(
            f"delete draft {release.release_id}",
            lambda repo: repo.get_release(release.release_id).delete_release(),
        )

    def send(self, release: RemoteRelease, file: LocalFile, tell: Callable[[int], None]) -> RemoteAsset:
        """Send one file (`Remote.send`)."""
        address = self._settings.upload_address(release.upload_url)
        answer = self._uploader.send(address, file, tell)
        if answer.status != 201:
            what = f"upload {file.name}"
            raise failure_of(answer.status, answer.headers, answer.data, what=what, now=self._clock.now())
        return AssetPayload.parse(answer.data)

    def sha256_of(self, release: RemoteRelease, asset: RemoteAsset) -> str:
        """Fetch a file and hash it (`Remote.sha256_of`)."""
        return self._downloader.sha256(self._asset_address(asset), f"fetch asset {asset.name}", asset.size)

    def read(self, release: RemoteRelease, asset: RemoteAsset, max_bytes: int) -> bytes:
        """Fetch a small file (`Remote.read`)."""
        what = f"fetch asset {asset.name}"
        return self._downloader.read(self._asset_address(asset), what, asset.size, max_bytes)

    def publish(self, release: RemoteRelease, new: NewRelease, make_latest: MakeLatest) -> RemoteRelease:
        """Make a draft public (`Remote.publish`)."""
        return self._ask(
            f"publish release {release.release_id}",
            lambda repo: release_of(
                repo.get_release(release.release_id).update_release(
                    new.title,
                    new.body,
                    draft=False,
                    tag_name=new.tag,
                    target_commitish=new.commit,
                    make_latest=make_latest,
                )
            ),
        )

    def settle(self, release: RemoteRelease, make_latest: MakeLatest) -> None:
        """Do nothing: here publishing is one step (`Remote.settle`)."""

    def _asset_address(self, asset: RemoteAsset) -> str:
        return f"{self._settings.api_url}/repos/{self._repo_name}/releases/assets/{asset.asset_id}"

    def _ask(self, what: str, act: Callable[[Repository], ResultT]) -> ResultT:
        """Call PyGithub; turn what it and the HTTP library below it raise into failures of ours."""
        import github
        import requests

        try:
            return act(self._api.get_repo(self._repo_name))
        except (github.BadAttributeException, github.IncompletableObject, *_TRIPPED) as exc:
            raise PassingError("the answer is not of the expected form") from exc
        except RuntimeError as exc:
            raise redirected(self._settings.api_url, what) from exc
        except github.GithubException as exc:
            headers = dict(exc.headers or {})
            raise failure_of(exc.status, headers, exc.data, what=what, now=self._clock.now()) from exc
        except requests.Timeout as exc:
            raise PassingError("no answer in time") from exc
        except (requests.RequestException, ValueError) as exc:
            raise broken_off(exc) from exc


def _commit_of_tag(repo: Repository, tag: str) -> str:
    target = repo.get_git_ref(f"tags/{tag}").object
    for _ in range(_MAX_TAG_DEPTH):
        if target.type != "tag":
            return _id_of(target.sha)
        target = repo.get_git_tag(target.sha).object
    raise PassingError(f"tag {tag} points to a tag of a tag, without end")


def _id_of(text: object) -> str:
    """Return a commit id; an answer of somebody else has none."""
    if not isinstance(text, str) or not text:
        raise PassingError("the answer is not of the expected form")
    return text


def _no_repository(where: str) -> NetworkError:
    return NetworkError(
        "github-repository-unknown",
        f"GitHub shows no repository {where}",
        why="it is not there, or the token may not see it",
        hint="check --repo, and that the token is for this repository with `contents: write`",
    )
