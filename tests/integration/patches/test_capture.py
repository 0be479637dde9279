"""Turning work in the tree into a patch."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ci.patches.apply import apply, reset
from ci.patches.capture import Captured, capture
from ci.paths import Layout
from opencoti.errors import OpencotiError
from tests.conftest import RecordedConsole
from tests.fakes.source_trees import FILES, LINE_TWO, NEW_FILE, Checkout, git, make_checkout


@pytest.fixture
def checkout(layout: Layout, recorded: RecordedConsole) -> Checkout:
    checkout = make_checkout(layout)
    checkout.add_patch("0001-two.patch", LINE_TWO)
    apply(layout, recorded.console)
    return checkout


def edit(checkout: Checkout, name: str, old: str, new: str) -> None:
    path = checkout.tree / name
    text = path.read_bytes().decode()
    assert old in text
    path.write_bytes(text.replace(old, new).encode())


def commit(checkout: Checkout, *message: str) -> None:
    git(checkout.tree, "add", "-A")
    git(checkout.tree, "commit", "-q", *(word for part in message for word in ("-m", part)))


def captured(
    checkout: Checkout, recorded: RecordedConsole, name: str, *, replace_last: bool = False
) -> Captured:
    """Capture, then prove that the series alone gives the same tree, from nothing."""
    done = capture(checkout.layout, recorded.console, name, replace_last=replace_last)
    assert apply(checkout.layout, recorded.console) == done.tree
    assert "nothing to do" in recorded.text.splitlines()[-1]
    reset(checkout.layout, recorded.console)
    assert apply(checkout.layout, recorded.console) == done.tree
    return done


def fails(
    checkout: Checkout, recorded: RecordedConsole, name: str, *, replace_last: bool = False
) -> OpencotiError:
    before = sorted((path.name, path.read_bytes()) for path in checkout.series.iterdir())
    with pytest.raises(OpencotiError) as caught:
        capture(checkout.layout, recorded.console, name, replace_last=replace_last)
    assert sorted((path.name, path.read_bytes()) for path in checkout.series.iterdir()) == before
    return caught.value


def test_a_commit_of_the_applied_series_is_captured_again_as_it_was(
    checkout: Checkout, recorded: RecordedConsole
) -> None:
    """As when a patch before it changed: what was said of it stays."""
    edit(checkout, "src/main.cpp", "line 20\n", "line twenty\n")
    commit(checkout, "Answer faster", "Because it was träge.", "To drop it: delete it.")
    patch = captured(checkout, recorded, "0002-answer-faster").patch
    (applied,) = git(checkout.tree, "log", "-1", "--format=%H").split()
    rows = (checkout.series / "series.lock").read_text().splitlines(keepends=True)
    (checkout.series / "series.lock").write_text("".join(rows[:-1]))
    patch.path.unlink()
    reset(checkout.layout, recorded.console)
    apply(checkout.layout, recorded.console)
    git(checkout.tree, "cherry-pick", applied)
    again = captured(checkout, recorded, "0002-answer-faster").patch
    assert again.data == patch.data
    assert again.description == "Because it was träge.\n\nTo drop it: delete it."
    assert "says nothing of why it is" not in recorded.text


def test_commits_become_one_patch_with_one_line_of_context(
    checkout: Checkout, recorded: RecordedConsole
) -> None:
    edit(checkout, "src/main.cpp", "line 20\n", "line twenty\n")
    commit(checkout, "Answer faster", "Because it was slow.\n\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b")
    (checkout.tree / "src" / "more.cpp").write_text("int more;\n")
    commit(checkout, "And more")
    done = captured(checkout, recorded, "0002-answer-faster")
    text = done.patch.path.read_text()
    assert text.startswith(
        "From: opencoti <patches@opencoti.invalid>\nSubject: [PATCH] Answer faster\n\nBecause it was slow.\n"
    )
    assert "- And more" in done.patch.description
    assert "@@ -19,3 +19,3 @@" in text
    assert done.context_lines == 1
    assert done.patch.touched == ("src/main.cpp", "src/more.cpp")
    assert git(checkout.tree, "log", "-1", "--format=%s").strip() == "Answer faster"
    rows = (checkout.series / "series.lock").read_text().splitlines()
    assert rows[2].split() == ["0002-answer-faster.patch", done.patch.sha256, done.tree.tree]


def test_captured_patch_is_the_same_whoever_captures(
    checkout: Checkout, recorded: RecordedConsole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(checkout, "src/main.cpp", "line 20\n", "line twenty\n")
    commit(checkout, "Answer faster")
    first = captured(checkout, recorded, "0002-a").patch.data
    (checkout.series / "0002-a.patch").unlink()
    apply(checkout.layout, recorded.console)
    (tmp_path / ".gitconfig").write_text("[diff]\n noprefix = true\n context = 9\n renames = copies\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", "false")
    edit(checkout, "src/main.cpp", "line 20\n", "line twenty\n")
    git(checkout.tree, "add", "-A")
    git(checkout.tree, "commit", "-q", "-m", "Answer faster", GIT_AUTHOR_NAME="other")
    assert captured(checkout, recorded, "0002-a").patch.data == first


def test_edits_without_a_commit_are_captured_with_a_notice(
    checkout: Checkout, recorded: RecordedConsole
) -> None:
    edit(checkout, "src/dos.txt", "b\r\n", "B\r\n")
    (checkout.tree / "new file.txt").write_text("no newline at the end")
    (checkout.tree / "CMakeLists.txt").unlink()
    (checkout.tree / "src" / "link").symlink_to("main.cpp")
    (checkout.tree / "src" / "main.cpp").chmod(0o755)
    (checkout.tree / "blob.bin").write_bytes(bytes(range(256)))
    times = {path: path.stat().st_mtime_ns for path in checkout.tree.rglob("*.*") if path.is_file()}
    done = capture(checkout.layout, recorded.console, "0002-all-kinds")
    assert "no commits on top of the series: 6 uncommitted changes are captured" in recorded.text
    assert done.patch.title == "All kinds"
    now = {path: path.stat().st_mtime_ns for path in times if ".git" not in path.parts}
    assert now == {path: times[path] for path in now}
    assert git(checkout.tree, "status", "--porcelain") == ""
    reset(checkout.layout, recorded.console)
    assert apply(checkout.layout, recorded.console) == done.tree
    assert (checkout.tree / "src" / "dos.txt").read_bytes() == b"a\r\nB\r\nc\r\n"
    assert (checkout.tree / "blob.bin").read_bytes() == bytes(range(256))
    assert os.access(checkout.tree / "src" / "main.cpp", os.X_OK)


def test_commits_win_over_edits_which_stay(checkout: Checkout, recorded: RecordedConsole) -> None:
    edit(checkout, "src/main.cpp", "line 20\n", "line twenty\n")
    commit(checkout, "Answer faster")
    edit(checkout, "src/main.cpp", "line 30\n", "line thirty\n")
    done = capture(checkout.layout, recorded.console, "0002-a")
    assert b"thirty" not in done.patch.data
    assert "1 uncommitted changes are left out, first src/main.cpp" in recorded.text
    assert "line thirty" in (checkout.tree / "src" / "main.cpp").read_text()
    assert git(checkout.tree, "status", "--porcelain").split() == ["M", "src/main.cpp"]


def test_twin_blocks_are_changed_in_the_right_place(checkout: Checkout, recorded: RecordedConsole) -> None:
    path = checkout.tree / "src" / "twins.cpp"
    path.write_bytes(b"new\n" + FILES["src/twins.cpp"][:-4] + b"Y\nz\n")
    captured(checkout, recorded, "0002-twins")
    assert path.read_bytes() == b"new\n" + FILES["src/twins.cpp"][:-4] + b"Y\nz\n"


def test_last_patch_can_be_written_anew(checkout: Checkout, recorded: RecordedConsole) -> None:
    checkout.add_patch("0002-add-file.patch", NEW_FILE)
    apply(checkout.layout, recorded.console)
    edit(checkout, "src/new.cpp", "int x;", "int x, y;")
    done = captured(checkout, recorded, "0002-add-file", replace_last=True)
    assert (done.patch.title, done.patch.description) == ("Add a file", "It says why.")
    assert b"+int x, y;" in done.patch.data
    assert len(done.tree.patches) == 2


def test_last_commit_of_the_series_can_be_amended(checkout: Checkout, recorded: RecordedConsole) -> None:
    edit(checkout, "src/main.cpp", "line two\n", "line zwei\n")
    git(checkout.tree, "commit", "-q", "-a", "--amend", "-m", "amended")
    done = captured(checkout, recorded, "0001-two", replace_last=True)
    assert b"+line zwei" in done.patch.data
    assert b"line two" not in done.patch.data


@pytest.mark.parametrize(
    ("name", "replace_last"),
    [
        ("0001-other", False),
        ("two", False),
        ("0002-Two", False),
        ("0000-before", False),
        ("../0002-x", False),
        ("0002-two", True),
        ("0001-other", True),
    ],
)
def test_name_that_has_no_place_is_refused(
    checkout: Checkout, recorded: RecordedConsole, name: str, replace_last: bool
) -> None:
    edit(checkout, "src/main.cpp", "line 20\n", "line twenty\n")
    error = fails(checkout, recorded, name, replace_last=replace_last)
    assert (error.error_id, error.exit_code) == ("capture-name", 2)


def test_nothing_to_capture_is_said(checkout: Checkout, recorded: RecordedConsole) -> None:
    error = fails(checkout, recorded, "0002-nothing")
    assert (error.error_id, error.exit_code) == ("capture-nothing", 5)


def test_work_on_another_base_is_refused(checkout: Checkout, recorded: RecordedConsole) -> None:
    base = apply(checkout.layout, recorded.console).base_commit
    git(checkout.tree, "checkout", "-q", base)
    (checkout.tree / "x.cpp").touch()
    commit(checkout, "on the base")
    error = fails(checkout, recorded, "0002-x")
    assert (error.error_id, error.exit_code) == ("capture-stale", 5)


def test_link_out_of_the_tree_is_not_captured(checkout: Checkout, recorded: RecordedConsole) -> None:
    (checkout.tree / "l").symlink_to("/etc/passwd")
    error = fails(checkout, recorded, "0002-link")
    assert (error.error_id, error.exit_code) == ("patch-unsafe", 6)


def test_nested_repository_is_named(checkout: Checkout, recorded: RecordedConsole) -> None:
    (checkout.tree / "nested").mkdir()
    git(checkout.tree / "nested", "init", "-q")
    (checkout.tree / "nested" / "x").touch()
    git(checkout.tree / "nested", "add", "-A")
    git(checkout.tree / "nested", "commit", "-q", "-m", "x")
    error = fails(checkout, recorded, "0002-x")
    assert (error.error_id, error.exit_code) == ("tree-nested", 5)


def test_kill_between_patch_and_tree_loses_nothing(checkout: Checkout, recorded: RecordedConsole) -> None:
    edit(checkout, "src/main.cpp", "line 20\n", "line twenty\n")
    commit(checkout, "Answer faster")
    mine = git(checkout.tree, "rev-parse", "HEAD").strip()
    done = capture(checkout.layout, recorded.console, "0002-a")
    # What a run that was killed before it moved the refs leaves.
    git(checkout.tree, "update-ref", "refs/opencoti/applied", done.tree.patches[0].commit)
    git(checkout.tree, "update-ref", "refs/heads/series", mine)
    assert apply(checkout.layout, recorded.console) == done.tree
    assert git(checkout.tree, "rev-parse", "HEAD").strip() == done.tree.commit
