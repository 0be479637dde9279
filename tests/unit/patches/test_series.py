"""Names, order and hashes of a series."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from ci.patches.series import patch_set_hash, read_series, require_valid, title_from_name
from opencoti.errors import ConfigError
from tests.fakes.source_trees import LINE_TWO, NEW_FILE


def write(folder: Path, **files: str) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def test_patches_come_in_order_and_other_files_are_ignored(tmp_path: Path) -> None:
    write(tmp_path / "s", **{"0002-bar-baz.patch": NEW_FILE, "0001-foo.patch": LINE_TWO, "README.md": "x"})
    series = read_series(tmp_path / "s")
    assert [patch.name for patch in series.patches] == ["0001-foo.patch", "0002-bar-baz.patch"]
    assert series.ignored == ("README.md",)
    assert series.invalid == ()
    assert series.summary() == "2 patches"


def test_patch_knows_its_title_description_and_files(tmp_path: Path) -> None:
    write(tmp_path / "s", **{"0002-bar-baz.patch": NEW_FILE, "0001-foo-it.patch": LINE_TWO})
    first, second = read_series(tmp_path / "s").patches
    assert (first.title, first.number, first.touched) == ("Foo it", 1, ("src/main.cpp",))
    assert (second.title, second.description, second.touched) == (
        "Add a file",
        "It says why.",
        ("src/new.cpp",),
    )


def test_folded_and_encoded_subject_is_read(tmp_path: Path) -> None:
    mail = "Subject: [PATCH] =?UTF-8?q?=C3=9Cber?=\n long\nDate: x\n\n---\n"
    write(tmp_path / "s", **{"0001-a.patch": mail + LINE_TWO})
    assert read_series(tmp_path / "s").patches[0].title == "Über long"


def test_duplicate_number_makes_both_invalid_and_names_both(tmp_path: Path) -> None:
    write(tmp_path / "s", **{"0001-a.patch": LINE_TWO, "0001-b.patch": LINE_TWO, "0002-c.patch": LINE_TWO})
    series = read_series(tmp_path / "s")
    assert [patch.name for patch in series.patches] == ["0002-c.patch"]
    assert {patch.name: patch.why for patch in series.invalid} == {
        "0001-a.patch": "the number 0001 is also used by 0001-b.patch",
        "0001-b.patch": "the number 0001 is also used by 0001-a.patch",
    }
    with pytest.raises(ConfigError, match=r"0001-a\.patch.*0001-b\.patch") as caught:
        require_valid(series)
    assert caught.value.error_id == "series-invalid"


@pytest.mark.parametrize(
    "name",
    [
        "1-a.patch",
        "00001-a.patch",
        "0001-A.patch",
        "0001-a_b.patch",
        "0001-.patch",
        "0001-a--b.patch",
        "0001a.patch",
        "0001-a-.patch",
        "a.patch",
        ".patch",
        "0001-\u0661.patch",
        "\u0660001-a.patch",
        "0001-a\n.patch",
    ],
)
def test_other_names_are_invalid(tmp_path: Path, name: str) -> None:
    write(tmp_path / "s", **{name: LINE_TWO})
    series = read_series(tmp_path / "s")
    assert series.patches == ()
    assert [patch.name for patch in series.invalid] == [name]


def test_link_or_folder_is_no_patch(tmp_path: Path) -> None:
    write(tmp_path / "s", **{"0001-a.patch": LINE_TWO})
    (tmp_path / "s" / "0002-b.patch").symlink_to("0001-a.patch")
    (tmp_path / "s" / "0003-c.patch").mkdir()
    assert [patch.name for patch in read_series(tmp_path / "s").invalid] == ["0002-b.patch", "0003-c.patch"]


def test_no_folder_and_empty_folder_have_no_patches(tmp_path: Path) -> None:
    assert read_series(tmp_path / "none").summary() == "no patches"
    (tmp_path / "s").mkdir()
    series = read_series(tmp_path / "s")
    assert series.summary() == "no patches"
    assert patch_set_hash(series) == hashlib.sha256(b"").hexdigest()


def test_set_hash_is_over_names_and_hashes(tmp_path: Path) -> None:
    write(tmp_path / "s", **{"0001-a.patch": LINE_TWO})
    digest = hashlib.sha256(LINE_TWO.encode()).hexdigest()
    expected = hashlib.sha256(f"0001-a.patch {digest}\n".encode()).hexdigest()
    assert patch_set_hash(read_series(tmp_path / "s")) == expected


def test_name_becomes_a_title() -> None:
    assert title_from_name("0004-answer-faster.patch") == "Answer faster"
