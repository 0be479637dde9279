"""The rules of a series that git knows nothing of: the README's notes, and the lists of ggml's core."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.patches.conventions import CORE_LISTS, core_problems, note_problems, series_problems
from ci.patches.series import Series, read_series
from ci.verify.features import TABLE_NAME, load_features
from tests.conftest import ROOT
from tests.fakes.source_trees import change, creation

NEW = creation("llama.cpp/ggml/src/ggml-turbo.c", "int turbo;")


def adds(place: str, word: str) -> str:
    return change(place, f"@@ -1 +1,2 @@\n first\n+    {word} \\\n")


@pytest.fixture
def series(tmp_path: Path) -> Path:
    folder = tmp_path / "series"
    folder.mkdir()
    return folder


def read(folder: Path, text: str, name: str = "0001-turbo.patch") -> Series:
    (folder / name).write_text(text)
    return read_series(folder)


def test_a_core_source_in_every_list_is_fine(series: Path) -> None:
    lists = "".join(adds(place, "$dir/ggml/src/ggml-turbo.c") for place in CORE_LISTS)
    assert core_problems(read(series, NEW + lists)) == ()


@pytest.mark.parametrize("missing", range(3))
def test_each_list_counts(series: Path, missing: int) -> None:
    lists = "".join(
        adds(place, "ggml-turbo.c") for number, place in enumerate(CORE_LISTS) if number != missing
    )
    (problem,) = core_problems(read(series, NEW + lists))
    assert problem == (
        f"0001-turbo.patch adds llama.cpp/ggml/src/ggml-turbo.c and does not name it in {CORE_LISTS[missing]}"
    )


def test_a_list_that_is_touched_for_another_reason_does_not_count(series: Path) -> None:
    lists = "".join(adds(place, "ggml-turbo.c") for place in CORE_LISTS[1:])
    lists += change(CORE_LISTS[0], "@@ -1 +1,2 @@\n ggml-turbo.c is new\n+other\n")
    (problem,) = core_problems(read(series, NEW + lists))
    assert problem.endswith(CORE_LISTS[0])


def test_a_longer_name_does_not_count(series: Path) -> None:
    lists = "".join(adds(place, "my-ggml-turbo.cpp") for place in CORE_LISTS)
    (problem,) = core_problems(read(series, NEW + lists))
    assert all(place in problem for place in CORE_LISTS)


@pytest.mark.parametrize(
    "text",
    [
        creation("llama.cpp/ggml/src/ggml-cuda/turbo.cu", "int x;"),
        creation("llama.cpp/ggml/src/ggml-cpu/turbo.c", "int x;"),
        creation("llama.cpp/ggml/src/turbo.h", "int x;"),
        creation("llama.cpp/src/turbo.cpp", "int x;"),
        change("llama.cpp/ggml/src/ggml.c", "@@ -1 +1,2 @@\n first\n+int x;\n"),
    ],
)
def test_other_files_are_in_no_such_list(series: Path, text: str) -> None:
    assert core_problems(read(series, text)) == ()


def test_a_malformed_patch_is_left_to_others(series: Path) -> None:
    assert core_problems(read(series, "no patch at all\n")) == ()


def test_only_the_ape_lane_has_such_lists(series: Path) -> None:
    found = read(series, NEW)
    note = "## 0001-turbo\n\n**Upstream?** No.\n"
    assert series_problems(found, note, lane="elf") == ()
    assert len(series_problems(found, note, lane="ape")) == 1


@pytest.mark.parametrize(
    ("readme", "problem"),
    [
        (None, "the series has no README.md"),
        ("# Patches\n\n**Upstream?** yes\n", "README.md has no section `## 0001-turbo`"),
        ("## 0001-turbo\n\nIt is fast.\n\n## 0002-other\n\n**Upstream?** No.\n",
         "the section of 0001-turbo in README.md does not say **Upstream?**"),
    ],
)  # fmt: skip
def test_each_patch_says_whether_it_can_go_upstream(series: Path, readme: str | None, problem: str) -> None:
    assert note_problems(read(series, NEW), readme) == (problem,)


def test_a_series_without_patches_needs_no_readme(series: Path) -> None:
    assert note_problems(read_series(series), None) == ()


@pytest.mark.parametrize(("name", "lane"), [("llama.cpp", "elf"), ("llamafile", "ape")])
def test_the_series_of_this_repository_keep_the_rules(name: str, lane: str) -> None:
    folder = ROOT / "vendors" / "patches" / name
    found = read_series(folder)
    assert found.patches
    assert load_features(folder / TABLE_NAME).undescribed([patch.name for patch in found.patches]) == ()
    assert series_problems(found, (folder / "README.md").read_text(), lane=lane) == ()
