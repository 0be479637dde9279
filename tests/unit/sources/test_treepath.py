"""Paths and links of a source tree."""

from __future__ import annotations

import pytest

from ci.sources.treepath import collision_key, link_on_the_way, link_problem, path_problem


@pytest.mark.parametrize("path", ["a", "a/b.c", "..a/b", "a/...", ".github/x", "git/x", ".gitignore", "~x"])
def test_plain_paths_are_fine(path: str) -> None:
    assert path_problem(path) is None


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/x",
        "../x",
        "a/../../x",
        "a//b",
        "./a",
        "a/",
        ".git/x",
        "a/.GIT/hooks/x",
        ".git./x",
        ".g\u200dit/x",
        "GIT~1/x",
        "a\\..\\b",
        "a\x00b",
    ],
)
def test_paths_that_leave_the_tree_or_reach_git_are_refused(path: str) -> None:
    assert path_problem(path) is not None


def test_names_that_file_systems_confuse_have_one_key() -> None:
    assert collision_key("A/É") == collision_key("a/e\u0301")
    assert collision_key("a") != collision_key("b")


def test_path_through_a_link_is_found_but_the_link_itself_is_not() -> None:
    assert link_on_the_way("a/l/x", {"a/l": "/tmp"}) == "a/l"
    assert link_on_the_way("a/l", {"a/l": "/tmp"}) is None


@pytest.mark.parametrize(
    ("path", "target", "links", "is_safe"),
    [
        ("a/l", "b", {}, True),
        ("a/l", "../b", {}, True),
        ("l", "../b", {}, False),
        ("a/l", "../../b", {}, False),
        ("l", "/etc/passwd", {}, False),
        ("a/l", "./x/../../a", {}, True),
        # Each link alone stays inside; together they lead out.
        ("b", "a/up/../x", {"a/up": ".."}, False),
        ("b", "far/x", {"far": "/tmp"}, False),
        ("l", "l", {"l": "l"}, False),
        ("a", "b", {"a": "b", "b": "a"}, False),
    ],
)
def test_links_stay_inside_also_through_other_links(
    path: str, target: str, links: dict[str, str], is_safe: bool
) -> None:
    assert (link_problem(path, target, links) is None) == is_safe
