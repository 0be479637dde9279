"""The first part of a series, in a tree and a build folder of its own: what benches compare with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ci.build import BuildOptions
from ci.build_cli import _chosen, register
from ci.patches.apply import apply
from ci.patches.series import first_part, patch_set_hash, read_series
from ci.paths import Layout
from ci.stages.elf import EngineIdentity, cpu_stage
from opencoti.errors import OpencotiError
from tests.conftest import RecordedConsole
from tests.fakes.source_trees import LINE_TWENTY, LINE_TWO, NEW_FILE, Checkout, make_checkout


@pytest.fixture
def checkout(layout: Layout) -> Checkout:
    checkout = make_checkout(layout)
    for number, text in enumerate((LINE_TWO, LINE_TWENTY, NEW_FILE), start=1):
        checkout.add_patch(f"{number:04d}-p.patch", text)
    return checkout


def test_first_part_is_the_same_as_a_series_that_ends_there_and_leaves_the_whole_one_alone(
    checkout: Checkout, recorded: RecordedConsole
) -> None:
    whole = apply(checkout.layout, recorded.console)
    part = apply(checkout.layout, recorded.console, until="0002")
    assert part.folder == checkout.tree.with_name("elf-until-0002")
    assert not (part.folder / "src" / "new.cpp").exists()
    assert (part.tree, part.commit) == (whole.patches[1].tree, whole.patches[1].commit)
    assert apply(checkout.layout, recorded.console) == whole
    assert (checkout.tree / "src" / "new.cpp").exists()
    (checkout.series / "0003-p.patch").unlink()
    assert patch_set_hash(read_series(checkout.series)) == part.patch_set_hash


@pytest.mark.parametrize("until", ["0004", "2", "", "000", "0002-p"])
def test_number_that_no_patch_has_is_refused(checkout: Checkout, until: str) -> None:
    with pytest.raises(OpencotiError) as caught:
        first_part(read_series(checkout.series), until)
    assert (caught.value.error_id, caught.value.exit_code) == ("series-until", 2)


def test_folder_of_a_stage_is_no_part_of_its_key() -> None:
    identity = EngineIdentity(version_string="v", patch_set="0" * 64, upstream_commit="1" * 40)
    stage = cpu_stage(arch="x86_64", toolchain="zig", source_tree="2" * 40, identity=identity)
    options = BuildOptions(engine="host", toolchain="zig", jobs=1, series_until="0003")
    apart = replace(stage, folder_name=stage.name + options.suffix)
    assert (stage.place, apart.place) == ("cpu-x86_64", "cpu-x86_64-until-0003")
    assert stage.key("tools") == apart.key("tools")


@pytest.mark.parametrize("words", [["cpu", "vulkan"], ["vulkan"], ["--all"]])
def test_part_of_a_series_is_built_for_the_cpu_only(words: list[str], tmp_path: Path) -> None:
    import argparse

    parser = argparse.ArgumentParser()
    register(parser.add_subparsers(), argparse.ArgumentParser(add_help=False))
    with pytest.raises(OpencotiError) as caught:
        _chosen(parser.parse_args(["build", *words, "--series-until", "0003"]))
    assert caught.value.error_id == "build-until"
