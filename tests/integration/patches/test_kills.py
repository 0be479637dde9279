"""SIGKILL at any moment (case B04): the next run mends all by itself and gives the identical tree."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ci.patches.apply import apply, reset
from ci.patches.model import AppliedTree
from ci.paths import Layout
from opencoti.console import Console
from tests.conftest import ROOT, RecordedConsole
from tests.fakes.source_trees import FILES, LINE_TWENTY, LINE_TWO, NEW_FILE, Checkout, git, make_checkout

_MAX_CALLS = 80

# Stands in for git on PATH: does the work, then kills whoever called it, at a chosen call.
_WRAPPER = """#!/bin/sh
n=$(($(cat "$COUNT") + 1)); echo $n > "$COUNT"
"$REAL_GIT" "$@"; code=$?
[ $n = "$KILL_AT" ] && kill -9 $PPID
exit $code
"""
# Does half of what moves the files: the lock is there, one file is cut short, one is gone; then it kills.
_HALF = """#!/bin/sh
case " $* " in
*" --dry-run "*) ;;
*" read-tree "*" -u "*)
    cp "$TREE/.git/index" "$TREE/.git/index.lock" 2>/dev/null || : > "$TREE/.git/index.lock"
    printf 'line 1\\nline t' > "$TREE/src/main.cpp"
    rm -f "$TREE/src/new.cpp"
    kill -9 $PPID
    exit 1;;
esac
exec "$REAL_GIT" "$@"
"""
_PROGRAM = """
import sys
from pathlib import Path
from ci.patches import apply as module
from ci.paths import Layout
from opencoti.console import Console
layout = Layout(root=Path(sys.argv[2]), cache=Path(sys.argv[3]))
getattr(module, sys.argv[1])(layout, Console())
"""


def run_with_git(wrapper: str, command: str, checkout: Checkout, *, kill_at: int = 0) -> int:
    """Run a command in a process of its own with `wrapper` as its git; return how it ended."""
    place = checkout.layout.root.parent / "bin"
    place.mkdir(exist_ok=True)
    (place / "git").write_text(wrapper)
    (place / "git").chmod(0o755)
    (place / "count").write_text("0")
    real = shutil.which("git")
    assert real is not None
    env = os.environ | {
        "PATH": f"{place}:{os.environ['PATH']}",
        "REAL_GIT": real,
        "COUNT": str(place / "count"),
        "KILL_AT": str(kill_at),
        "TREE": str(checkout.tree),
        "PYTHONPATH": str(ROOT),
    }
    argv = [sys.executable, "-c", _PROGRAM, command, str(checkout.layout.root), str(checkout.layout.cache)]
    return subprocess.run(argv, env=env, capture_output=True, check=False).returncode


def quiet() -> Console:
    return RecordedConsole().console


def fresh(checkout: Checkout) -> None:
    """Nothing was ever done here."""
    checkout.add_patch("0001-two.patch", LINE_TWO)
    checkout.add_patch("0002-add-file.patch", NEW_FILE)


def between(checkout: Checkout) -> None:
    """A tree with two patches, and a third one to come and one to go."""
    fresh(checkout)
    apply(checkout.layout, quiet())
    checkout.add_patch("0003-twenty.patch", LINE_TWENTY)
    (checkout.series / "0002-add-file.patch").unlink()


def dirty(checkout: Checkout) -> None:
    """A tree with edits, ignored files and commits of the user."""
    fresh(checkout)
    apply(checkout.layout, quiet())
    (checkout.tree / "src" / "main.cpp").write_text("mine")
    git(checkout.tree, "commit", "-q", "-a", "-m", "mine")
    (checkout.tree / "CMakeLists.txt").write_text("mine")
    (checkout.tree / "x.o").touch()


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and ".git" not in path.relative_to(folder).parts
    }


def copy_of(checkout: Checkout, place: Path) -> Checkout:
    shutil.copytree(checkout.layout.root.parent, place, symlinks=True)
    return Checkout(Layout(root=place / "checkout", cache=place / "cache"))


def without_place(applied: AppliedTree) -> AppliedTree:
    return replace(applied, folder=Path(), pin=replace(applied.pin, path=Path()))


Prepare = Callable[[Checkout], None]
CASES = [
    pytest.param("apply", fresh, id="first-apply"),
    pytest.param("apply", between, id="apply"),
    pytest.param("reset", dirty, id="reset"),
]


@pytest.fixture
def template(tmp_path: Path) -> Checkout:
    return make_checkout(Layout(root=tmp_path / "t" / "checkout", cache=tmp_path / "t" / "cache"))


@pytest.mark.parametrize(("command", "prepare"), CASES)
def test_case_b04_kill_after_each_git_call_is_mended_by_the_next_run(
    template: Checkout, tmp_path: Path, command: str, prepare: Prepare
) -> None:
    prepare(template)
    action = {"apply": apply, "reset": reset}[command]
    good = copy_of(template, tmp_path / "good")
    expected = action(good.layout, quiet())
    files = contents(good.tree)
    kills = 0
    for number in range(1, _MAX_CALLS):
        victim = copy_of(template, tmp_path / f"kill-{number}")
        code = run_with_git(_WRAPPER, command, victim, kill_at=number)
        if code == 0:
            break
        kills += 1
        assert code == -signal.SIGKILL
        assert without_place(action(victim.layout, quiet())) == without_place(expected), f"call {number}"
        assert contents(victim.tree) == files, f"call {number}"
        left = {path.name for path in victim.tree.parent.iterdir()}
        assert left == {"elf", ".elf.lock"}, f"call {number}"
        shutil.rmtree(tmp_path / f"kill-{number}")
    assert 5 < kills < _MAX_CALLS - 1


@pytest.mark.parametrize(("command", "prepare"), CASES)
def test_case_b04_half_moved_tree_with_a_lock_of_ours_is_finished(
    template: Checkout, tmp_path: Path, command: str, prepare: Prepare
) -> None:
    prepare(template)
    action = {"apply": apply, "reset": reset}[command]
    good = copy_of(template, tmp_path / "good")
    expected = action(good.layout, quiet())
    assert run_with_git(_HALF, command, template) == -signal.SIGKILL
    assert (template.tree / ".git" / "index.lock").exists()
    recorded = RecordedConsole()
    assert without_place(action(template.layout, recorded.console)) == without_place(expected)
    assert contents(template.tree) == contents(good.tree)
    assert git(template.tree, "status", "--porcelain") == ""
    if command == "apply":
        assert "interrupted" in recorded.text


def test_edits_made_after_the_kill_in_other_files_survive(template: Checkout) -> None:
    between(template)
    assert run_with_git(_HALF, "apply", template) == -signal.SIGKILL
    (template.tree / "CMakeLists.txt").write_text("mine")
    with pytest.raises(Exception, match="CMakeLists") as caught:
        apply(template.layout, quiet())
    assert caught.value.error_id == "tree-edited"  # type: ignore[attr-defined]
    assert (template.tree / "CMakeLists.txt").read_text() == "mine"
    main = (
        FILES["src/main.cpp"].replace(b"line 2\n", b"line two\n", 1).replace(b"line 20\n", b"line twenty\n")
    )
    assert (template.tree / "src" / "main.cpp").read_bytes() == main
