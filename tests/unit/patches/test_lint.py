"""Patches that must never reach a tree (case B06), judged without git."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.patches.lint import lint_series
from ci.patches.series import Patch, Series
from opencoti.errors import ConfigError, OpencotiError, VerificationError
from opencoti.hashing import sha256_bytes
from tests.fakes.source_trees import LINE_TWO, change, creation


def series_of(*texts: str) -> Series:
    patches = tuple(
        Patch(
            name=f"{number:04}-p.patch",
            path=Path(f"{number:04}-p.patch"),
            sha256=sha256_bytes(text.encode()),
            data=text.encode(),
        )
        for number, text in enumerate(texts, 1)
    )
    return Series(folder=Path("s"), patches=patches, invalid=(), ignored=())


def link(name: str, target: str) -> str:
    return creation(name, target, mode="120000", ends=False)


def removal(name: str) -> str:
    return (
        f"diff --git a/{name} b/{name}\ndeleted file mode 100644\nindex 2222222..0000000\n"
        f"--- a/{name}\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
    )


def rename(old: str, new: str) -> str:
    return f"diff --git a/{old} b/{new}\nsimilarity index 100%\nrename from {old}\nrename to {new}\n"


TREE_LINKS = {"linked": "src", "deep/up": ".."}


@pytest.mark.parametrize(
    "texts",
    [
        [creation("../evil", "x")],
        [creation("a/../../evil", "x")],
        [creation("/etc/evil", "x")],
        [creation(".git/hooks/x", "x")],
        [creation(".GIT/hooks/x", "x")],
        [creation("a/.Git/x", "x")],
        [link("l", "/tmp"), creation("l/x", "x")],
        [link("l", "src"), creation("l/x", "x")],
        [link("l", "src") + creation("l/x", "x")],
        [link("l", "/etc/passwd")],
        [link("l", "../x")],
        [link("l", "deep/up/../x")],
        [link("b", "a/l2/../x"), link("a/l2", "..")],
        [creation("linked/x", "x")],
        [removal("linked/x")],
        [rename("linked/x", "y")],
        [rename("y", "linked/x")],
        [rename("deep/up", "up")],
        [rename("y", "../z")],
        [
            change(
                "linked",
                "@@ -1 +1 @@\n-src\n\\ No newline at end of file\n+/tmp\n\\ No newline at end of file\n",
            )
        ],
        [creation("sub", "Subproject commit " + "1" * 40, mode="160000")],
    ],
)
def test_case_b06_path_out_of_the_tree_is_refused(texts: list[str]) -> None:
    with pytest.raises(VerificationError) as caught:
        lint_series(series_of(*texts), TREE_LINKS)
    assert caught.value.error_id == "patch-unsafe"
    assert f"{len(texts):04}-p.patch" in str(caught.value) or "0001-p.patch" in str(caught.value)


@pytest.mark.parametrize(
    "texts",
    [
        [LINE_TWO],
        [link("l", "src/main.cpp")],
        [link("a/l", "../src")],
        [link("l", "src"), removal("l").replace("100644", "120000"), creation("l/x", "x")],
        [removal("y"), rename("a", "b"), "diff --git a/r b/r\nold mode 100644\nnew mode 100755\n"],
    ],
)
def test_ordinary_changes_pass(texts: list[str]) -> None:
    lint_series(series_of(*texts), {})


def test_case_b01_converted_patch_is_named_with_the_remedy() -> None:
    with pytest.raises(ConfigError) as caught:
        lint_series(series_of(LINE_TWO, creation("n", "x").replace("\n", "\r\n")), {})
    assert caught.value.error_id == "patch-crlf"
    assert "0002-p.patch" in str(caught.value)
    assert "CRLF" in str(caught.value)
    assert ".gitattributes" in caught.value.hint


def test_malformed_patch_is_named_with_its_line() -> None:
    with pytest.raises(OpencotiError) as caught:
        lint_series(series_of(LINE_TWO.replace(" line 3\n", "")), {})
    assert (caught.value.error_id, caught.value.exit_code) == ("patch-malformed", 3)
    assert "0001-p.patch" in str(caught.value)
