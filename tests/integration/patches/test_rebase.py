"""Trying a series on another source: what is said of each patch, and what is written (case B03)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from ci.context import Context
from ci.patches.apply import apply
from ci.patches.rebasing import RebaseReport, rebase
from ci.patches.record import read_lock
from ci.patches.series import read_series
from ci.patches.upstreams import Upstream, find_upstream
from ci.paths import Layout
from opencoti.console import Console
from opencoti.errors import OpencotiError
from tests.conftest import RecordedConsole
from tests.fakes.source_trees import (
    FILES,
    LINE_TWENTY,
    LINE_TWO,
    NEW_FILE,
    TWINS,
    Checkout,
    change,
    git,
    make_checkout,
)

MAIN = FILES["src/main.cpp"]


@pytest.fixture
def checkout(layout: Layout) -> Checkout:
    checkout = make_checkout(layout)
    checkout.add_patch("0001-two.patch", LINE_TWO)
    checkout.add_patch("0002-twenty.patch", LINE_TWENTY)
    checkout.add_patch("0003-add-file.patch", NEW_FILE)
    return checkout


def make_clone(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Make a repository of "upstream" with one commit, tagged `new`."""
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    git(folder, "init", "-q")
    git(folder, "add", "-A", "-f")
    git(folder, "commit", "-q", "-m", "upstream")
    git(folder, "tag", "new")
    return folder


def rebased(
    checkout: Checkout, tmp_path: Path, changes: Mapping[str, bytes], *, out: Path | None = None
) -> RebaseReport:
    clone = make_clone(tmp_path / "clone", {**FILES, **changes})
    console = Console(quiet=True)
    return rebase(checkout.layout, console, "new", clone=clone, out=out)


def states(report: RebaseReport) -> list[str]:
    return [outcome.carried.state for outcome in report.outcomes]


def test_each_patch_is_told_apart_and_nothing_is_touched(checkout: Checkout, tmp_path: Path) -> None:
    moved = MAIN.replace(b"line 2\n", b"line two\n", 1).replace(b"line 10\n", b"line 10\nnew\nnew\n")
    report = rebased(checkout, tmp_path, {"src/main.cpp": moved})
    assert states(report) == ["upstream", "offset", "clean"]
    assert [str(o) for o in report.outcomes[1].carried.offsets] == ["src/main.cpp, hunk 1: +2 lines"]
    assert report.is_carried
    assert not checkout.tree.exists()
    assert git(tmp_path / "clone", "status", "--porcelain") == ""
    assert sorted(path.name for path in checkout.layout.build.iterdir()) == ["pristine"]


def test_file_that_upstream_renamed_is_followed_and_the_patch_is_written_for_it(
    checkout: Checkout, tmp_path: Path
) -> None:
    files = {name: data for name, data in FILES.items() if name != "src/main.cpp"}
    clone = make_clone(tmp_path / "clone", files | {"app/entry.cpp": MAIN.replace(b"line 40\n", b"end\n")})
    out = tmp_path / "out" / "series"
    report = rebase(checkout.layout, Console(quiet=True), "new", clone=clone, out=out)
    assert states(report) == ["three-way", "three-way", "clean"]
    assert report.outcomes[0].carried.merged == ("src/main.cpp (hunk 1)",)
    written = read_series(out)
    assert [patch.name for patch in written.patches] == [
        *("0001-two.patch", "0002-twenty.patch", "0003-add-file.patch")
    ]
    assert written.patches[0].touched == ("app/entry.cpp",)
    assert (written.patches[2].title, written.patches[2].description) == ("Add a file", "It says why.")
    lock = read_lock(out)
    assert lock is not None
    assert lock.base_tree == git(clone, "rev-parse", "new^{tree}").strip()
    assert git(clone, "am", "--quiet", *(str(patch.path) for patch in written.patches)) == ""
    assert git(clone, "rev-parse", "HEAD^{tree}").strip() == lock.entries[-1][2]


def test_conflict_names_file_and_hunk_and_later_patches_are_tried_without_it(
    checkout: Checkout, tmp_path: Path
) -> None:
    two = LINE_TWO + LINE_TWENTY.partition("+++ b/src/main.cpp\n")[2]
    checkout.add_patch("0001-two.patch", two)
    checkout.add_patch("0002-twenty.patch", NEW_FILE)
    checkout.add_patch("0003-add-file.patch", change("run.sh", "@@ -1 +1,2 @@\n #!/bin/sh\n+true\n"))
    out = tmp_path / "out"
    report = rebased(checkout, tmp_path, {"src/main.cpp": MAIN.replace(b"line 20\n", b"LINE\n")}, out=out)
    assert states(report) == ["conflict", "clean", "clean"]
    (conflict,) = report.outcomes[0].carried.conflicts
    assert (conflict.file, conflict.hunks) == ("src/main.cpp", (2,))
    assert report.outcomes[2].without == ("0001-two.patch",)
    assert not report.is_carried
    assert sorted(path.name for path in out.iterdir()) == ["0002-twenty.patch", "0003-add-file.patch"]
    text = "\n".join(report.lines())
    assert "0001-two.patch  conflicts" in text
    assert "src/main.cpp, hunk 2: CONFLICT" in text
    assert "2 of 3 patches carried over, 1 to mend by hand" in text
    data = json.loads(json.dumps(report.as_dict()))
    assert [row["state"] for row in data["patches"]] == ["conflict", "clean", "clean"]
    assert data["patches"][0]["conflicts"][0]["hunks"] == [2]


