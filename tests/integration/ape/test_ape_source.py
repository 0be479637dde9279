"""The source of the ape lane: a real submodule with submodules in it, and upstream's own patch scripts."""

from __future__ import annotations

import argparse
import io
import json
import shutil
from pathlib import Path

import pytest

from ci.context import Context
from ci.doctor import run_doctor
from ci.patches.apply import apply, record_series, reset
from ci.patches.checking import check
from ci.paths import Layout
from ci.sources.lanes import find_lane
from ci.sources.vendoring import vendor
from ci.toolchains.recipe import Recipe
from opencoti.console import Console
from opencoti.errors import OpencotiError
from tests.conftest import RecordedConsole
from tests.fakes.ape_checkout import ApeCheckout, commit_all, make_ape_checkout, make_submodule
from tests.fakes.source_trees import creation, git

ANSWER = "llama.cpp/src/llama.c"


def fails(checkout: ApeCheckout) -> OpencotiError:
    with pytest.raises(OpencotiError) as caught:
        vendor(checkout.layout, checkout.pin, checkout.context.console)
    return caught.value


def move_to(checkout: ApeCheckout, path: str, commit: str) -> None:
    """Let upstream's repository name another commit of a submodule, and the pin name that."""
    git(checkout.submodule, "update-index", "--add", "--cacheinfo", f"160000,{commit},{path}")
    git(checkout.submodule, "commit", "--quiet", "--message", "move")
    checkout.write_pin()


def test_source_is_upstream_with_its_submodules_and_its_own_patches(checkout: ApeCheckout) -> None:
    tree = apply(checkout.layout, checkout.context.console, lane="ape").folder
    assert 'return "upstream-patched";' in (tree / ANSWER).read_text()
    assert (tree / "llama.cpp" / "BUILD.mk").read_bytes() == (
        tree / "llama.cpp.patches" / "llamafile-files" / "BUILD.mk"
    ).read_bytes()
    assert (tree / "third_party" / "zipalign" / "zipalign.c").is_file()
    assert not (tree / "llama.cpp" / "Makefile").exists()
    assert [str(path.relative_to(tree)) for path in tree.rglob(".git")] == [".git"]
    assert "$(HEADER_DEPS)" in (tree / "build" / "rules.mk").read_text()


def test_scripts_of_upstream_reach_no_network(checkout: ApeCheckout) -> None:
    tree = apply(checkout.layout, checkout.context.console, lane="ape").folder
    assert not (tree / "llama.cpp" / "web-page").exists()
    log = (checkout.layout.logs / "ape-upstream-patches.log").read_text()
    assert "building without the web page" in log


def test_the_submodule_stays_as_it_is(checkout: ApeCheckout) -> None:
    before = {path: path.stat().st_mtime_ns for path in checkout.submodule.rglob("*.c")}
    apply(checkout.layout, checkout.context.console, lane="ape")
    assert {path: path.stat().st_mtime_ns for path in checkout.submodule.rglob("*.c")} == before
    assert git(checkout.submodule, "status", "--porcelain") == ""
    assert git(checkout.submodule / "llama.cpp", "status", "--porcelain") == ""


def test_same_commit_gives_the_same_tree_in_every_checkout(checkout: ApeCheckout, tmp_path: Path) -> None:
    first = vendor(checkout.layout, checkout.pin, checkout.context.console)
    other = Layout(root=tmp_path / "other place", cache=tmp_path / "other-cache")
    shutil.copytree(checkout.layout.root, other.root)
    shutil.rmtree(other.build)
    assert vendor(other, checkout.pin, checkout.context.console).tree == first.tree


def test_a_second_run_does_nothing(checkout: ApeCheckout) -> None:
    first = vendor(checkout.layout, checkout.pin, checkout.context.console)
    log = checkout.layout.logs / "ape-upstream-patches.log"
    log.unlink()
    assert vendor(checkout.layout, checkout.pin, checkout.context.console).tree == first.tree
    assert not log.exists()


