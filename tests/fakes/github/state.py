"""What the fake GitHub remembers, and the habits of the real one. No sockets; time is the clock of the test.

Habits: a lookup by tag hides drafts, lists are behind, names are changed, an upload that failed leaves a
placeholder, a tag that an immutable release had is burned, drafts of one tag may be many.
"""

from __future__ import annotations

import hashlib
import re
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

START = 1_780_000_000.0
LIMIT_BYTES = 1 << 31


@dataclass
class FakeClock:
    """A clock that moves only when somebody sleeps."""

    at: float = 0.0
    slept: list[float] = field(default_factory=list)

    def monotonic(self) -> float:
        return self.at

    def now(self) -> float:
        return START + self.at

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.slept.append(seconds)
        self.at += seconds


@dataclass
class Asset:
    asset_id: int
    name: str
    state: str
    size: int
    sha256: str
    data: bytes
    visible_at: float = 0.0
    whole_at: float | None = None

    def settle(self, now: float) -> None:
        """Become whole, where the upload is still being worked on inside."""
        if self.whole_at is not None and now >= self.whole_at:
            self.state, self.whole_at = "uploaded", None


@dataclass
class Release:
    release_id: int
    tag: str
    target: str
    title: str
    body: str
    is_draft: bool
    is_prerelease: bool
    visible_at: float = 0.0
    published_at: float | None = None
    is_immutable: bool = False
    assets: dict[int, Asset] = field(default_factory=dict)

    def named(self, name: str) -> Asset | None:
        return next((asset for asset in self.assets.values() if asset.name == name), None)


class RefusalError(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, message: str, *errors: dict[str, str]) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.errors = errors


def stored_name(name: str) -> str:
    """Return the name under which GitHub stores an asset."""
    return re.sub(r"[^A-Za-z0-9._-]", ".", name).strip(".")


