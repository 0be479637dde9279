"""The files that a stage must leave behind."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from ci.stages.outputs import collect_outputs
from opencoti.errors import BuildError
from tests.fakes.stages import STAGE


def test_outputs_are_listed_sorted_with_the_hash_of_what_a_link_points_to(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "lib.so.0.1").write_bytes(b"lib")
    (tmp_path / "bin" / "lib.so.0").symlink_to("lib.so.0.1")
    (tmp_path / "bin" / "cpu-b.so").write_bytes(b"b")
    stage = replace(STAGE, outputs=("bin/lib.so.0", "bin/cpu-*.so"))
    found = collect_outputs(stage, tmp_path)
    assert list(found) == ["bin/cpu-b.so", "bin/lib.so.0"]
    assert found["bin/lib.so.0"] == hashlib.sha256(b"lib").hexdigest()


@pytest.mark.parametrize("pattern", ["bin/missing", "bin/*.so"])
def test_an_absent_output_is_named(pattern: str, tmp_path: Path) -> None:
    (tmp_path / "bin" / "x.so").mkdir(parents=True)
    with pytest.raises(BuildError, match="ended without") as caught:
        collect_outputs(replace(STAGE, outputs=(pattern,)), tmp_path)
    assert caught.value.error_id == "stage-output-missing"
    assert pattern in caught.value.what


def test_a_link_out_of_the_build_folder_is_no_product(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "secret").write_text("x")
    (tmp_path / "out" / "a").symlink_to(tmp_path / "secret")
    with pytest.raises(BuildError) as caught:
        collect_outputs(replace(STAGE, outputs=("a",)), tmp_path / "out")
    assert caught.value.error_id == "stage-output-outside-folder"
