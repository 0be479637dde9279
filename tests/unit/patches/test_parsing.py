"""Reading a patch file as git would."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.patches.names import PatchSyntaxError
from ci.patches.parsing import parse_patch
from tests.fakes.source_trees import LINE_TWO, NEW_FILE, change, creation

RENAME = (
    "diff --git a/src/old name.cpp b/lib/new.cpp\nsimilarity index 100%\n"
    "rename from src/old name.cpp\nrename to lib/new.cpp\n"
)
DELETION = (
    "diff --git a/x b/x\ndeleted file mode 100644\nindex 2222222..0000000\n"
    "--- a/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
)


def test_hunks_are_read_with_both_sides() -> None:
    (found,) = parse_patch(LINE_TWO.encode()).changes
    (hunk,) = found.hunks
    assert (hunk.number, hunk.old_start) == (1, 1)
    assert hunk.old == (b"line 1\n", b"line 2\n", b"line 3\n")
    assert hunk.new == (b"line 1\n", b"line two\n", b"line 3\n")


def test_every_kind_of_change_gives_its_names() -> None:
    patch = parse_patch((NEW_FILE + RENAME + DELETION).encode())
    assert patch.touched == ("lib/new.cpp", "src/new.cpp", "src/old name.cpp", "x")
    assert [found.name for found in patch.changes] == ["src/new.cpp", "lib/new.cpp", "x"]


def test_quoted_and_spaced_names_are_undone() -> None:
    name = '"a/t\\303\\244b\\t\\"q\\\\.c"'
    other = name.replace("a/", "b/", 1)
    text = f"diff --git {name} {other}\nindex 1..2 100644\n--- {name}\n+++ {other}\n@@ -1 +1 @@\n-a\n+b\n"
    assert parse_patch(text.encode()).touched == ('täb\t"q\\.c',)
    spaced = "diff --git a/a b c b/a b c\nold mode 100644\nnew mode 100755\n"
    assert parse_patch(spaced.encode()).touched == ("a b c",)


def test_missing_newline_at_the_end_is_read() -> None:
    text = change("l", "@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+b\n\\ No newline at end of file\n")
    (found,) = parse_patch(text.encode()).changes
    assert (found.hunks[0].old, found.hunks[0].new) == ((b"a",), (b"b",))


def test_carriage_returns_in_content_belong_to_the_content() -> None:
    text = change("dos.txt", "@@ -1,2 +1,2 @@\n a\r\n-b\r\n+B\r\n")
    (found,) = parse_patch(text.encode()).changes
    assert found.hunks[0].new == (b"a\r\n", b"B\r\n")


@pytest.mark.parametrize(
    "text", [LINE_TWO, NEW_FILE, RENAME, DELETION], ids=["change", "new", "rename", "delete"]
)
def test_converted_patch_is_known_as_such(text: str) -> None:
    with pytest.raises(PatchSyntaxError) as caught:
        parse_patch(text.replace("\n", "\r\n").encode())
    assert caught.value.is_crlf


@pytest.mark.parametrize(
    "text",
    [
        "",
        "only words\n",
        "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n",
        LINE_TWO.replace("+++ b/src/main.cpp", "+++ b/src/../../x"),
        LINE_TWO.replace("--- a/src/main.cpp", "--- a/other"),
        LINE_TWO.replace("--- a/src/main.cpp", "--- /dev/null"),
        LINE_TWO.replace("a/src", "src").replace("b/src", "src"),
        LINE_TWO.replace("@@ -1,3 +1,3 @@", "@@ -1,4 +1,3 @@"),
        LINE_TWO.replace("@@ -1,3 +1,3 @@", "@@ -1,3 +1,2 @@"),
        LINE_TWO.replace("@@ -1,3 +1,3 @@", "@@ -one +1,3 @@"),
        LINE_TWO.replace(" line 3\n", ""),
        LINE_TWO.replace(" line 3", "line 3"),
        LINE_TWO[: LINE_TWO.index("@@")],
        LINE_TWO[: LINE_TWO.index("+++")],
        change("x", "@@ -1 +1 @@\n-a\n+a\n"),
        "diff --git a/one b/two\nold mode 100644\nnew mode 100755\n",
        "diff --git a/x b/x\nBinary files a/x and b/x differ\n",
        'diff --git "a/x b/x\nold mode 100644\n',
        "diff --git a/x b/x\nold mode 9\n",
    ],
)
def test_what_git_would_not_have_written_is_refused(text: str) -> None:
    with pytest.raises(PatchSyntaxError):
        parse_patch(text.encode())


@given(
    st.lists(st.sampled_from([*LINE_TWO.splitlines(), *RENAME.splitlines(), "+++ b/../x", "\r", "@@", '"a/']))
)
def test_any_mixture_of_lines_is_read_or_refused(lines: list[str]) -> None:
    with suppress(PatchSyntaxError):
        assert parse_patch("\n".join(lines).encode()).changes


def test_created_file_is_known_as_new() -> None:
    (found,) = parse_patch(creation("l", "/tmp", mode="120000", ends=False).encode()).changes
    assert (found.is_new, found.new_mode, found.hunks[0].new) == (True, "120000", (b"/tmp",))