@dataclass
class Store:
    """One repository.

    Attributes:
        list_lag_s: for this long the list of releases does not show a new one.
        asset_lag_s: likewise the list of assets.
        digests: whether assets have a digest.
    """

    repo: str
    clock: FakeClock
    commits: set[str] = field(default_factory=set)
    tags: dict[str, str] = field(default_factory=dict)
    annotated: dict[str, str] = field(default_factory=dict)
    releases: dict[int, Release] = field(default_factory=dict)
    burned: set[str] = field(default_factory=set)
    latest: str = ""
    is_immutable: bool = False
    can_write: bool = True
    digests: bool = True
    keep_bytes: bool = True
    list_lag_s: float = 0.0
    asset_lag_s: float = 0.0
    late_s: float = 5.0
    deleted: list[Asset] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)
    _next_id: int = 1000

    def new_id(self) -> int:
        self._next_id += 7
        return self._next_id

    def create(self, body: dict[str, Any]) -> Release:
        tag = body["tag_name"]
        if any(item.tag == tag and not item.is_draft for item in self.releases.values()):
            raise _invalid("tag_name", "already_exists")
        release = Release(
            release_id=self.new_id(),
            tag=tag,
            target=body.get("target_commitish", "main"),
            title=body.get("name", ""),
            body=body.get("body", ""),
            is_draft=body.get("draft", False),
            is_prerelease=body.get("prerelease", False),
            visible_at=self.clock.at + self.list_lag_s,
        )
        self.releases[release.release_id] = release
        if not release.is_draft:
            self._make_public(release, body)
        return release

    def update(self, release: Release, body: dict[str, Any]) -> Release:
        is_other_tag = body.get("tag_name", release.tag) != release.tag
        if release.is_immutable and (is_other_tag or body.get("draft", False)):
            raise _invalid("tag_name", "custom", "an immutable release cannot be changed")
        was_draft = release.is_draft
        if was_draft and not body.get("draft", True):
            self._require_publishable(body.get("tag_name", release.tag), body)
        release.tag = body.get("tag_name", release.tag)
        release.target = body.get("target_commitish", release.target)
        release.title = body.get("name", release.title)
        release.body = body.get("body", release.body)
        release.is_draft = body.get("draft", release.is_draft)
        if was_draft and not release.is_draft:
            self._make_public(release, body)
        return release

    def _require_publishable(self, tag: str, body: dict[str, Any]) -> None:
        if tag in self.burned:
            raise _invalid("tag_name", "custom", "tag_name was used by an immutable release")
        if any(item.tag == tag and not item.is_draft for item in self.releases.values()):
            raise _invalid("tag_name", "already_exists")
        if tag not in self.tags and body.get("target_commitish", "main") not in self.commits:
            raise _invalid("target_commitish", "invalid")

    def _make_public(self, release: Release, body: dict[str, Any]) -> None:
        self.tags.setdefault(release.tag, release.target)
        release.published_at = self.clock.now()
        release.is_immutable = self.is_immutable
        if self.is_immutable:
            self.burned.add(release.tag)
        if body.get("make_latest", "true") == "true":
            self.latest = release.tag

    def delete_release(self, release: Release) -> None:
        del self.releases[release.release_id]

    def add_asset(self, release: Release, name: str, data: bytes, size: int, sha256: str) -> Asset:
        """Store an asset as a placeholder of `size` bytes; the caller says what becomes of it."""
        if release.is_immutable:
            raise RefusalError(422, "Cannot upload assets to an immutable release")
        name = stored_name(name)
        if release.named(name) is not None:
            raise _invalid("name", "already_exists", resource="ReleaseAsset")
        if not 0 < size < LIMIT_BYTES:
            raise _invalid("size", "custom", "size must be less than 2147483648", resource="ReleaseAsset")
        asset = Asset(
            asset_id=self.new_id(),
            name=name,
            state="starter",
            size=size,
            sha256=sha256,
            data=data,
            visible_at=self.clock.at + self.asset_lag_s,
        )
        release.assets[asset.asset_id] = asset
        return asset

    def delete_asset(self, release: Release, asset: Asset) -> None:
        if release.is_immutable:
            raise RefusalError(422, "Cannot delete assets of an immutable release")
        del release.assets[asset.asset_id]
        self.deleted.append(asset)

    def find_asset(self, asset_id: int) -> tuple[Release, Asset]:
        for release in self.releases.values():
            if asset_id in release.assets:
                asset = release.assets[asset_id]
                asset.settle(self.clock.at)
                return release, asset
        raise RefusalError(404, "Not Found")

    def release(self, release_id: int) -> Release:
        if release_id not in self.releases:
            raise RefusalError(404, "Not Found")
        return self.releases[release_id]

    def listed(self) -> list[Release]:
        shown = [item for item in self.releases.values() if item.visible_at <= self.clock.at]
        return sorted(shown, key=lambda item: item.release_id, reverse=True)

    def listed_assets(self, release: Release) -> list[Asset]:
        for asset in release.assets.values():
            asset.settle(self.clock.at)
        return [asset for asset in release.assets.values() if asset.visible_at <= self.clock.at]

    def publish_directly(self, tag: str, files: dict[str, bytes], *, is_draft: bool = False) -> Release:
        """Put a release there without any call."""
        release = self.create(
            {"tag_name": tag, "target_commitish": "main", "draft": is_draft, "name": tag, "body": ""}
        )
        release.visible_at = 0.0
        for name, data in files.items():
            asset = self.add_asset(release, name, data, len(data), hashlib.sha256(data).hexdigest())
            asset.state, asset.visible_at = "uploaded", 0.0
        return release


def _invalid(name: str, code: str, message: str = "", *, resource: str = "Release") -> RefusalError:
    error = {"resource": resource, "code": code, "field": name}
    return RefusalError(422, "Validation Failed", error | ({"message": message} if message else {}))


def iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
