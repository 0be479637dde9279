"""Vendoring with the real pip and the real git, from indexes and repositories on this machine."""

from __future__ import annotations

import http.server
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ci.paths import Layout
from ci.sources.vendoring import vendor
from opencoti.errors import OpencotiError
from tests.conftest import RecordedConsole
from tests.fakes.source_trees import (
    FILES,
    FOLDER,
    TOP,
    Checkout,
    entry,
    git,
    make_archive,
    make_checkout,
    make_sdist,
)

FILE = "engine_src-1.0.tar.gz"


@pytest.fixture(autouse=True)
def _closed_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pip as on a machine without any setting, which looks nowhere by itself."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_RETRIES", "0")
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip finds archives in."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def pinned(layout: Layout, shelf: Path) -> Checkout:
    checkout = Checkout(layout)
    checkout.write_pin(make_sdist(shelf / FILE, FILES))
    return checkout


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def fails(checkout: Checkout, recorded: RecordedConsole, *, offline: bool = False) -> OpencotiError:
    """Vendor, expect a failure that names the pin, and check that nothing half done stays."""
    with pytest.raises(OpencotiError) as caught:
        vendor(checkout.layout, checkout.pin, recorded.console, offline=offline)
    assert "llama.cpp.txt" in str(caught.value)
    left = sorted(path.name for path in checkout.layout.sources.iterdir())
    assert left == [".llama.cpp.lock"]
    assert not list(checkout.layout.downloads.rglob(".part-*"))
    return caught.value


def test_sdist_is_found_by_hash_unpacked_and_measured(
    layout: Layout, shelf: Path, recorded: RecordedConsole
) -> None:
    checkout = pinned(layout, shelf)
    source = vendor(layout, checkout.pin, recorded.console)
    assert contents(source.folder) == FILES
    # The same tree id as a plain git gives, with the file that the tree's own attributes would convert.
    scratch = layout.root / "scratch"
    shutil.copytree(source.folder, scratch)
    git(scratch, "init", "-q")
    (scratch / ".git" / "info").mkdir(exist_ok=True)
    (scratch / ".git" / "info" / "attributes").write_text("* -text\n")
    git(scratch, "add", "-A", "-f")
    assert git(scratch, "write-tree").strip() == source.tree
    assert f"tree={source.tree}" in recorded.text