def test_series_is_recorded_and_reset_goes_back_to_upstreams_own(checkout: ApeCheckout) -> None:
    applied = record_series(checkout.layout, checkout.context.console, lane="ape")
    lock = (checkout.series / "series.lock").read_text()
    assert lock.split()[:3] == ["base", "llamafile", applied.base_tree]
    assert (applied.pin.version, len(applied.patches)) == ("0.10.1", 1)
    back = reset(checkout.layout, checkout.context.console, lane="ape")
    assert back.tree == applied.base_tree
    assert "HEADER_DEPS" not in (checkout.tree / "build" / "rules.mk").read_text()


def _record_submodule(checkout: ApeCheckout, commit: str) -> None:
    """Make the checkout a repository that has the source as a submodule at this commit."""
    root = checkout.layout.root
    git(root, "init", "--quiet")
    path = checkout.submodule.relative_to(root).as_posix()
    git(root, "update-index", "--add", "--cacheinfo", f"160000,{commit},{path}")


def test_uninitialized_submodule_says_what_to_run(checkout: ApeCheckout) -> None:
    """case B04: the folder is there, and empty."""
    shutil.rmtree(checkout.submodule)
    checkout.submodule.mkdir()
    _record_submodule(checkout, "1" * 40)
    error = _fails_with_pin(checkout)
    assert (error.error_id, error.exit_code) == ("submodule-uninitialized", 4)
    assert "git submodule update --init --recursive vendors/sources/llamafile" in error.hint


def test_a_tree_without_record_of_the_submodule_says_where_it_comes_from(checkout: ApeCheckout) -> None:
    """A source tarball has no git, so `git submodule` would fail there."""
    pin = checkout.pin
    shutil.rmtree(checkout.submodule)
    error = _fails_with_pin(checkout)
    assert (error.error_id, error.exit_code) == ("submodule-uninitialized", 4)
    assert error.hint.startswith("this tree has no record of it: run `git clone --no-checkout ")
    assert f"checkout {pin.commit[:12]}`" in error.hint


def test_check_warns_when_the_checkout_records_another_commit_than_the_pin(
    checkout: ApeCheckout, recorded: RecordedConsole
) -> None:
    _record_submodule(checkout, checkout.pin.commit)
    check(checkout.layout, checkout.context.console, lane="ape")
    assert "records commit" not in recorded.text
    _record_submodule(checkout, "1" * 40)
    check(checkout.layout, checkout.context.console, lane="ape")
    assert "this checkout records commit 111111111111" in recorded.text


def _fails_with_pin(checkout: ApeCheckout) -> OpencotiError:
    with pytest.raises(OpencotiError) as caught:
        apply(checkout.layout, checkout.context.console, lane="ape")
    return caught.value


def test_uninitialized_submodule_inside_is_named(checkout: ApeCheckout) -> None:
    shutil.rmtree(checkout.submodule / "llama.cpp")
    (checkout.submodule / "llama.cpp").mkdir()
    error = fails(checkout)
    assert error.error_id == "submodule-uninitialized"
    assert "vendors/sources/llamafile/llama.cpp" in str(error)
    assert error.hint.endswith("--recursive vendors/sources/llamafile`")


def test_another_commit_than_the_pin_is_refused_and_check_only_warns(
    checkout: ApeCheckout, recorded: RecordedConsole
) -> None:
    (checkout.submodule / "README").write_text("newer\n")
    commit_all(checkout.submodule)
    error = fails(checkout)
    assert (error.error_id, error.exit_code) == ("submodule-drift", 6)
    assert check(checkout.layout, checkout.context.console, lane="ape").state == "missing"
    assert "`apply` refuses that" in recorded.text


def test_check_names_rules_that_the_series_breaks(checkout: ApeCheckout, recorded: RecordedConsole) -> None:
    checkout.add_patch("0008-core.patch", creation("llama.cpp/ggml/src/ggml-core.c", "int x;"))
    (checkout.series / "README.md").write_text("## 0007-build-header-deps\n\n**Upstream?** Yes.\n")
    report = check(checkout.layout, checkout.context.console, lane="ape")
    note, places = report.lint
    assert note == "README.md has no section `## 0008-core`"
    assert places.startswith("0008-core.patch adds llama.cpp/ggml/src/ggml-core.c and does not name it in")
    assert f"  LINT    {places}" in report.lines()
    assert report.as_dict()["lint"] == [note, places]
    assert places in recorded.text


