"""Judging patches before anything is written: what must never happen to a tree is refused here. Pure.

1. Every name that any header line gives is a plain path inside the tree; none is, or is taken for, `.git`.
2. No name goes through a symbolic link, whether the tree has it or an earlier patch makes it.
3. A symbolic link stays inside the tree, also by way of other links (git itself does not check this).
4. No submodules.
5. The file is as git wrote it: no converted line ends, no malformed hunks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ci.patches.names import PatchSyntaxError
from ci.patches.parsing import FileChange, ParsedPatch
from ci.patches.series import Patch, Series
from ci.sources.treepath import link_on_the_way, link_problem, path_problem
from opencoti.errors import ConfigError, OpencotiError, VerificationError

LINK_MODE: Final = "120000"
SUBMODULE_MODE: Final = "160000"


def lint_series(series: Series, links: Mapping[str, str]) -> None:
    """Judge all patches of a series.

    Args:
        series: the patches, in order.
        links: symbolic links of the pristine tree, path to target.

    Raises:
        ConfigError: `patch-malformed`, `patch-crlf`.
        VerificationError: `patch-unsafe`; the message names the patch and the path.
    """
    known = dict(links)
    makers: dict[str, Patch] = {}
    for patch in series.patches:
        before = set(known)
        known = lint_patch(patch, known)
        makers |= dict.fromkeys(set(known) - before, patch)
    for path, patch in makers.items():
        # Once more with all links: a later one can bend the way of an earlier one.
        if path in known and (problem := link_problem(path, known[path], known)):
            raise _unsafe(patch, path, problem)


def lint_patch(patch: Patch, links: Mapping[str, str]) -> dict[str, str]:
    """Judge one patch, given the links before it; return the links after it. Raises like `lint_series`."""
    parsed = _parsed(patch)
    after = _links_after(patch, parsed, links)
    for change in parsed.changes:
        for name in sorted(change.names):
            if problem := path_problem(name):
                raise _unsafe(patch, name, problem)
            if link := link_on_the_way(name, links) or link_on_the_way(name, after):
                raise _unsafe(patch, name, f"it goes through the symbolic link {link}")
        if SUBMODULE_MODE in change.modes:
            raise _unsafe(patch, change.name, "it adds or changes a submodule")
        target = after.get(change.name)
        if target is not None and target != links.get(change.name):
            problem = link_problem(change.name, target, after)
            if problem:
                raise _unsafe(patch, change.name, f"the symbolic link is refused: {problem}")
    return after


def _parsed(patch: Patch) -> ParsedPatch:
    try:
        return patch.parsed
    except PatchSyntaxError as exc:
        raise _syntax_error(patch, exc) from exc


def _syntax_error(patch: Patch, exc: PatchSyntaxError) -> OpencotiError:
    if exc.is_crlf:
        return ConfigError(
            "patch-crlf",
            f"patch {patch.name} has CRLF line ends",
            why=f"line {exc.line} of it is a header and ends in CR LF, which git never writes",
            hint="a checkout converted it: keep `*.patch -text` in .gitattributes and check it out again",
        )
    return ConfigError(
        "patch-malformed",
        f"patch {patch.name} is not a patch that git can apply strictly",
        why=f"line {exc.line}: {exc.why}",
        hint="write it with `python -m ci capture` or `git format-patch`, not by hand",
    )


def _links_after(patch: Patch, parsed: ParsedPatch, links: Mapping[str, str]) -> dict[str, str]:
    after = dict(links)
    for change in parsed.changes:
        if change.is_deleted or (change.is_moved and change.old_name != change.new_name):
            after.pop(change.old_name, None)
    for change in parsed.changes:
        if change.is_deleted:
            continue
        if LINK_MODE in change.modes or _is_link(change, links, after):
            after[change.new_name] = _link_target(patch, change, links)
    return after


def _is_link(change: FileChange, links: Mapping[str, str], after: Mapping[str, str]) -> bool:
    """Tell whether a change without a mode is one of a link that exists."""
    return not change.is_new and (change.old_name in links or change.new_name in after)


def _link_target(patch: Patch, change: FileChange, links: Mapping[str, str]) -> str:
    if change.hunks:
        content = b"".join(line for hunk in change.hunks for line in hunk.new)
        return content.decode("utf-8", "surrogateescape")
    if change.old_name in links and not change.is_binary:
        return links[change.old_name]
    raise _unsafe(patch, change.name, "it makes a symbolic link whose target is not in plain sight")


def _unsafe(patch: Patch, path: str, why: str) -> VerificationError:
    return VerificationError(
        "patch-unsafe",
        f"patch {patch.name} is refused, for the path {path[:120]!r}",
        why=why,
        hint="nothing was changed; remove that part of the patch",
    )