def test_file_that_upstream_deleted_conflicts_with_all_hunks(checkout: Checkout, tmp_path: Path) -> None:
    files = {name: data for name, data in FILES.items() if name != "src/main.cpp"}
    clone = make_clone(tmp_path / "clone", files)
    report = rebase(checkout.layout, Console(quiet=True), "new", clone=clone)
    assert states(report) == ["conflict", "conflict", "clean"]
    assert report.outcomes[0].carried.conflicts[0].hunks == (1,)


def test_hunk_whose_place_would_be_a_guess_is_merged_by_its_surroundings(
    checkout: Checkout, tmp_path: Path
) -> None:
    checkout.add_patch("0001-two.patch", change("src/twins.cpp", "@@ -7,3 +7,3 @@\n x\n-y\n+Y\n z\n"))
    report = rebased(checkout, tmp_path, {"src/twins.cpp": b"new\nnew\nnew\nnew\nnew\n" + TWINS})
    assert states(report)[0] == "three-way"
    refreshed = report.outcomes[0].refreshed
    assert refreshed is not None
    assert b"@@ -1" in refreshed.data  # line 12 and on: the second twin


def test_link_of_the_new_source_is_not_written_through(checkout: Checkout, tmp_path: Path) -> None:
    clone = make_clone(tmp_path / "clone", {"run.sh": b"#!/bin/sh\n"})
    (clone / "src").symlink_to("elsewhere")
    git(clone, "add", "-A")
    git(clone, "commit", "-q", "-m", "link")
    report = rebase(checkout.layout, Console(quiet=True), "HEAD", clone=clone)
    assert states(report) == ["conflict"] * 3


def test_pin_files_and_pin_lines_are_fetched_beside_the_source_of_today(
    checkout: Checkout, tmp_path: Path, recorded: RecordedConsole
) -> None:
    clone = make_clone(tmp_path / "clone", FILES | {"src/dos.txt": b"other\r\n"})
    commit = git(clone, "rev-parse", "HEAD").strip()
    line = f"file://{clone} {commit}"
    (tmp_path / "other.txt").write_text(f"# next\n{line} 2.0\n")
    found = [
        find_upstream(checkout.layout, onto, recorded.console, like=checkout.pin)
        for onto in (line, str(tmp_path / "other.txt"))
    ]
    assert {item.tree for item in found} == {git(clone, "rev-parse", "HEAD^{tree}").strip()}
    assert found[1].name.startswith(f"2.0-g{commit[:7]} ")
    assert not (checkout.layout.sources / "llama.cpp").exists()
    assert states(rebase(checkout.layout, recorded.console, line)) == ["clean"] * 3


@pytest.mark.parametrize(
    ("onto", "has_clone", "error_id"),
    [
        ("v9", False, "rebase-onto"),
        ("v9", True, "rebase-onto"),
        ("--output=x", True, "rebase-onto"),
        ("https://example.invalid/x nothex", False, "pin-malformed"),
    ],
)
def test_source_that_is_none_is_refused(
    checkout: Checkout, tmp_path: Path, onto: str, has_clone: bool, error_id: str
) -> None:
    clone = make_clone(tmp_path / "clone", {"a": b"a\n"}) if has_clone else None
    with pytest.raises(OpencotiError) as caught:
        rebase(checkout.layout, Console(quiet=True), onto, clone=clone)
    assert caught.value.error_id == error_id


def test_output_folder_with_something_in_it_is_refused_before_any_work(
    checkout: Checkout, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "0001-mine.patch").write_text("x")
    with pytest.raises(OpencotiError) as caught:
        rebase(checkout.layout, Console(quiet=True), "new", out=tmp_path / "out")
    assert caught.value.error_id == "rebase-out"
    assert not checkout.layout.build.exists()


def test_output_that_cannot_be_written_leaves_nothing(
    checkout: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ci.patches.rebasing.write_lock", _full_disk)
    with pytest.raises(OpencotiError) as caught:
        rebased(checkout, tmp_path, {}, out=tmp_path / "place" / "out")
    assert (caught.value.error_id, caught.value.exit_code) == ("storage-failed", 8)
    assert list((tmp_path / "place").iterdir()) == []


def _full_disk(*args: object) -> Path:
    raise OSError(28, "No space left on device")


def test_command_ends_with_5_on_a_conflict(checkout: Checkout, tmp_path: Path) -> None:
    import argparse

    from ci.patches import rebase_cli

    clone = make_clone(tmp_path / "clone", FILES | {"src/main.cpp": b"all new\n"})
    parser = argparse.ArgumentParser()
    rebase_cli.register(parser.add_subparsers(), argparse.ArgumentParser(add_help=False))
    args = parser.parse_args(["rebase", "--onto", "new", "--from", str(clone), "--lane", "elf"])
    console = Console(quiet=True, as_json=True)
    assert args.command(args, Context(layout=checkout.layout, console=console)) == 5


def test_users_own_tree_with_edits_stays_as_it_is(
    checkout: Checkout, tmp_path: Path, recorded: RecordedConsole
) -> None:
    apply(checkout.layout, recorded.console)
    (checkout.tree / "src" / "main.cpp").write_text("mine\n")
    before = git(checkout.tree, "for-each-ref")
    assert states(rebased(checkout, tmp_path, {})) == ["clean"] * 3
    assert (checkout.tree / "src" / "main.cpp").read_text() == "mine\n"
    assert git(checkout.tree, "for-each-ref") == before


def test_upstream_says_where_it_is_from(checkout: Checkout, tmp_path: Path) -> None:
    clone = make_clone(tmp_path / "clone", FILES)
    found = find_upstream(checkout.layout, "new", Console(quiet=True), like=checkout.pin, clone=clone)
    assert found == Upstream(
        name="new of clone",
        tree=git(clone, "rev-parse", "new^{tree}").strip(),
        objects=clone / ".git" / "objects",
    )
