"""Finding the source that a series is to be tried on, and a place to try it in.

The place is a repository of its own that borrows the objects of others and is gone afterwards: no working
tree, no reference and no index of anybody is touched.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ci.git import Repository, split_z
from ci.patches.lint import SUBMODULE_MODE
from ci.paths import Layout
from ci.pins import SourcePin
from ci.sources.vendoring import origin_text, vendor
from opencoti.console import Console
from opencoti.errors import ConfigError, UsageError, storage_error

_WORDS_OF_A_LINE: Final = 3
_NO_TAG: Final = "0"


@dataclass(frozen=True, kw_only=True)
class Upstream:
    """A source as git objects: its tree, the folder that the objects are in, and what to call it."""

    name: str
    tree: str
    objects: Path


def find_upstream(
    layout: Layout, onto: str, console: Console, *, like: SourcePin, clone: Path | None = None
) -> Upstream:
    """Return the source that `onto` names; it is fetched if it must be.

    Args:
        layout: what is fetched goes to `build/rebase/`; the vendored source stays as it is.
        onto: a pin file, the line of one (`URL COMMIT [TAG]`), or a commit, tag or tree of `clone`.
        console: gets progress.
        like: the pin of today, whose name the source keeps.
        clone: a git repository of this machine, with or without a working tree.

    Raises:
        UsageError: `rebase-onto`, it is none of these.
        ConfigError: `pin-malformed`, `pin-has-submodules`; and what `vendor` raises.
    """
    if clone is not None:
        return _from_clone(clone, onto)
    path = Path(onto)
    if path.is_file():
        return _fetched(layout, SourcePin.load(path), console, like)
    words = onto.split()
    if len(words) >= _WORDS_OF_A_LINE - 1:
        line = onto if len(words) >= _WORDS_OF_A_LINE else f"{onto} {_NO_TAG}"
        return _fetched(layout, SourcePin.from_line(line, like.path), console, like)
    raise UsageError(
        "rebase-onto",
        f"--onto {onto[:80]!r} names no source",
        why="it is no pin file, and one word alone is looked up in a repository",
        hint='give a pin file, "URL COMMIT", or a commit or tag together with --from CLONE',
    )


def _fetched(layout: Layout, pin: SourcePin, console: Console, like: SourcePin) -> Upstream:
    """Vendor another pin beside the one of today, in folders of its own."""
    beside = Layout(root=layout.build / "rebase", cache=layout.cache)
    named = SourcePin(
        name=like.name, origin=pin.origin, commit=pin.commit, tag=pin.tag, tree=pin.tree, path=pin.path
    )
    source = vendor(beside, named, console)
    name = pin.version if pin.tag != _NO_TAG else pin.commit[:12]
    return Upstream(name=f"{name} ({origin_text(pin)})", tree=source.tree, objects=source.objects)


def _from_clone(clone: Path, revision: str) -> Upstream:
    git_dir = clone / ".git" if (clone / ".git").exists() else clone
    repository = Repository(git_dir=git_dir.absolute(), work_tree=clone.absolute())
    tree = repository.resolve(f"{revision}^{{tree}}") if clone.is_dir() else None
    if tree is None:
        raise UsageError(
            "rebase-onto",
            f"--onto {revision[:80]!r} is no commit, tag or tree of {clone}",
            why="git finds no such object there",
            hint="fetch it there first, or check the name with `git log`",
        )
    _require_no_submodules(repository, tree, revision)
    objects = Path(repository.run("rev-parse", "--git-path", "objects").text)
    return Upstream(name=f"{revision} of {clone.name}", tree=tree, objects=clone.absolute() / objects)


def _require_no_submodules(repository: Repository, tree: str, revision: str) -> None:
    listing = split_z(repository.run("ls-tree", "-r", "-z", "--full-tree", tree).stdout)
    paths = [entry.partition("\t")[2] for entry in listing if entry.startswith(SUBMODULE_MODE)]
    if paths:
        raise ConfigError(
            "pin-has-submodules",
            f"{revision} has submodules",
            why=f"{', '.join(paths[:3])} would stay empty",
            hint="pin a source that holds everything, or the submodules as pins of their own",
        )


@contextmanager
def borrowing(layout: Layout, objects: Sequence[Path]) -> Iterator[Repository]:
    """Yield an empty repository that has the objects of others at hand; it is removed at the end."""
    try:
        layout.build.mkdir(parents=True, exist_ok=True)
        holder = tempfile.TemporaryDirectory(prefix=".trial-", dir=layout.build)
    except OSError as exc:
        raise storage_error(exc, f"cannot make a folder in {layout.build}") from exc
    with holder as folder:
        repository = Repository(git_dir=Path(folder) / "trial.git")
        repository.init()
        lines = "".join(f"{place}\n" for place in dict.fromkeys(objects))
        alternates = repository.git_dir / "objects" / "info" / "alternates"
        alternates.parent.mkdir(parents=True, exist_ok=True)
        alternates.write_text(lines, encoding="utf-8")
        yield repository
