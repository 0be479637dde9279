"""The answers of the fake GitHub when nothing goes wrong: one method for each operation that it knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tests.fakes.github.shapes import Match
from tests.fakes.github.state import START, Asset, RefusalError, Release, iso

if TYPE_CHECKING:
    from tests.fakes.github.server import GitHub

Answer = tuple[int, Any, dict[str, str]]
_OWNER = 5
_COLUMNS = (
    "avatar_url", "events_url", "followers_url", "following_url", "gists_url", "gravatar_id", "html_url",
    "login", "node_id", "organizations_url", "received_events_url", "repos_url", "starred_url",
    "subscriptions_url", "url", "type",
)  # fmt: skip


class Answers:
    """Reads and changes the store of one fake."""

    def __init__(self, github: GitHub) -> None:
        self._github = github
        self._store = github.store

    def answer(
        self, match: Match, query: dict[str, str], body: dict[str, Any], headers: Mapping[str, str]
    ) -> Answer:
        name = match.id.partition("/")[2].replace("-", "_")
        done: Answer = getattr(self, f"_{name}")(match.values, query, body, headers)
        return done

    def _list_releases(self, values: Any, query: Any, body: Any, headers: Any) -> Answer:
        shown = self._store.listed()
        if not self._store.can_write:  # drafts are shown to those who may write
            shown = [release for release in shown if not release.is_draft]
        return self._page([self.release(item) for item in shown], query, "/releases")

    def _create_release(self, values: Any, query: Any, body: Any, headers: Any) -> Answer:
        return 201, self.release(self._store.create(body)), {}

    def _get_release(self, values: Any, query: Any, body: Any, headers: Any) -> Answer:
        return 200, self.release(self._store.release(int(values["release_id"]))), {}

    def _update_release(self, values: Any, query: Any, body: Any, headers: Any) -> Answer:
        release = self._store.release(int(values["release_id"]))
        return 200, self.release(self._store.update(release, body)), {}

    def _delete_release(self, values: Any, query: Any, body: Any, headers: Any) -> Answer:
        self._store.delete_release(self._store.release(int(values["release_id"])))
        return 204, None, {}

    def _list_release_assets(self, values: Any, query: Any, body: Any, headers: Any) -> Answer:
        release = self._store.release(int(values["release_id"]))
        rows = [self.asset(release, asset) for asset in self._store.listed_assets(release)]
        return self._page(rows, query, f"/releases/{release.release_id}/assets")

    def _get_release_asset(self, values: Any, query: Any, body: Any, headers: Any) -> Answer:
        release, asset = self._store.find_asset(int(values["asset_id"]))
        if "octet-stream" in headers.get("accept", ""):
            if asset.state != "uploaded":
                raise RefusalError(404, "Not Found")
            return 302, None, {"Location": f"{self._github.url('download')}/_storage/{asset.asset_id}"}
        return 200, self.asset(release, asset), {}

    def _delete_release_asset(self, values: Any, query: Any, body: Any, headers: Any) -> Answer:
        self._store.delete_asset(*self._store.find_asset(int(values["asset_id"])))
        return 204, None, {}

    def _get_ref(self, values: Any, query: Any, body: Any, headers: Any) -> Answer:
        tag = values["ref"].removeprefix("tags/")
        if tag not in self._store.tags:
            raise RefusalError(404, "Not Found")
        is_annotated = tag in self._store.annotated
        sha = self._store.annotated.get(tag, self._store.tags[tag])
        kind = "tag" if is_annotated else "commit"
        target = {"type": kind, "sha": sha, "url": f"{self._base}/git/{kind}s/{sha}"}
        url = f"{self._base}/git/{values['ref']}"
        return 200, {"ref": f"refs/tags/{tag}", "node_id": "x", "url": url, "object": target}, {}

    def _get_tag(self, values: Any, query: Any, body: Any, headers: Any) -> Answer:
        for tag, sha in self._store.annotated.items():
            if sha == values["tag_sha"]:
                commit = self._store.tags[tag]
                target = {"type": "commit", "sha": commit, "url": f"{self._base}/git/commits/{commit}"}
                who = {"date": iso(START), "email": "a@example.invalid", "name": "a"}
                data = {"node_id": "x", "tag": tag, "sha": sha, "url": f"{self._base}/git/tags/{sha}"}
                return 200, data | {"message": "", "tagger": who, "object": target}, {}
        raise RefusalError(404, "Not Found")

    def _get_commit(self, values: Any, query: Any, body: Any, headers: Any) -> Answer:
        sha = values["commit_sha"]
        if sha not in self._store.commits:
            raise RefusalError(404, "Not Found")
        who = {"date": iso(START), "email": "a@example.invalid", "name": "a"}
        url = f"{self._base}/git/commits/{sha}"
        seal = {"verified": False, "reason": "unsigned", "signature": None, "payload": None}
        data = {"sha": sha, "node_id": "x", "url": url, "html_url": url, "author": who, "committer": who}
        tree = {"sha": sha, "url": f"{self._base}/git/trees/{sha}"}
        rest = {"message": "m", "tree": tree, "parents": [], "verification": seal | {"verified_at": None}}
        return 200, data | rest, {}

    def release(self, release: Release) -> dict[str, Any]:
        """Return a release as JSON."""
        url = f"{self._base}/releases/{release.release_id}"
        page = f"{self._github.url('download')}/{self._github.repo}/releases/tag/{quote(release.tag)}"
        uploads = f"{self._github.upload_url}/repos/{self._github.repo}/releases/{release.release_id}/assets"
        at = release.published_at
        return {
            "id": release.release_id,
            "node_id": f"R_{release.release_id}",
            "url": url,
            "assets_url": f"{url}/assets",
            "upload_url": uploads + "{?name,label}",
            "html_url": page,
            "tarball_url": None if release.is_draft else page,
            "zipball_url": None if release.is_draft else page,
            "tag_name": release.tag,
            "target_commitish": release.target,
            "name": release.title,
            "body": release.body,
            "draft": release.is_draft,
            "prerelease": release.is_prerelease,
            "immutable": release.is_immutable,
            "created_at": iso(START),
            "published_at": None if at is None else iso(at),
            "author": self._user(),
            "assets": [self.asset(release, asset) for asset in self._store.listed_assets(release)],
        }

    def asset(self, release: Release, asset: Asset) -> dict[str, Any]:
        """Return an asset as JSON."""
        files = f"{self._github.url('download')}/{self._github.repo}/releases/download"
        has_digest = self._store.digests and asset.state == "uploaded"
        return {
            "id": asset.asset_id,
            "node_id": f"A_{asset.asset_id}",
            "url": f"{self._base}/releases/assets/{asset.asset_id}",
            "browser_download_url": f"{files}/{quote(release.tag)}/{quote(asset.name)}",
            "name": asset.name,
            "label": "",
            "state": asset.state,
            "content_type": "application/octet-stream",
            "size": asset.size,
            "digest": f"sha256:{asset.sha256}" if has_digest else None,
            "download_count": 0,
            "created_at": iso(START),
            "updated_at": iso(START),
            "uploader": self._user(),
        }

    def file(self, path: str) -> bytes | None:
        """Return what the host of downloads gives out under a path."""
        if path.startswith("/_storage/"):
            try:
                return self._store.find_asset(int(path.rpartition("/")[2]))[1].data
            except RefusalError:
                return None
        base = f"/{self._github.repo}/releases/"
        head, _, name = path.removeprefix(base).rpartition("/")
        tag = self._store.latest if head == "latest/download" else head.removeprefix("download/")
        for release in self._store.releases.values():
            if release.tag == tag and not release.is_draft and (asset := release.named(name)) is not None:
                return asset.data if asset.state == "uploaded" else None
        return None

    @property
    def _base(self) -> str:
        return f"{self._github.api_url}/repos/{self._github.repo}"

    def _page(self, rows: list[Any], query: dict[str, str], path: str) -> Answer:
        size, page = min(100, int(query.get("per_page", "30"))), int(query.get("page", "1"))
        headers = {}
        if len(rows) > size * page:
            link = f"{self._base}{path}?per_page={size}&page={page + 1}"
            headers["Link"] = f'<{link}>; rel="next"'
        return 200, rows[size * (page - 1) : size * page], headers

    def _user(self) -> dict[str, Any]:
        return dict.fromkeys(_COLUMNS, f"{self._github.api_url}/users/bot") | {
            "id": _OWNER,
            "gravatar_id": "",
            "login": "bot",
            "type": "Bot",
            "site_admin": False,
        }
