"""What a plan sees of a remote: through a folder, a web root, and the publisher's own remotes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from opencoti.errors import OpencotiError
from opencoti.fetch.documents import Reader
from opencoti.fetch.download import Tools
from opencoti.fetch.settings import Limits
from opencoti.fetch.transport import HttpxTransport
from opencoti.trust.keys import TrustedKeys
from release.checking.served import serve_folder
from release.keys import SecretKey
from release.planning.publisher_view import PublisherView, open_folder
from release.planning.remote_readers import WebRemote, open_remote, require_sequence
from release.planning.remote_view import RemoteFacts, RemoteView, survey
from release.remote.model import NotThereError, PassingError, RefusedError, RemoteAsset, RemoteRelease
from tests.conftest import RecordedConsole
from tests.unit.release.samples import NOW, REPO, signed_index, trusted_root

KEY = SecretKey.generate()
KEYS = trusted_root(KEY)


def put(web: Path, tag: str, sequence: int, *, is_latest: bool = True, key: SecretKey = KEY) -> None:
    data, signature = signed_index(key, tag=tag, sequence=sequence)
    places = [f"download/{tag}"] + (["latest/download"] if is_latest else [])
    for place in places:
        folder = web / REPO / "releases" / place
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "opencoti-release.json").write_bytes(data)
        (folder / "opencoti-release.json.minisig").write_bytes(signature)


def look(view: RemoteView, tag: str = "c9", keys: TrustedKeys = KEYS) -> RemoteFacts:
    return survey(view, repo=REPO, tag=tag, keys=keys, now=NOW)


def reader(tools: Tools) -> Reader:
    return Reader(tools, Limits(timeout_s=30, tries=1), RecordedConsole().console)


def test_folder_tells_all_releases(tmp_path: Path) -> None:
    for tag, sequence in (("c1", 1), ("c3", 3), ("c2", 2)):
        put(tmp_path, tag, sequence)
    (tmp_path / REPO / "releases/download/.unfinished").mkdir()
    (tmp_path / REPO / "releases/download/by-hand").mkdir()  # a release that has no index is not ours
    facts = look(open_folder(tmp_path, REPO))
    assert [item.index.tag for item in facts.surveyed] == ["c1", "c2", "c3"]
    assert (facts.highest_sequence, facts.tag_state) == (3, "none")
    assert look(open_folder(tmp_path, REPO), "c2").tag_state == "published"
    assert look(open_folder(tmp_path / "none", REPO)).surveyed == ()


def test_unsigned_or_foreign_index_stops_the_plan(tmp_path: Path) -> None:
    put(tmp_path, "c1", 1)
    put(tmp_path, "c2", 2**40, key=SecretKey.generate())
    with pytest.raises(OpencotiError) as caught:
        look(open_folder(tmp_path, REPO))
    assert caught.value.error_id == "signature-key-unknown"
    (tmp_path / REPO / "releases/download/c2/opencoti-release.json.minisig").unlink()
    with pytest.raises(OpencotiError) as caught:
        look(open_folder(tmp_path, REPO))
    assert caught.value.error_id == "remote-index-unsigned"


def test_web_root_shows_the_newest_release_and_that_of_the_tag(tmp_path: Path) -> None:
    put(tmp_path, "c1", 1)
    put(tmp_path, "c2", 2)
    put(tmp_path, "old-3", 3, is_latest=False)
    with serve_folder(tmp_path) as url, HttpxTransport(timeout_s=30) as transport:
        read = reader(Tools(transport=transport, sleep=lambda _: None))
        view = WebRemote(base_url=url, repo=REPO, tag="c1", reader=read)
        facts = look(view, "c1")
        assert [item.index.tag for item in facts.surveyed] == ["c1", "c2"]
        assert (facts.highest_sequence, facts.tag_state, facts.where) == (2, "published", url)
        empty = WebRemote(base_url=url, repo="a/b", tag="c1", reader=read)
        assert look(empty, "c1").highest_sequence == 0


@pytest.mark.parametrize(
    ("words", "error"),
    [("nowhere", "remote-unknown"), ("dir:", "remote-unknown"), ("http://example.com", "address-refused")],
)
def test_remote_that_is_no_remote_is_refused(words: str, error: str) -> None:
    transport = HttpxTransport(timeout_s=1)
    read = reader(Tools(transport=transport))
    with (
        pytest.raises(OpencotiError) as caught,
        transport,
        open_remote(words, repo=REPO, tag="c1", reader=read),
    ):
        pass
    assert caught.value.error_id == error


def test_sequence_never_goes_down() -> None:
    assert [require_sequence(None, 7), require_sequence(9, 7)] == [8, 9]
    with pytest.raises(OpencotiError):
        require_sequence(7, 7)


@dataclass
class FakeRemote:
    """The part of the publisher's `Remote` that is used for looking; fails as often as it is told."""

    listed: tuple[RemoteRelease, ...]
    files: dict[int, bytes]
    troubles: list[Exception] = field(default_factory=list)
    where: str = "https://example.com/a/b"
    is_public: bool = True

    def releases(self) -> Sequence[RemoteRelease]:
        if self.troubles:
            raise self.troubles.pop()
        return self.listed

    def tag_commit(self, tag: str) -> str | None:
        return "3" * 40 if tag == "c9" else None

    def read(self, release: RemoteRelease, asset: RemoteAsset, max_bytes: int) -> bytes:
        if asset.asset_id not in self.files:
            raise NotThereError("gone")
        return self.files[asset.asset_id]


def fake_remote(*troubles: Exception) -> FakeRemote:
    data, signature = signed_index(KEY, tag="c1", sequence=5)
    names = ("opencoti-release.json", "opencoti-release.json.minisig")
    assets = tuple(
        RemoteAsset(asset_id=number, name=name, size=1, is_uploaded=True, sha256=None)
        for number, name in enumerate(names, 1)
    )
    starter = RemoteAsset(asset_id=9, name="half", size=0, is_uploaded=False, sha256=None)
    listed = (
        RemoteRelease(release_id=10, tag="c1", is_draft=False, target="main", assets=assets),
        RemoteRelease(release_id=11, tag="c9", is_draft=True, target="main", assets=(starter,)),
        RemoteRelease(release_id=12, tag="c9", is_draft=True, target="main"),
    )
    return FakeRemote(listed=listed, files={1: data, 2: signature}, troubles=list(troubles))


def test_drafts_and_tags_of_the_publishers_remote_are_seen() -> None:
    """Case B32: two drafts of one tag."""
    facts = look(PublisherView(fake_remote()))  # type: ignore[arg-type]
    assert (facts.tag_state, facts.drafts, facts.tag_commit) == ("draft", ("11", "12"), "3" * 40)
    assert (facts.highest_sequence, facts.asset_names) == (5, ())


def test_passing_trouble_is_sat_out_and_lasting_trouble_ends_it() -> None:
    pauses: list[float] = []
    troubles = [PassingError("busy", wait_s=7.0), PassingError("reset")]
    view = PublisherView(fake_remote(*troubles), sleep=pauses.append)  # type: ignore[arg-type]
    assert look(view).highest_sequence == 5
    assert pauses == [1.0, 7.0]
    for lasting in ([PassingError("down")] * 5, [PassingError("limit", wait_s=3600.0)], [RefusedError("no")]):
        view = PublisherView(fake_remote(*lasting), sleep=pauses.append)  # type: ignore[arg-type]
        with pytest.raises(OpencotiError) as caught:
            look(view)
        assert (caught.value.error_id, caught.value.exit_code) == ("remote-unreadable", 7)
