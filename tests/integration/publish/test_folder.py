"""A folder as the remote: published, published again, killed in between, and read by the real client."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from opencoti.errors import BusyError, OpencotiError, StorageError
from opencoti.fetch.download import Tools
from opencoti.fetch.get import fetch
from opencoti.fetch.release import ReleaseWish, Resolver, Trust
from opencoti.fetch.settings import Settings
from opencoti.fetch.transport import HttpxTransport
from opencoti.hashing import sha256_bytes, sha256_file
from release.keys import SecretKey
from release.publish import Options, Outcome, publish
from release.remote.folder import FolderRemote
from release.remote.limits import PROMPT, Patience
from tests.conftest import ROOT, RecordedConsole
from tests.fakes.github.state import FakeClock
from tests.fakes.staged_release import ENGINE, StagedRelease
from tests.integration.publish.bench import NOW, candidate_of, clock_of
from tests.unit.release.samples import REPO, trusted_root

KILLER = Path(__file__).with_name("kill_in_folder.py")


def release(folder: Path, **changes: Any) -> StagedRelease:
    return StagedRelease(folder=folder, **changes).write()


def publish_to(
    root: Path,
    staged: StagedRelease,
    options: Options | None = None,
    *,
    console: RecordedConsole | None = None,
) -> Outcome:
    candidate = candidate_of(staged, is_github=False)
    clock = clock_of(FakeClock())
    patience = Patience(console=(console or RecordedConsole()).console, limits=PROMPT, clock=clock)
    with FolderRemote(root, candidate.index.repo).held() as remote:
        return publish(candidate, remote, options or Options(), patience)


def public(root: Path, tag: str) -> dict[str, str]:
    folder = root / REPO / "releases" / "download" / tag
    return {path.name: sha256_file(path) for path in folder.iterdir()}


def latest(root: Path) -> str:
    return os.readlink(root / REPO / "releases" / "latest" / "download")


@contextmanager
def served(root: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is that of the base
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(root))) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("part_bytes", [0, 16384])
@pytest.mark.parametrize("tag", [None, "c7"])
def test_the_real_client_fetches_what_was_published(tmp_path: Path, part_bytes: int, tag: str | None) -> None:
    staged = release(tmp_path / "staged", part_bytes=part_bytes)
    outcome = publish_to(tmp_path / "www", staged)
    assert outcome.state == "published"
    with served(tmp_path / "www") as url, HttpxTransport(timeout_s=30) as transport:
        settings = Settings(artifacts=tmp_path / "artifacts", base_url=url)
        console = RecordedConsole().console
        tools = Tools(transport=transport, sleep=lambda _: None)
        trust = Trust(folder=tmp_path / "trust", anchor=trusted_root(staged.key), now=lambda: NOW)
        resolved = Resolver(settings, trust, console, tools).resolve(ReleaseWish(repository=REPO, tag=tag))
        done = fetch(
            resolved.request,
            settings,
            console,
            find_chunks=resolved.find_blueprint,
            allow_trial=False,
        )
    assert sha256_file(done.path) == sha256_bytes(staged.engine)
    assert done.path.name == ENGINE


def test_published_again_nothing_changes(tmp_path: Path) -> None:
    staged, root = release(tmp_path / "staged"), tmp_path / "www"
    publish_to(root, staged)
    assert public(root, "c7") == staged.digests()
    times = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    assert publish_to(root, staged).state == "unchanged"
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.name != ".lock"} == {
        path: time for path, time in times.items() if path.name != ".lock"
    }


def test_other_files_under_a_public_tag_are_refused(tmp_path: Path) -> None:
    root = tmp_path / "www"
    publish_to(root, release(tmp_path / "a"))
    other = release(tmp_path / "b", engine=b"other bytes" * 1000, part_bytes=0)
    with pytest.raises(OpencotiError) as caught:
        publish_to(root, other, Options(allow_replace=True))
    assert caught.value.error_id == "release-published-differs"


def test_latest_leads_to_the_newest_release_only(tmp_path: Path) -> None:
    root, key = tmp_path / "www", SecretKey.generate()
    old = release(tmp_path / "a", tag="c7", sequence=5, key=key)
    new = release(tmp_path / "b", tag="c8", sequence=6, key=key)
    back = release(tmp_path / "c", tag="c7.1", sequence=7, key=key)
    publish_to(root, old)
    publish_to(root, new)
    assert latest(root) == "../download/c8"
    publish_to(root, old)  # again: it is public already, and older
    assert latest(root) == "../download/c8"
    publish_to(root, back, Options(make_latest="false"))
    assert latest(root) == "../download/c8"


def test_a_number_that_is_taken_is_refused(tmp_path: Path) -> None:
    root, key = tmp_path / "www", SecretKey.generate()
    publish_to(root, release(tmp_path / "a", tag="c7", sequence=5, key=key))
    with pytest.raises(OpencotiError) as caught:
        publish_to(root, release(tmp_path / "b", tag="c8", sequence=5, key=key))
    assert caught.value.error_id == "publish-sequence-taken"


def test_two_publishers_do_not_mix(tmp_path: Path) -> None:
    staged = release(tmp_path / "staged")
    with FolderRemote(tmp_path / "www", REPO).held(), pytest.raises(BusyError):
        publish_to(tmp_path / "www", staged)


def test_a_real_folder_in_the_place_of_the_link_is_not_removed(tmp_path: Path) -> None:
    theirs = tmp_path / "www" / REPO / "releases" / "latest" / "download"
    theirs.mkdir(parents=True)
    (theirs / "mine.txt").write_text("keep me")
    with pytest.raises(StorageError) as caught:
        publish_to(tmp_path / "www", release(tmp_path / "staged"))
    assert caught.value.error_id == "latest-no-link"
    assert (theirs / "mine.txt").read_text() == "keep me"


def test_a_damaged_file_of_an_earlier_run_stops(tmp_path: Path) -> None:
    staged, root = release(tmp_path / "staged"), tmp_path / "www"
    draft = root / REPO / "releases" / ".drafts" / "c7"
    draft.mkdir(parents=True)
    about = root / REPO / "releases" / ".about" / "c7.json"
    about.parent.mkdir()
    about.write_text(f'{{"commit": "{staged.commit}"}}')
    (draft / "plan.json").write_bytes(b"something else")
    (draft / f"{ENGINE}.chunks").write_bytes((staged.folder / f"{ENGINE}.chunks").read_bytes()[:100])
    with pytest.raises(OpencotiError) as caught:
        publish_to(root, staged)
    assert caught.value.error_id == "asset-differs"
    assert (draft / "plan.json").read_bytes() == b"something else"
    # What is the beginning of ours was never finished: that needs no permission.
    assert (draft / f"{ENGINE}.chunks").read_bytes() == (staged.folder / f"{ENGINE}.chunks").read_bytes()
    assert publish_to(root, staged, Options(allow_replace=True)).removed == ("plan.json",)
    assert public(root, "c7") == staged.digests()


@pytest.mark.parametrize("step", [1, 4, 7, 11, 17, 23, 30, 41])
def test_killed_hard_at_any_change_the_next_run_completes_it(tmp_path: Path, step: int) -> None:
    staged, root = release(tmp_path / "staged"), tmp_path / "www"
    words = ["--tag", "c7", "--dir", staged.folder, "--to", f"dir:{root}", "--pubkey", staged.key.public.text]
    argv = [sys.executable, KILLER, str(step), "publish", *words]
    code = subprocess.run(
        [str(word) for word in argv],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=300,
        check=False,
    ).returncode
    assert code == -signal.SIGKILL
    download = root / REPO / "releases" / "download" / "c7"
    if download.exists():
        assert public(root, "c7") == staged.digests()
    outcome = publish_to(root, staged)
    assert outcome.state in ("published", "unchanged")
    assert public(root, "c7") == staged.digests()
    assert latest(root) == "../download/c7"


@pytest.mark.parametrize("text", ["[]", "7", "[" * 100_000, "\udcff", '{"commit": 5}'])
def test_what_others_wrote_about_a_release_is_no_reason_to_break(tmp_path: Path, text: str) -> None:
    staged, releases = release(tmp_path / "staged"), tmp_path / "www" / REPO / "releases"
    (releases / "download" / "c1").mkdir(parents=True)
    (releases / ".drafts" / "c7").mkdir(parents=True)
    (releases / ".about").mkdir()
    for tag in ("c1", "c7"):
        (releases / ".about" / f"{tag}.json").write_text(text, "utf-8", "surrogateescape")
    with pytest.raises(OpencotiError) as caught:
        publish_to(tmp_path / "www", staged)
    assert caught.value.error_id == "draft-of-other-commit"
    assert publish_to(tmp_path / "www", staged, Options(allow_replace=True)).state == "published"
    assert public(tmp_path / "www", "c7") == staged.digests()


def test_an_index_that_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    other = tmp_path / "www" / REPO / "releases" / "download" / "c1"
    other.mkdir(parents=True)
    os.mkfifo(other / "opencoti-release.json")
    assert publish_to(tmp_path / "www", release(tmp_path / "staged")).state == "published"
