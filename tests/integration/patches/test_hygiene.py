"""Judging a series: what hangs together, what capturing gives again, what the compiler says of own files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ci.patches.hygiene import HygieneReport, judge
from ci.patches.own_files import find_warnings, own_files
from ci.patches.series import read_series
from ci.paths import Layout
from ci.sources.lanes import find_lane
from opencoti.console import Console
from opencoti.errors import OpencotiError
from tests.fakes.source_trees import LINE_TWO, Checkout, change, creation, make_checkout

HEADER = "From: opencoti <patches@opencoti.invalid>\nSubject: [PATCH] Add\n\n---\n"
ADDS = HEADER + creation("common/opencoti/store.h", "int store();\n")
USES = change("src/main.cpp", '@@ -29,3 +29,4 @@\n line 29\n line 30\n+#include "store.h"\n line 31\n')
THREE = change("src/main.cpp", "@@ -1,3 +1,3 @@\n line 1\n-line two\n+line zwei\n line 3\n")


@pytest.fixture
def checkout(layout: Layout) -> Checkout:
    return make_checkout(layout)


OTHERS = change("src/main.cpp", '@@ -34,3 +34,4 @@\n line 34\n line 35\n+#include "my-store.h"\n line 36\n')


def judged(checkout: Checkout, *patches: str) -> HygieneReport:
    for number, text in enumerate(patches, start=1):
        checkout.add_patch(f"{number:04d}-p.patch", text)
    return judge(checkout.layout, Console(quiet=True), lane="elf")


def test_patches_that_later_ones_need_are_named_and_why(checkout: Checkout) -> None:
    report = judged(checkout, LINE_TWO, ADDS, THREE, USES, OTHERS)
    found = [(item.name[:4], item.unfitting, item.users) for item in report.dependants]
    assert found == [
        ("0001", ("0003-p.patch",), ()),
        ("0002", (), ("0004-p.patch",)),
        ("0003", (), ()),
        ("0004", (), ()),
        ("0005", (), ()),
    ]
    text = "\n".join(report.lines())
    assert "0001-p.patch  cannot: 0003-p.patch does not apply without it" in text
    assert "0002-p.patch  cannot: 0004-p.patch uses its files" in text
    assert "0005-p.patch  can be left out alone" in text
    data = json.loads(json.dumps(report.as_dict()))
    assert [row["can_be_left_out"] for row in data["patches"]] == [False, False, True, True, True]


def test_patch_that_capturing_would_write_in_another_way_is_found(checkout: Checkout) -> None:
    report = judged(checkout, LINE_TWO)
    assert [bool(trip.why) for trip in report.round_trips] == [True]  # no mail header, made-up object ids
    assert "capturing again gives other bytes, first at line 1" in report.round_trips[0].why
    assert not report.is_clean


def test_series_of_this_repository_is_clean(real_layout: Layout) -> None:
    """It needs the pinned source, which is in the download cache wherever anything was built."""
    report = judge(real_layout, Console(quiet=True), lane="elf")
    assert [trip.why for trip in report.round_trips] == [""] * len(report.dependants)
    assert report.dependants[0].name == "0001-build-identity.patch"
    undescribed = [
        patch.name
        for patch in read_series(find_lane(real_layout, "elf").series).patches
        if not patch.description
    ]
    assert undescribed == []


def test_own_files_are_those_that_stay(checkout: Checkout) -> None:
    checkout.add_patch("0001-a.patch", ADDS + creation("b.cpp", "int b;\n"))
    gone = "diff --git a/b.cpp b/b.cpp\ndeleted file mode 100644\nindex 2222222..0000000\n"
    checkout.add_patch("0002-b.patch", gone + "--- a/b.cpp\n+++ /dev/null\n@@ -1 +0,0 @@\n-int b;\n")
    assert own_files(read_series(checkout.series)) == ("common/opencoti/store.h",)


def fake_build(layout: Layout, *, says: str, code: int = 0) -> Path:
    """Make a configured build whose compiler says `says`, and notes the words that it was given."""
    folder = layout.build / "stages" / "host" / "cpu-x86_64"
    folder.mkdir(parents=True)
    compiler = folder / "c++"
    compiler.write_text(f"#!/bin/sh\necho \"$@\" >> {folder}/words\ncat >&2 <<'X'\n{says}\nX\nexit {code}\n")
    compiler.chmod(0o755)
    names = ("common/opencoti/store.cpp", "src/upstream.cpp", "common/opencoti/identity.cpp")
    entries = [
        {
            "directory": str(folder),
            "file": f"/src/{name}",
            "command": f"{compiler} -Wall -MD -MF x.d -o x.o -c /src/{name}",
        }
        for name in names
    ]
    (folder / "compile_commands.json").write_text(json.dumps(entries))
    return folder


def test_warnings_of_own_files_only_are_reported_and_the_build_is_left_alone(layout: Layout) -> None:
    ours = "/src/common/opencoti/store.h:3:1: warning: unused [-Wunused]"
    folder = fake_build(layout, says=f"/src/ggml/ggml.h:1:1: warning: theirs\n{ours}\n  3 | x")
    own = ("common/opencoti/store.cpp", "common/opencoti/store.h", "common/opencoti/identity.cpp.in")
    found = find_warnings(layout, Console(quiet=True), own)
    assert found.lines == (ours,)
    assert found.compiled == ("common/opencoti/store.cpp", "common/opencoti/identity.cpp.in")
    words = (folder / "words").read_text().splitlines()
    assert len(words) == 2
    assert words[0].startswith("-Wall -c /src/common/opencoti/store.cpp -o ")
    assert not (folder / "x.o").exists()


def test_file_that_does_not_compile_at_all_is_no_clean_one(layout: Layout) -> None:
    line = "/src/ggml/ggml.h:1:1: fatal error: 'x.h' file not found"
    fake_build(layout, says=line, code=1)
    assert find_warnings(layout, Console(quiet=True), ("common/opencoti/store.cpp",)).lines == (line,)


def test_no_build_is_said_with_what_makes_one(layout: Layout) -> None:
    with pytest.raises(OpencotiError) as caught:
        find_warnings(layout, Console(quiet=True), ("a.cpp",))
    assert (caught.value.error_id, caught.value.exit_code) == ("warnings-no-build", 4)