def test_a_commit_that_a_submodule_lacks_is_named(checkout: ApeCheckout) -> None:
    move_to(checkout, "llama.cpp", "1" * 40)
    assert fails(checkout).error_id == "submodule-nested-drift"


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("llamafile/main.c", "llamafile/main.c"),
        ("llamafile/new.c", "llamafile/new.c"),
        ("llama.cpp/src/new.c", "llama.cpp"),
    ],
)
def test_edits_in_the_submodule_stop_before_anything_is_applied(
    checkout: ApeCheckout, recorded: RecordedConsole, name: str, named: str
) -> None:
    """case B04: they would not be built, and nobody would notice."""
    (checkout.submodule / name).write_text("#error edited\n")
    error = fails(checkout)
    assert (error.error_id, error.exit_code) == ("submodule-dirty", 5)
    assert f"first {named};" in error.why
    assert not checkout.tree.exists()
    check(checkout.layout, checkout.context.console, lane="ape")
    assert f"it holds edits, first {named}; `apply` refuses that" in recorded.text


def test_another_tree_than_the_pin_names_is_refused(checkout: ApeCheckout) -> None:
    checkout.write_pin(f"tree={'2' * 40}")
    error = fails(checkout)
    assert (error.error_id, error.exit_code) == ("source-tree", 6)


def test_upstream_patch_that_does_not_fit_is_the_error_each_time(checkout: ApeCheckout) -> None:
    """A second run of upstream's script in place would only say that the tree is dirty."""
    nested = checkout.submodule / "llama.cpp"
    source = nested / "src" / "llama-old-name.c"
    source.write_text(source.read_text().replace('"vanilla"', '"something else"'))
    move_to(checkout, "llama.cpp", commit_all(nested))
    for _ in range(2):
        error = fails(checkout)
        assert (error.error_id, error.exit_code) == ("upstream-patches-failed", 5)
        assert "FAILED" in error.why


def test_lane_auto_is_ape_only_when_source_and_compiler_are_there(checkout: ApeCheckout) -> None:
    layout = checkout.layout
    assert find_lane(layout, "auto").name == "elf"
    assert lane_finding(checkout.context) == (False, "without cosmocc: --lane auto means elf")
    (archive,) = Recipe.load(layout.containers / "cosmocc").archives
    layout.downloads.mkdir(parents=True)
    (layout.downloads / archive.sha256).touch()
    assert find_lane(layout, "auto").name == "ape"
    assert lane_finding(checkout.context) == (True, "--lane auto means ape")
    shutil.rmtree(checkout.submodule)
    checkout.submodule.mkdir()
    assert find_lane(layout, "auto").name == "elf"


def lane_finding(context: Context) -> tuple[bool, str]:
    """What `doctor` says of the lane."""
    out = io.StringIO()
    console = Console(as_json=True, stdout=out, stderr=io.StringIO())
    run_doctor(argparse.Namespace(), Context(layout=context.layout, console=console))
    (found,) = [item for item in json.loads(out.getvalue())["findings"] if item["name"] == "lane ape"]
    return found["is_ok"], found["found"]


def test_a_submodule_whose_git_data_is_elsewhere_is_read(context: Context, tmp_path: Path) -> None:
    """As git really lays it out: a `.git` file that names a folder below the checkout's own `.git`."""
    checkout = make_ape_checkout(context)
    expected = vendor(checkout.layout, checkout.pin, context.console).tree
    for place in (checkout.submodule, checkout.submodule / "llama.cpp"):
        modules = tmp_path / "modules" / place.name
        modules.parent.mkdir(exist_ok=True)
        (place / ".git").rename(modules)
        (place / ".git").write_text(f"gitdir: {modules}\n")
    shutil.rmtree(checkout.layout.build)
    assert vendor(checkout.layout, checkout.pin, context.console).tree == expected


def test_stand_in_repository_is_made_anew_with_the_same_commits(tmp_path: Path) -> None:
    """The fixtures are deterministic as far as the trees go, so the tests above compare like with like."""
    trees = []
    for name in ("one", "two"):
        make_submodule(tmp_path / name)
        trees.append(git(tmp_path / name / "llama.cpp", "rev-parse", "HEAD^{tree}"))
    assert trees[0] == trees[1]