def test_tree_id_does_not_depend_on_umask_or_the_users_git(
    layout: Layout, shelf: Path, recorded: RecordedConsole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = pinned(layout, shelf)
    first = vendor(layout, checkout.pin, recorded.console).tree
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(
        "[core]\n autocrlf = true\n excludesFile = ~/ignore\n fileMode = false\n"
    )
    (home / "ignore").write_text("*\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    shutil.rmtree(layout.root / "build")
    shutil.rmtree(layout.sources)
    old = os.umask(0o077)
    try:
        assert vendor(layout, checkout.pin, recorded.console).tree == first
    finally:
        os.umask(old)


def test_second_run_reads_no_archive_and_writes_nothing(
    layout: Layout, shelf: Path, recorded: RecordedConsole
) -> None:
    checkout = pinned(layout, shelf)
    source = vendor(layout, checkout.pin, recorded.console)
    shutil.rmtree(layout.downloads)
    before = {path: path.stat().st_mtime_ns for path in source.folder.rglob("*")}
    assert vendor(layout, checkout.pin, recorded.console, offline=True) == source
    assert {path: path.stat().st_mtime_ns for path in source.folder.rglob("*")} == before


def test_changed_tree_is_replaced_from_the_cache_with_a_warning(
    layout: Layout, shelf: Path, recorded: RecordedConsole
) -> None:
    checkout = pinned(layout, shelf)
    source = vendor(layout, checkout.pin, recorded.console)
    checkout.write_pin(checkout.pin.origin.sha256, f"tree={source.tree}")  # type: ignore[union-attr]
    (source.folder / "src" / "main.cpp").write_text("mine")
    (source.folder / "out").mkdir()
    (source.folder / "out" / "ignored.o").write_text("x")
    assert vendor(layout, checkout.pin, recorded.console, offline=True).tree == source.tree
    assert contents(source.folder) == FILES
    assert "WARN" in recorded.text
    assert "was changed" in recorded.text


def test_pin_of_another_tree_fails_with_both_ids(
    layout: Layout, shelf: Path, recorded: RecordedConsole
) -> None:
    checkout = pinned(layout, shelf)
    checkout.write_pin(checkout.pin.origin.sha256, "tree=" + "1" * 40)  # type: ignore[union-attr]
    error = fails(checkout, recorded)
    assert (error.error_id, error.exit_code) == ("source-tree", 6)
    assert "1" * 40 in error.why


def test_wrong_hash_fails_and_the_file_is_not_kept(
    layout: Layout, shelf: Path, recorded: RecordedConsole
) -> None:
    checkout = pinned(layout, shelf)
    checkout.write_pin("0" * 64)
    error = fails(checkout, recorded)
    assert (error.error_id, error.exit_code) == ("source-hash", 6)
    assert not list(layout.downloads.rglob("*.gz"))


def test_release_that_no_index_has_is_a_bad_pin(
    layout: Layout, shelf: Path, recorded: RecordedConsole
) -> None:
    checkout = Checkout(layout)
    sha256 = make_sdist(shelf / "engine_src-0.9.tar.gz", FILES)
    checkout.write_pin(sha256)
    error = fails(checkout, recorded)
    assert (error.error_id, error.exit_code) == ("pin-not-found", 3)
    assert "0.9" in error.why


def test_hostile_archive_with_the_right_hash_is_refused(
    layout: Layout, shelf: Path, recorded: RecordedConsole
) -> None:
    checkout = Checkout(layout)
    bad = [entry(f"{TOP}/{FOLDER}/x", b"x"), entry(f"{TOP}/{FOLDER}/../../../evil", b"x")]
    checkout.write_pin(make_archive(shelf / FILE, bad))
    error = fails(checkout, recorded)
    assert (error.error_id, error.exit_code) == ("archive-unsafe", 6)


def test_offline_without_cache_says_what_is_missing(
    layout: Layout, shelf: Path, recorded: RecordedConsole
) -> None:
    error = fails(pinned(layout, shelf), recorded, offline=True)
    assert (error.error_id, error.exit_code) == ("source-offline", 7)


def test_damaged_download_is_fetched_again(layout: Layout, shelf: Path, recorded: RecordedConsole) -> None:
    checkout = make_checkout(layout)
    (cached,) = layout.downloads.rglob("*.tar.gz")
    good = cached.read_bytes()
    (shelf / FILE).write_bytes(good)
    cached.write_bytes(good[:-100])
    assert contents(vendor(layout, checkout.pin, recorded.console).folder) == FILES
    assert cached.read_bytes() == good
    assert "damaged" in recorded.text


@pytest.mark.parametrize("leftover", [".llama.cpp.new", ".llama.cpp.old"])
def test_leftovers_of_a_killed_run_are_swept(
    layout: Layout, shelf: Path, recorded: RecordedConsole, leftover: str
) -> None:
    checkout = pinned(layout, shelf)
    (layout.sources / leftover / "half").mkdir(parents=True)
    (layout.build / "pristine" / "llama.cpp.git").mkdir(parents=True)
    (layout.build / "pristine" / "llama.cpp.git" / "index.lock").touch()
    vendor(layout, checkout.pin, recorded.console)
    assert sorted(path.name for path in layout.sources.iterdir()) == [".llama.cpp.lock", "llama.cpp"]


Reply = Callable[[http.server.BaseHTTPRequestHandler, bytes], None]


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[Reply], None]]:
    """An index on loopback that lists the archive and sends it as the test says."""
    replies: list[Reply] = []
    archive = tmp_path / "served.tar.gz"

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.endswith(".gz"):
                replies[0](self, archive.read_bytes())
                return
            page = f'<!DOCTYPE html><html><body><a href="/files/{FILE}">{FILE}</a></body></html>'.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *args: object) -> None:
            return None

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple/")
    yield replies.append
    server.shutdown()
    thread.join()
    server.server_close()


def send(handler: http.server.BaseHTTPRequestHandler, data: bytes, *, claimed: int | None = None) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(data) if claimed is None else claimed))
    handler.end_headers()
    handler.wfile.write(data)


def served(layout: Layout, tmp_path: Path) -> Checkout:
    checkout = Checkout(layout)
    checkout.write_pin(make_sdist(tmp_path / "served.tar.gz", FILES))
    return checkout


def test_archive_comes_from_the_configured_index(
    layout: Layout, tmp_path: Path, recorded: RecordedConsole, index: Callable[[Reply], None]
) -> None:
    index(send)
    checkout = served(layout, tmp_path)
    assert contents(vendor(layout, checkout.pin, recorded.console).folder) == FILES
    assert len(list(layout.downloads.rglob(FILE))) == 1


def test_encoding_that_a_server_claims_does_not_change_the_bytes(
    layout: Layout, tmp_path: Path, recorded: RecordedConsole, index: Callable[[Reply], None]
) -> None:
    def mislabel(handler: http.server.BaseHTTPRequestHandler, data: bytes) -> None:
        handler.send_response(200)
        handler.send_header("Content-Encoding", "gzip")
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    index(mislabel)
    checkout = served(layout, tmp_path)
    assert contents(vendor(layout, checkout.pin, recorded.console).folder) == FILES


