"""One upload on the wire: complete, stalled, broken off, and never of a file that changes underneath."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from opencoti.errors import StorageError, VerificationError
from opencoti.hashing import sha256_bytes
from release.remote.limits import Clock
from release.remote.model import LocalFile, PassingError
from release.remote.settings import GitHubSettings
from release.remote.upload import Uploader
from tests.fakes.github.faults import Script
from tests.fakes.github.server import GitHub
from tests.fakes.github.state import Release

CONTENT = bytes(range(256)) * 4096  # four blocks of the uploader
UPLOAD = "repos/upload-release-asset"


@pytest.fixture
def github() -> Iterator[GitHub]:
    with GitHub() as github:
        yield github


@pytest.fixture
def draft(github: GitHub) -> Release:
    return github.store.publish_directly("c7", {}, is_draft=True)


@pytest.fixture
def file(tmp_path: Path) -> LocalFile:
    path = tmp_path / "engine.bin"
    path.write_bytes(CONTENT)
    return LocalFile(name="engine.bin", path=path, size=len(CONTENT), sha256=sha256_bytes(CONTENT))


def send(
    github: GitHub,
    draft: Release,
    file: LocalFile,
    told: list[int] | None = None,
    *,
    stall_s: float = 30.0,
) -> int:
    settings = GitHubSettings(token=github.token, api_url=github.api_url, stall_s=stall_s, answer_s=30.0)
    address = f"{github.upload_url}/repos/{github.repo}/releases/{draft.release_id}/assets"
    with Uploader(settings, Clock()) as uploader:
        tell = (lambda sent: None) if told is None else told.append
        return uploader.send(address, file, tell).status


def test_every_byte_arrives_and_progress_is_told(github: GitHub, draft: Release, file: LocalFile) -> None:
    told: list[int] = []
    assert send(github, draft, file, told) == 201
    asset = draft.named("engine.bin")
    assert asset is not None
    assert (asset.sha256, asset.state) == (file.sha256, "uploaded")
    assert told == sorted(told)
    assert told[-1] == len(CONTENT)
    assert github.shapes.breaches == []


@pytest.mark.parametrize("change", [b"", b"short", CONTENT + b"longer", CONTENT[:-1] + b"?"])
def test_a_file_that_changed_never_becomes_a_whole_asset(
    github: GitHub, draft: Release, file: LocalFile, change: bytes
) -> None:
    file.path.write_bytes(change)
    with pytest.raises(VerificationError) as caught:
        send(github, draft, file)
    assert caught.value.error_id == "publish-file-changed"
    asset = draft.named("engine.bin")
    assert asset is None or asset.state == "starter"


def test_a_file_that_is_gone_is_named(github: GitHub, draft: Release, file: LocalFile) -> None:
    file.path.unlink()
    with pytest.raises(StorageError, match=r"engine\.bin"):
        send(github, draft, file)


@pytest.mark.parametrize("fault", ["middle", "middle-clean", "reset", "reset-done", "slow", "stall"])
def test_broken_connections_and_stalls_may_pass(
    github: GitHub, draft: Release, tmp_path: Path, fault: str
) -> None:
    path = tmp_path / "large.bin"
    path.write_bytes(bytes(32 << 20))  # more than the buffers of the system between us and the fake
    large = LocalFile(name="large.bin", path=path, size=32 << 20, sha256=sha256_bytes(bytes(32 << 20)))
    github.decide = Script({UPLOAD: [fault]})  # type: ignore[list-item]
    with pytest.raises(PassingError):
        send(github, draft, large, stall_s=0.4)


def test_a_name_that_is_there_is_answered_before_all_is_sent(
    github: GitHub, draft: Release, file: LocalFile
) -> None:
    assert send(github, draft, file) == 201
    assert send(github, draft, replace(file)) == 422
