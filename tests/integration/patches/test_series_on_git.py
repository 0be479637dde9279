"""The patch protocol on real git: check, reset, apply (cases B01, B03, B04, B06)."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from ci.patches.apply import apply, record_series, reset
from ci.patches.checking import check
from ci.patches.worktree import snapshot
from ci.paths import Layout
from opencoti.errors import OpencotiError
from tests.conftest import RecordedConsole
from tests.fakes.source_trees import (
    FILES,
    LINE_TWENTY,
    LINE_TWO,
    NEW_FILE,
    Checkout,
    change,
    creation,
    git,
    make_checkout,
)

# Fixed by the form of our commits: if one of these changes, every recorded commit id does.
BASE_COMMIT = "22d1a3336a733b9412c8fef4e2963b1567a8b14e"
TIP_COMMIT = "95404b81ca11372a986bb3839392caf100209855"


@pytest.fixture
def checkout(layout: Layout) -> Checkout:
    return make_checkout(layout)


@pytest.fixture
def patched(checkout: Checkout) -> Checkout:
    checkout.add_patch("0001-two.patch", LINE_TWO)
    checkout.add_patch("0002-add-file.patch", NEW_FILE)
    return checkout


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and ".git" not in path.relative_to(folder).parts
    }


def times_of(folder: Path) -> dict[str, int]:
    return {name: (folder / name).stat().st_mtime_ns for name in files_of(folder)}


def fails(checkout: Checkout, recorded: RecordedConsole) -> OpencotiError:
    with pytest.raises(OpencotiError) as caught:
        apply(checkout.layout, recorded.console)
    return caught.value


def test_series_becomes_one_commit_per_patch_on_the_pristine_source(
    patched: Checkout, recorded: RecordedConsole
) -> None:
    applied = apply(patched.layout, recorded.console)
    log = git(patched.tree, "log", "--reverse", "--format=%H %s").splitlines()
    assert log == [
        f"{applied.base_commit} Pristine llama.cpp 1.0-gc0ffee0",
        f"{applied.patches[0].commit} Two",
        f"{applied.patches[1].commit} Add a file",
    ]
    assert git(patched.tree, "rev-parse", "HEAD^{tree}").strip() == applied.tree == applied.patches[1].tree
    expected = FILES | {"src/new.cpp": b"int x;\n"}
    expected |= {"src/main.cpp": FILES["src/main.cpp"].replace(b"line 2\n", b"line two\n", 1)}
    assert files_of(patched.tree) == expected
    assert git(patched.tree, "status", "--porcelain") == ""
    assert files_of(patched.layout.sources / "llama.cpp") == FILES


def test_commit_ids_depend_on_nothing_of_the_machine(
    patched: Checkout, recorded: RecordedConsole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    (home / "hooks").mkdir(parents=True)
    for hook in ("pre-commit", "commit-msg", "post-checkout", "reference-transaction", "post-index-change"):
        (home / "hooks" / hook).write_text("#!/bin/sh\nexit 1\n")
        (home / "hooks" / hook).chmod(0o755)
    (home / "template").write_text("from a template\n")
    (home / ".gitconfig").write_text(
        f"[core]\n autocrlf = true\n hooksPath = {home}/hooks\n[commit]\n gpgSign = true\n"
        f" template = {home}/template\n[user]\n name = me\n[apply]\n whitespace = fix\n"
        f"[init]\n defaultBranch = other\n templateDir = {home}\n[i18n]\n commitEncoding = latin1\n"
    )
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("GIT_AUTHOR_NAME", "someone")
    monkeypatch.setenv("GIT_COMMITTER_DATE", "2020-01-01T00:00:00Z")
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path))
    monkeypatch.setenv("GIT_DEFAULT_HASH", "sha256")
    old = os.umask(0o077)
    try:
        applied = apply(patched.layout, recorded.console)
    finally:
        os.umask(old)
    assert (applied.base_commit, applied.commit) == (BASE_COMMIT, TIP_COMMIT)


def test_second_run_does_nothing_and_says_so(patched: Checkout, recorded: RecordedConsole) -> None:
    first = apply(patched.layout, recorded.console)
    times = times_of(patched.tree)
    index = (patched.tree / ".git" / "index").read_bytes()
    assert apply(patched.layout, recorded.console) == first
    assert "nothing to do" in recorded.text
    assert times_of(patched.tree) == times
    assert (patched.tree / ".git" / "index").read_bytes() == index


def test_only_files_that_change_are_written(patched: Checkout, recorded: RecordedConsole) -> None:
    apply(patched.layout, recorded.console)
    for name in files_of(patched.tree):
        os.utime(patched.tree / name, (1_000_000_000, 1_000_000_000))
    patched.add_patch("0003-twenty.patch", LINE_TWENTY)
    apply(patched.layout, recorded.console)
    changed = {name for name, time_ns in times_of(patched.tree).items() if time_ns != 10**18}
    assert changed == {"src/main.cpp"}
    (patched.series / "0002-add-file.patch").unlink()
    apply(patched.layout, recorded.console)
    assert not (patched.tree / "src" / "new.cpp").exists()
    assert (patched.tree / "CMakeLists.txt").stat().st_mtime_ns == 10**18


def test_empty_series_says_no_patches_and_goes_on(checkout: Checkout, recorded: RecordedConsole) -> None:
    applied = apply(checkout.layout, recorded.console)
    assert applied.patches == ()
    assert (applied.commit, applied.tree) == (applied.base_commit, applied.base_tree)
    assert "no patches" in recorded.text
    assert files_of(checkout.tree) == FILES


def test_duplicate_numbers_stop_apply_but_not_check(patched: Checkout, recorded: RecordedConsole) -> None:
    patched.add_patch("0001-other.patch", LINE_TWENTY)
    error = fails(patched, recorded)
    assert (error.error_id, error.exit_code) == ("series-invalid", 3)
    assert "0001-two.patch" in str(error)
    assert "0001-other.patch" in str(error)
    report = check(patched.layout, recorded.console)
    assert [patch.name for patch in report.series.invalid] == ["0001-other.patch", "0001-two.patch"]


def test_case_b01_patch_of_a_crlf_file_keeps_its_line_ends(
    checkout: Checkout, recorded: RecordedConsole
) -> None:
    checkout.add_patch("0001-dos.patch", change("src/dos.txt", "@@ -1,3 +1,3 @@\n a\r\n-b\r\n+B\r\n c\r\n"))
    apply(checkout.layout, recorded.console)
    assert (checkout.tree / "src" / "dos.txt").read_bytes() == b"a\r\nB\r\nc\r\n"


def test_case_b01_converted_patch_is_refused_before_the_tree_is_touched(
    patched: Checkout, recorded: RecordedConsole
) -> None:
    apply(patched.layout, recorded.console)
    before = times_of(patched.tree)
    patched.add_patch("0003-new.patch", creation("src/n.cpp", "int n;\n").replace("\n", "\r\n"))
    error = fails(patched, recorded)
    assert (error.error_id, error.exit_code) == ("patch-crlf", 3)
    assert "0003-new.patch" in str(error)
    assert "CRLF" in str(error)
    assert times_of(patched.tree) == before


def test_case_b01_our_attributes_keep_patches_as_they_are() -> None:
    root = Path(__file__).resolve().parents[3]
    asked = git(root, "check-attr", "text", "vendors/patches/llama.cpp/0001-x.patch")
    assert asked.strip().endswith("text: unset")


WRONG_TWIN = change("src/twins.cpp", "@@ -1,3 +1,3 @@\n w\n-y\n+Y\n z\n")


def test_case_b03_wrong_context_fails_and_leaves_all_as_it_was(
    patched: Checkout, recorded: RecordedConsole
) -> None:
    applied = apply(patched.layout, recorded.console)
    before = times_of(patched.tree)
    patched.add_patch("0003-twin.patch", WRONG_TWIN)
    patched.add_patch("0004-broken-too.patch", WRONG_TWIN)
    error = fails(patched, recorded)
    assert (error.error_id, error.exit_code) == ("patch-failed", 5)
    assert "0003-twin.patch" in str(error)
    assert "src/twins.cpp:1 (hunk 1)" in str(error)
    assert "0004" not in str(error)
    assert times_of(patched.tree) == before
    assert git(patched.tree, "rev-parse", "HEAD").strip() == applied.commit
    assert not [path for path in patched.tree.rglob("*") if path.suffix in (".rej", ".orig")]


def test_case_b03_clean_offset_is_applied_and_reported(checkout: Checkout, recorded: RecordedConsole) -> None:
    checkout.add_patch("0001-moved.patch", LINE_TWENTY.replace("-19,3 +19,3", "-14,3 +14,3"))
    applied = apply(checkout.layout, recorded.console)
    (offset,) = applied.patches[0].offsets
    assert (offset.file, offset.hunk, offset.lines) == ("src/main.cpp", 1, 5)
    assert b"line twenty\n" in (checkout.tree / "src" / "main.cpp").read_bytes()
    assert "0001-moved.patch fits with an offset: src/main.cpp, hunk 1: +5 lines" in recorded.text
    assert check(checkout.layout, recorded.console).offsets == (
        "0001-moved.patch: src/main.cpp, hunk 1: +5 lines",
    )


def test_case_b03_moved_hunk_that_fits_twice_is_no_guess(
    checkout: Checkout, recorded: RecordedConsole
) -> None:
    checkout.add_patch("0001-twin.patch", change("src/twins.cpp", "@@ -5,3 +5,3 @@\n x\n-y\n+Y\n z\n"))
    error = fails(checkout, recorded)
    assert (error.error_id, error.exit_code) == ("patch-ambiguous", 5)
    assert "2 times" in error.why


def test_case_b04_fixed_patch_applies_without_a_manual_step(
    checkout: Checkout, recorded: RecordedConsole, tmp_path: Path
) -> None:
    checkout.add_patch("0001-two.patch", LINE_TWO)
    checkout.add_patch("0002-twin.patch", WRONG_TWIN)
    fails(checkout, recorded)
    assert files_of(checkout.tree) == FILES
    checkout.add_patch("0002-twin.patch", WRONG_TWIN.replace(" w\n", " x\n"))
    applied = apply(checkout.layout, recorded.console)
    shutil.rmtree(checkout.layout.build)
    assert apply(checkout.layout, recorded.console) == applied


@pytest.mark.parametrize("command", [apply, reset])
def test_case_b04_foreign_lock_is_named_and_nothing_is_deleted(
    patched: Checkout, recorded: RecordedConsole, command: object
) -> None:
    apply(patched.layout, recorded.console)
    lock = patched.tree / ".git" / "index.lock"
    lock.touch()
    (patched.tree / "mine.txt").touch()
    with pytest.raises(OpencotiError) as caught:
        command(patched.layout, recorded.console)  # type: ignore[operator]
    assert (caught.value.error_id, caught.value.exit_code) == ("tree-locked", 9)
    assert str(lock) in str(caught.value)
    assert lock.exists()
    assert (patched.tree / "mine.txt").exists()


def test_case_b04_reset_removes_ignored_files_and_nested_repositories(
    patched: Checkout, recorded: RecordedConsole
) -> None:
    apply(patched.layout, recorded.console)
    (patched.tree / "out").mkdir()
    (patched.tree / "out" / "stale.o").touch()
    (patched.tree / "nested").mkdir()
    git(patched.tree / "nested", "init", "-q")
    (patched.tree / "nested" / "x").touch()
    git(patched.tree / "nested", "add", "-A")
    git(patched.tree / "nested", "commit", "-q", "-m", "x")
    (patched.tree / ".git" / "rebase-apply").mkdir()
    (patched.tree / "src" / "main.cpp").unlink()
    applied = reset(patched.layout, recorded.console)
    assert files_of(patched.tree) == FILES
    assert not (patched.tree / "nested").exists()
    assert not (patched.tree / "out").exists()
    assert not (patched.tree / ".git" / "rebase-apply").exists()
    assert git(patched.tree, "rev-parse", "HEAD").strip() == applied.base_commit


def test_unfinished_git_operation_of_the_user_is_respected(
    patched: Checkout, recorded: RecordedConsole
) -> None:
    apply(patched.layout, recorded.console)
    (patched.tree / ".git" / "rebase-apply").mkdir()
    assert fails(patched, recorded).error_id == "tree-edited"


HOSTILE = {
    "parent": creation("../evil", "x\n"),
    "absolute": creation("/tmp/evil", "x\n"),
    "git": creation(".git/hooks/post-checkout", "x\n"),
    "GIT": creation(".GIT/hooks/post-checkout", "x\n"),
    "link-then-file": creation("l", "/tmp", mode="120000", ends=False) + creation("l/x", "x\n"),
    "link-out": creation("l", "/etc/passwd", mode="120000", ends=False),
    "submodule": creation("s", "Subproject commit " + "1" * 40 + "\n", mode="160000"),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_case_b06_hostile_patch_is_refused_before_any_write(
    patched: Checkout, recorded: RecordedConsole, text: str
) -> None:
    apply(patched.layout, recorded.console)
    before = set(files_of(patched.layout.root.parent)), times_of(patched.tree)
    patched.add_patch("0003-hostile.patch", text)
    error = fails(patched, recorded)
    assert (error.error_id, error.exit_code) == ("patch-unsafe", 6)
    assert "0003-hostile.patch" in str(error)
    (patched.series / "0003-hostile.patch").unlink()
    assert (set(files_of(patched.layout.root.parent)), times_of(patched.tree)) == before


def test_case_b06_what_git_made_is_judged_even_if_the_lint_saw_nothing(
    checkout: Checkout, recorded: RecordedConsole
) -> None:
    from ci.git import Repository
    from ci.patches.objects import check_result

    applied = apply(checkout.layout, recorded.console)
    (checkout.tree / "l").symlink_to("/etc/passwd")
    git(checkout.tree, "add", "l")
    tree = git(checkout.tree, "write-tree").strip()
    with pytest.raises(OpencotiError) as caught:
        check_result(Repository(git_dir=checkout.tree / ".git"), applied.base_tree, tree)
    assert (caught.value.error_id, caught.value.exit_code) == ("patched-tree-unsafe", 6)


@pytest.mark.parametrize("kind", ["edit", "new", "delete", "commit", "branch", "staged"])
def test_work_of_the_user_is_never_overwritten(
    patched: Checkout, recorded: RecordedConsole, kind: str
) -> None:
    apply(patched.layout, recorded.console)
    main = patched.tree / "src" / "main.cpp"
    if kind == "new":
        (patched.tree / "src" / "mine.cpp").write_text("mine")
    elif kind == "delete":
        main.unlink()
    else:
        main.write_text("mine")
    if kind in ("commit", "branch", "staged"):
        git(patched.tree, "add", "-A")
    if kind == "branch":
        git(patched.tree, "checkout", "-q", "-b", "topic")
    if kind in ("commit", "branch"):
        git(patched.tree, "commit", "-q", "-m", "mine")
    before = files_of(patched.tree)
    head = git(patched.tree, "rev-parse", "HEAD")
    patched.add_patch("0003-twenty.patch", LINE_TWENTY)
    error = fails(patched, recorded)
    assert (error.error_id, error.exit_code) == ("tree-edited", 5)
    assert "capture" in error.hint
    assert "reset" in error.hint
    assert files_of(patched.tree) == before
    assert git(patched.tree, "rev-parse", "HEAD") == head
    reset(patched.layout, recorded.console)
    assert files_of(patched.tree) == FILES


def test_checked_out_older_commit_of_the_series_is_no_work(
    patched: Checkout, recorded: RecordedConsole
) -> None:
    applied = apply(patched.layout, recorded.console)
    git(patched.tree, "checkout", "-q", applied.base_commit)
    assert apply(patched.layout, recorded.console) == applied
    assert git(patched.tree, "symbolic-ref", "HEAD").strip() == "refs/heads/series"
    assert (patched.tree / "src" / "new.cpp").exists()


def test_edit_hidden_from_the_users_index_is_still_seen(patched: Checkout, recorded: RecordedConsole) -> None:
    apply(patched.layout, recorded.console)
    git(patched.tree, "update-index", "--assume-unchanged", "src/main.cpp")
    (patched.tree / "src" / "main.cpp").write_text("mine")
    assert fails(patched, recorded).error_id == "tree-edited"


def test_ignored_files_are_reported_but_stay(patched: Checkout, recorded: RecordedConsole) -> None:
    apply(patched.layout, recorded.console)
    (patched.tree / "x.o").touch()
    apply(patched.layout, recorded.console)
    assert "first x.o" in recorded.text
    assert (patched.tree / "x.o").exists()


def test_ignored_file_in_the_way_of_a_patch_is_not_overwritten(
    patched: Checkout, recorded: RecordedConsole
) -> None:
    applied = apply(patched.layout, recorded.console)
    (patched.tree / "mine.o").write_text("mine")
    patched.add_patch("0003-object.patch", creation("mine.o", "theirs\n"))
    before = times_of(patched.tree)
    error = fails(patched, recorded)
    assert (error.error_id, error.exit_code) == ("tree-unusable", 5)
    assert "mine.o" in error.why
    assert times_of(patched.tree) == before
    (patched.tree / "mine.o").unlink()
    (patched.tree / "dir.o").write_text("mine")
    patched.add_patch("0004-folder.patch", creation("dir.o/sub/x.cpp", "theirs\n"))
    assert f"{patched.tree / 'dir.o'} is in the way" in fails(patched, recorded).why
    (patched.tree / "dir.o").unlink()
    assert apply(patched.layout, recorded.console).base_commit == applied.base_commit
    assert (patched.tree / "mine.o").read_text() == "theirs\n"


def test_folder_that_is_no_repository_is_left_alone_until_reset(
    patched: Checkout, recorded: RecordedConsole
) -> None:
    patched.tree.mkdir(parents=True)
    (patched.tree / "mine").touch()
    assert fails(patched, recorded).error_id == "tree-unusable"
    assert (patched.tree / "mine").exists()
    reset(patched.layout, recorded.console)
    assert files_of(patched.tree) == FILES


def test_damaged_repository_is_made_anew_by_reset(patched: Checkout, recorded: RecordedConsole) -> None:
    apply(patched.layout, recorded.console)
    (patched.tree / ".git" / "HEAD").write_text("rubbish")
    assert fails(patched, recorded).exit_code == 5
    reset(patched.layout, recorded.console)
    applied = apply(patched.layout, recorded.console)
    assert git(patched.tree, "rev-parse", "HEAD").strip() == applied.commit


def test_lock_of_the_series_catches_another_result(patched: Checkout, recorded: RecordedConsole) -> None:
    record_series(patched.layout, recorded.console)
    lock = patched.series / "series.lock"
    rows = lock.read_text().splitlines()
    assert [row.split()[0] for row in rows] == ["base", "0001-two.patch", "0002-add-file.patch"]
    apply(patched.layout, recorded.console)
    assert "not recorded" not in recorded.text
    lock.write_text(lock.read_text().replace(rows[2].split()[2], "1" * 40))
    error = fails(patched, recorded)
    assert (error.error_id, error.exit_code) == ("series-tree", 6)
    assert "0002-add-file.patch" in str(error)


def test_changed_patch_is_reported_as_not_recorded(patched: Checkout, recorded: RecordedConsole) -> None:
    record_series(patched.layout, recorded.console)
    patched.add_patch("0001-two.patch", LINE_TWO.replace("line two", "line zwei"))
    apply(patched.layout, recorded.console)
    assert "0001-two.patch and 1 after it: not recorded" in recorded.text


def test_failed_record_keeps_the_old_lock(patched: Checkout, recorded: RecordedConsole) -> None:
    record_series(patched.layout, recorded.console)
    before = (patched.series / "series.lock").read_bytes()
    patched.add_patch("0003-twin.patch", WRONG_TWIN)
    with pytest.raises(OpencotiError):
        record_series(patched.layout, recorded.console)
    assert (patched.series / "series.lock").read_bytes() == before


def test_malformed_lock_is_a_configuration_error(patched: Checkout, recorded: RecordedConsole) -> None:
    (patched.series / "series.lock").write_text("0001-two.patch abc\n")
    assert fails(patched, recorded).error_id == "series-lock-malformed"


def test_new_pin_brings_the_tree_to_the_new_source(patched: Checkout, recorded: RecordedConsole) -> None:
    record_series(patched.layout, recorded.console)
    old = patched.pin_path.read_text()
    make_checkout(patched.layout, FILES | {"CMakeLists.txt": b"project(next)\n"})
    assert patched.pin_path.read_text() != old
    apply(patched.layout, recorded.console)
    assert (patched.tree / "CMakeLists.txt").read_bytes() == b"project(next)\n"
    assert "recorded for another source" in recorded.text


def test_check_tells_the_state_and_never_fails(patched: Checkout, recorded: RecordedConsole) -> None:
    assert check(patched.layout, recorded.console).state == "missing"
    applied = apply(patched.layout, recorded.console)
    patched.write_pin(patched.pin.origin.sha256, f"tree={applied.base_tree}")  # type: ignore[union-attr]
    report = check(patched.layout, recorded.console)
    assert (report.state, report.details, report.problem) == ("clean", (), "")
    patched.add_patch("0003-twin.patch", WRONG_TWIN)
    assert "0003-twin.patch does not apply" in check(patched.layout, recorded.console).problem
    (patched.tree / "src" / "main.cpp").write_text("mine")
    report = check(patched.layout, recorded.console)
    assert (report.state, report.details) == ("edited", ("1 files changed, first src/main.cpp",))
    assert (patched.tree / "src" / "main.cpp").read_text() == "mine"
    patched.write_pin(patched.pin.origin.sha256, "tree=" + "1" * 40)  # type: ignore[union-attr]
    assert check(patched.layout, recorded.console).state == "drifted"
    assert "the working tree is drifted" in recorded.text


def test_snapshot_is_the_tree_with_the_edits(patched: Checkout, recorded: RecordedConsole) -> None:
    applied = apply(patched.layout, recorded.console)
    assert snapshot(patched.layout) == applied
    (patched.tree / "src" / "main.cpp").write_text("mine")
    (patched.tree / "src" / "more.cpp").write_text("mine too")
    (patched.tree / "x.o").write_text("ignored")
    state = snapshot(patched.layout)
    assert (state.commit, state.patches) == (applied.commit, applied.patches)
    git(patched.tree, "add", "-A")
    assert git(patched.tree, "write-tree").strip() == state.tree != applied.tree


def test_snapshot_without_a_tree_says_what_to_run(patched: Checkout) -> None:
    with pytest.raises(OpencotiError) as caught:
        snapshot(patched.layout)
    assert (caught.value.error_id, caught.value.exit_code) == ("tree-missing", 4)


def test_tree_of_another_owner_is_no_obstacle(patched: Checkout, recorded: RecordedConsole) -> None:
    """Case B09: git distrusts a repository of another user, and answers with nothing."""
    import subprocess

    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    applied = apply(patched.layout, recorded.console)
    subprocess.run(["chown", "-R", "12345", patched.layout.root], check=True)
    assert apply(patched.layout, recorded.console) == applied
