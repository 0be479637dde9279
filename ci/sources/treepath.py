"""What a path inside a source tree may be. Pure; shared by the unpacker and the patch lint.

Paths are relative, with `/` between components, as archives and git write them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping

_MAX_LINK_STEPS = 40  # as many as Linux follows


def path_problem(path: str) -> str | None:
    """Say why `path` must not be written in a tree, or return `None` if it may."""
    if not path or path.startswith("/") or "\\" in path or "\0" in path:
        return "it is empty, absolute, or holds a backslash or NUL"
    for part in path.split("/"):
        if part in ("", ".", ".."):
            return f"it has the component {part!r}"
        if is_git_name(part):
            return f"its component {part!r} would be taken for git's own folder"
    return None


def is_git_name(part: str) -> bool:
    """Tell whether some file system takes a component for `.git` (case, trailing dots, hidden characters)."""
    visible = "".join(char for char in part if unicodedata.category(char) != "Cf")
    return visible.casefold().rstrip(". ") in (".git", "git~1")


def collision_key(path: str) -> str:
    """Return what a case-insensitive, normalising file system makes of a path."""
    return unicodedata.normalize("NFC", path).casefold()


def link_on_the_way(path: str, links: Mapping[str, str]) -> str | None:
    """Return the symbolic link that a path goes through, if there is one."""
    parts = path.split("/")
    parents = ("/".join(parts[:count]) for count in range(1, len(parts)))
    return next((parent for parent in parents if parent in links), None)


def link_problem(path: str, target: str, links: Mapping[str, str]) -> str | None:
    """Say why a symbolic link must not be made, or return `None` if it stays inside the tree.

    Args:
        path: where the link is.
        target: what it points to.
        links: all links of the tree (path to target), so that chains of links are followed as the kernel
            would: `a/up -> ..` together with `b -> a/up/../..` leaves a tree that each alone stays in.
    """
    if target.startswith("/"):
        return f"it points to the absolute path {target[:80]}"
    here = path.split("/")[:-1]
    todo = target.split("/")
    for _ in range(_MAX_LINK_STEPS * 16):
        if not todo:
            return None
        part = todo.pop(0)
        if part in ("", "."):
            continue
        if part == "..":
            if not here:
                return f"it points out of the tree ({target[:80]})"
            here.pop()
            continue
        here.append(part)
        next_target = links.get("/".join(here))
        if next_target is not None:
            if next_target.startswith("/"):
                return f"it leads to the absolute path {next_target[:80]}"
            here.pop()
            todo = next_target.split("/") + todo
    return "it is a loop of links"
