"""The frozen source: one tarball, the same bytes every time, and a tree that knows what it is without git."""

from __future__ import annotations

import json
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ci.frozen import changed_files, read_record
from ci.paths import Layout
from ci.repository import repository_facts
from opencoti.errors import OpencotiError
from release.planning.freeze import freeze
from release.planning.make import make_plan
from tests.fakes.checkouts import NO_RELEASES, Checkout


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    made = Checkout(tmp_path / "checkout")
    (made.root / "link").symlink_to("tool.sh")
    made.commit_all()
    return made


def unpack(tarball: Path, target: Path) -> Path:
    with tarfile.open(tarball) as tar:
        tar.extractall(target, filter="data")
    (top,) = target.iterdir()
    return top


def test_tarball_is_the_commit_and_nothing_else(checkout: Checkout, tmp_path: Path) -> None:
    done = freeze(checkout.root, None, default_folder=tmp_path / "dist")
    top = unpack(done.path, tmp_path / "unpacked")
    assert top.name == f"opencoti-{checkout.commit[:12]}"
    assert sorted(path.relative_to(top).as_posix() for path in top.rglob("*") if not path.is_dir()) == [
        ".gitignore", "SOURCE.json", "link", "tool.sh", "vendors/llamafile/OPENCOTI_TAG",
        "vendors/patches/llama.cpp/0001-a.patch", "vendors/pin/llama.cpp.txt",
    ]  # fmt: skip
    assert stat.S_IMODE((top / "tool.sh").stat().st_mode) == 0o755
    assert (top / "link").readlink() == Path("tool.sh")
    assert done.file_count == 6
    record = json.loads((top / "SOURCE.json").read_text())
    assert (record["commit"], record["committed"]) == (checkout.commit, "2023-11-14T22:13:20Z")


def test_same_commit_gives_the_same_bytes(checkout: Checkout, tmp_path: Path) -> None:
    first = freeze(checkout.root, None, default_folder=tmp_path / "a")
    for path in checkout.root.rglob("*.txt"):
        path.touch()
    again = freeze(checkout.root, tmp_path / "other.tar.gz", default_folder=tmp_path)
    assert first.sha256 == again.sha256
    assert again.path == tmp_path / "other.tar.gz"


def test_changed_checkout_is_not_frozen(checkout: Checkout, tmp_path: Path) -> None:
    checkout.write("new", "")
    with pytest.raises(OpencotiError) as caught:
        freeze(checkout.root, None, default_folder=tmp_path)
    assert caught.value.error_id == "freeze-dirty"
    assert list(tmp_path.glob("*.tar.gz")) == []


def test_frozen_tree_plans_the_same_release_without_git(checkout: Checkout, tmp_path: Path) -> None:
    top = unpack(freeze(checkout.root, None, default_folder=tmp_path / "d").path, tmp_path / "unpacked")
    facts = repository_facts(top)
    assert (facts.commit, facts.is_dirty) == (checkout.commit, False)
    context = checkout.context
    frozen = make_plan(
        type(context)(layout=Layout(root=top, cache=tmp_path), console=context.console),
        checkout.request(),
        NO_RELEASES,
    )
    assert frozen.source.is_frozen
    assert frozen.source.commit == checkout.commit
    assert frozen.problems == ()


def _edit(top: Path) -> None:
    (top / "tool.sh").write_text("#!/bin/sh\nrm -rf /\n")


def _add(top: Path) -> None:
    (top / "vendors/patches/llama.cpp/0002-b.patch").write_text("x")


def _remove(top: Path) -> None:
    (top / "vendors/pin/llama.cpp.txt").unlink()


def _chmod(top: Path) -> None:
    (top / "vendors/pin/llama.cpp.txt").chmod(0o755)


def _relink(top: Path) -> None:
    (top / "link").unlink()
    (top / "link").symlink_to("/etc/passwd")


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (_edit, "tool.sh"),
        (_add, "vendors/patches/llama.cpp/0002-b.patch"),
        (_remove, "vendors/pin/llama.cpp.txt"),
        (_chmod, "vendors/pin/llama.cpp.txt"),
        (_relink, "link"),
    ],
)
def test_frozen_tree_that_was_changed_is_dirty(
    checkout: Checkout, tmp_path: Path, change: Callable[[Path], None], name: str
) -> None:
    top = unpack(freeze(checkout.root, None, default_folder=tmp_path / "d").path, tmp_path / "unpacked")
    change(top)
    record = read_record(top)
    assert record is not None
    assert changed_files(top, record) == (name,)
    assert repository_facts(top).is_dirty


def test_what_commands_leave_behind_does_not_count(checkout: Checkout, tmp_path: Path) -> None:
    top = unpack(freeze(checkout.root, None, default_folder=tmp_path / "d").path, tmp_path / "unpacked")
    for name in (
        "build/x",
        "dist/y",
        "vendors/sources/llama.cpp/z",
        "vendors/pin/__pycache__/a.pyc",
        "new.txt",
    ):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text("x")
    assert not repository_facts(top).is_dirty


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"schema": "opencoti.source/1", "commit": "HEAD", "committed": "2026-01-01T00:00:00Z", "files": []}',
        '{"schema": "opencoti.source/1", "commit": "' + "1" * 40 + '", "committed": "2026-01-01T00:00:00Z", '
        '"files": [{"path": "../x", "kind": "file", "sha256": "' + "0" * 64 + '"}]}',
    ],
)
def test_damaged_record_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "SOURCE.json").write_text(text)
    with pytest.raises(OpencotiError) as caught:
        repository_facts(tmp_path)
    assert (caught.value.error_id, caught.value.exit_code) == ("source-record-malformed", 3)
