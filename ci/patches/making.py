"""Making the text of a patch from two trees, and proving it.

The patch holds as little upstream context as gives the same tree again when it is applied strictly: one line
around each change, more only if one does not do. Nothing is written here but git objects.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ci.git import Repository
from ci.patches.lint import lint_series
from ci.patches.objects import apply_to_tree, links_of
from ci.patches.series import SUFFIX, Patch, Series
from opencoti.errors import BuildError
from opencoti.hashing import sha256_bytes

_CONTEXTS: Final = (1, 2, 3, 8, 32)
_DIFF: Final = (
    *("diff-tree", "-p", "--binary", "--full-index", "--no-renames", "--no-color", "--no-ext-diff"),
    *(
        "--no-textconv",
        "--src-prefix=a/",
        "--dst-prefix=b/",
        "--diff-algorithm=myers",
        "--ignore-submodules=none",
    ),
)
# A line of a message that git would take for the start of a change, or for the end of the message.
_LOOKS_LIKE_PATCH: Final = re.compile(r"(?m)^(?=(?:diff |--- |\+\+\+ |@@ |GIT binary patch|---\s*$|Index: ))")


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a patch is made of: from one tree to another."""

    parent_tree: str
    tree: str


def mail_header(title: str, description: str) -> bytes:
    """Write the mail header of a patch; it holds no name, date or id of whoever makes it."""
    body = f"{_LOOKS_LIKE_PATCH.sub(' ', description)}\n\n" if description else ""
    text = f"From: opencoti <patches@opencoti.invalid>\nSubject: [PATCH] {title}\n\n{body}---\n"
    return text.encode("utf-8", "surrogateescape")


def make_patch(
    repository: Repository, series: Series, work: Work, name: str, header: bytes, source_tree: str
) -> tuple[Patch, int]:
    """Return the patch with the least context that gives the tree again, strictly and in place.

    Args:
        repository: holds both trees.
        series: the patches before it, for the lint.
        work: the two trees.
        name: of the patch, without `.patch`.
        header: what `mail_header` gives.
        source_tree: the pristine tree.

    Raises:
        BuildError: `capture-failed`, no patch gives this tree.
        VerificationError: `patch-unsafe`.
    """
    links = links_of(repository, source_tree)
    refused = "git put a hunk in another place"
    for lines in _CONTEXTS:
        diff = repository.run(*_DIFF, f"-U{lines}", work.parent_tree, work.tree).stdout
        patch = _as_patch(series.folder / f"{name}{SUFFIX}", header + diff)
        lint_series(replace(series, patches=(*series.patches, patch)), links)
        try:
            tree, offsets = apply_to_tree(repository, patch, work.parent_tree)
        except BuildError as error:
            refused = str(error)
            continue
        if tree == work.tree and not offsets:
            return patch, lines
    raise BuildError(
        "capture-failed",
        f"no patch of {name} gives the captured tree again",
        why=refused,
        hint="split the change into smaller patches",
    )


def _as_patch(path: Path, data: bytes) -> Patch:
    return Patch(name=path.name, path=path, sha256=sha256_bytes(data), data=data)
