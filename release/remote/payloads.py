"""Answers of GitHub as types of ours. A wrong form may pass: proxies answer for GitHub now and then."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from opencoti.hashing import is_sha256
from release.remote.model import PassingError, RemoteAsset, RemoteRelease

if TYPE_CHECKING:
    from github.GitRelease import GitRelease
    from github.GitReleaseAsset import GitReleaseAsset

_UPLOADED = "uploaded"
_DIGEST_PREFIX = "sha256:"
Name = Annotated[str, Field(min_length=1, max_length=1000)]
Id = Annotated[int, Field(ge=1)]
PayloadT = TypeVar("PayloadT", bound="_Payload")


class _Payload(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", from_attributes=True, frozen=True)


class AssetPayload(_Payload):
    """What is read of an asset. `digest` is null for files older than the field."""

    id: Id
    name: Name
    size: Annotated[int, Field(ge=0)]
    state: Name
    digest: str | None = None

    @classmethod
    def parse(cls, data: object) -> RemoteAsset:
        """Return the asset that JSON data describes. Raises `PassingError`."""
        return _read(cls, data).asset()

    def asset(self) -> RemoteAsset:
        """Return it as a type of ours."""
        digest = (self.digest or "").removeprefix(_DIGEST_PREFIX)
        return RemoteAsset(
            asset_id=self.id,
            name=self.name,
            size=self.size,
            is_uploaded=self.state == _UPLOADED,
            sha256=digest if is_sha256(digest) else None,
        )


class ReleasePayload(_Payload):
    """What is read of a release."""

    id: Id
    tag_name: Name
    draft: bool
    target_commitish: str
    body: str | None = None
    published_at: datetime | None = None
    html_url: str = ""
    upload_url: str = ""
    assets: list[AssetPayload] = []


def release_of(release: GitRelease) -> RemoteRelease:
    """Return a release as a type of ours. Raises `PassingError`."""
    found = _read(ReleasePayload, release)
    return RemoteRelease(
        release_id=found.id,
        tag=found.tag_name,
        is_draft=found.draft,
        target=found.target_commitish,
        body=found.body or "",
        published="" if found.published_at is None else found.published_at.isoformat(),
        page=found.html_url,
        upload_url=found.upload_url,
        assets=tuple(asset.asset() for asset in found.assets),
    )


def asset_of(asset: GitReleaseAsset) -> RemoteAsset:
    """Return an asset as a type of ours. Raises `PassingError`."""
    return AssetPayload.parse(asset)


def _read(model: type[PayloadT], data: object) -> PayloadT:
    try:
        return model.model_validate(data)
    except ValidationError as exc:
        raise PassingError("the answer is not of the expected form") from exc