def test_transfer_that_ends_early_is_a_network_failure(
    layout: Layout, tmp_path: Path, recorded: RecordedConsole, index: Callable[[Reply], None]
) -> None:
    index(lambda handler, data: send(handler, data[: len(data) // 2], claimed=len(data)))
    error = fails(served(layout, tmp_path), recorded)
    assert (error.error_id, error.exit_code) == ("source-download", 7)


@pytest.mark.parametrize(("status", "code"), [(404, 3), (410, 3), (403, 7), (500, 7), (503, 7)])
def test_status_of_the_index_decides_the_exit_code(
    layout: Layout,
    tmp_path: Path,
    recorded: RecordedConsole,
    index: Callable[[Reply], None],
    status: int,
    code: int,
) -> None:
    def refuse(handler: http.server.BaseHTTPRequestHandler, data: bytes) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    index(refuse)
    assert fails(served(layout, tmp_path), recorded).exit_code == code


def test_other_bytes_from_the_index_fail_verification(
    layout: Layout, tmp_path: Path, recorded: RecordedConsole, index: Callable[[Reply], None]
) -> None:
    index(lambda handler, data: send(handler, data[:-1] + b"x"))
    error = fails(served(layout, tmp_path), recorded)
    assert (error.error_id, error.exit_code) == ("source-hash", 6)


def test_index_that_does_not_answer_is_a_network_failure_not_a_bad_pin(
    layout: Layout, tmp_path: Path, recorded: RecordedConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    # Port 9 of loopback refuses connections.
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple/")
    error = fails(served(layout, tmp_path), recorded)
    assert (error.error_id, error.exit_code) == ("source-download", 7)


@pytest.fixture
def upstream(tmp_path: Path) -> Path:
    folder = tmp_path / "upstream"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    for name, data in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    (folder / "run.sh").chmod(0o755)
    (folder / ".git" / "info").mkdir(exist_ok=True)
    (folder / ".git" / "info" / "attributes").write_text("* -text\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def git_pin(layout: Layout, upstream: Path, commit: str) -> Checkout:
    checkout = Checkout(layout)
    checkout.pin_path.parent.mkdir(parents=True)
    checkout.pin_path.write_text(f"file://{upstream} {commit} 1.0\n")
    return checkout


def test_git_pin_gives_the_commits_own_tree_and_then_needs_no_network(
    layout: Layout, upstream: Path, recorded: RecordedConsole
) -> None:
    commit = git(upstream, "rev-parse", "HEAD").strip()
    (upstream / "later").touch()
    git(upstream, "add", "-A")
    git(upstream, "commit", "-q", "-m", "second")
    checkout = git_pin(layout, upstream, commit)
    source = vendor(layout, checkout.pin, recorded.console)
    assert source.tree == git(upstream, "rev-parse", f"{commit}^{{tree}}").strip()
    assert contents(source.folder) == FILES
    shutil.rmtree(upstream)
    shutil.rmtree(source.folder)
    assert vendor(layout, checkout.pin, recorded.console, offline=True) == source


def test_git_pin_failures_have_their_own_codes(
    layout: Layout, upstream: Path, recorded: RecordedConsole, tmp_path: Path
) -> None:
    commit = git(upstream, "rev-parse", "HEAD").strip()
    assert fails(git_pin(layout, upstream, "1" * 40), recorded).error_id == "pin-commit-missing"
    shutil.rmtree(layout.pins)
    assert fails(git_pin(layout, tmp_path / "none", commit), recorded).exit_code == 7
    shutil.rmtree(layout.pins)
    shutil.rmtree(layout.cache / "git")
    assert fails(git_pin(layout, upstream, commit), recorded, offline=True).error_id == "source-offline"


def test_git_pin_with_submodules_is_refused(
    layout: Layout, upstream: Path, recorded: RecordedConsole
) -> None:
    commit = git(upstream, "rev-parse", "HEAD").strip()
    git(upstream, "update-index", "--add", "--cacheinfo", f"160000,{commit},sub")
    git(upstream, "commit", "-q", "-m", "sub")
    checkout = git_pin(layout, upstream, git(upstream, "rev-parse", "HEAD").strip())
    error = fails(checkout, recorded)
    assert (error.error_id, error.exit_code) == ("pin-has-submodules", 3)
    assert "sub" in error.why


def test_pristine_tree_of_another_owner_is_no_obstacle(
    layout: Layout, shelf: Path, recorded: RecordedConsole
) -> None:
    """Case B09: git distrusts a repository of another user, and answers with nothing."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    checkout = pinned(layout, shelf)
    source = vendor(layout, checkout.pin, recorded.console)
    subprocess.run(["chown", "-R", "12345", layout.root], check=True)
    assert vendor(layout, checkout.pin, recorded.console, offline=True).tree == source.tree
