"""The source of the ape lane: the submodule, the submodules inside it, and the patches that upstream applies.

Upstream keeps patches of its own beside each library that it takes in (`llama.cpp.patches/`), and a script
that applies them in place, once, in a clean git checkout. All of it is exported to a scratch folder, the
scripts run there without network, and what they leave is the pristine source: one tree, one hash, which the
pin names. `vendors/sources/` stays as it is. Patches of ours are not this module's business.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final

from ci import process
from ci.engines import isolated
from ci.engines.host import isolation_mode
from ci.git import Repository
from ci.locks import exclusive_lock
from ci.paths import Layout
from ci.pins import SourcePin
from ci.sources.submodule import GitTree, require_clean, require_trees
from ci.sources.unpack import unpack_folder
from ci.sources.vendoring import (
    Place,
    VendoredSource,
    measure_tree,
    origin_text,
    read_stamp,
    vendored,
    write_stamp,
    wrong_tree,
)
from opencoti.console import Console
from opencoti.errors import BuildError, MissingError, storage_error

SCRIPT: Final = "apply-patches.sh"
_PROGRAMS: Final = ("bash", "patch", "git")
_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
# What `patch` leaves where a hunk did not fit exactly, and what `make setup` and git leave.
_LEFTOVERS: Final = ("*.orig", "*.rej")
_FUZZ: Final = " with fuzz "


def vendor_submodule(layout: Layout, place: Place, pin: SourcePin, console: Console) -> VendoredSource:
    """Return the pristine source of a submodule pin; nothing is done when it was made before.

    Raises:
        MissingError: `submodule-uninitialized`; `upstream-patch-programs`.
        VerificationError: `submodule-drift`, `submodule-nested-drift`; `source-tree`, upstream's patches
            gave another tree than the pin names.
        BuildError: `submodule-dirty`; `upstream-patches-failed`.
        StorageError: the disk refused.
    """
    trees = require_trees(layout, pin)
    require_clean(layout, pin)
    lock = place.repository.with_suffix(".lock")
    with exclusive_lock(lock, f"the source {pin.name}", wait=True):
        tree = _known_tree(place, pin) or _make(layout, place, pin, trees, console)
    return vendored(place, pin, tree, console)


def _known_tree(place: Place, pin: SourcePin) -> str | None:
    origin, tree = read_stamp(place.stamp)
    if origin != origin_text(pin) or (pin.tree is not None and tree != pin.tree):
        return None
    repository = Repository(git_dir=place.repository)
    is_there = place.repository.is_dir() and repository.resolve(f"{tree}^{{tree}}") is not None
    return tree if is_there else None


def _make(layout: Layout, place: Place, pin: SourcePin, trees: Sequence[GitTree], console: Console) -> str:
    scratch = place.repository.with_name(f".{pin.name}.export")
    try:
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        source = scratch / "source"
        _export(scratch, source, trees, pin)
        _apply_patches(layout, scratch, source, trees, console)
        tree = measure_tree(place.repository, source)
    except OSError as exc:
        raise storage_error(exc, f"cannot write {scratch}") from exc
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if pin.tree is not None and tree != pin.tree:
        raise wrong_tree(pin, tree)
    write_stamp(place.stamp, pin, tree)
    console.info(f"{pin.name} {pin.version} with upstream's own patches: tree {tree}")
    return tree


def _export(scratch: Path, source: Path, trees: Sequence[GitTree], pin: SourcePin) -> None:
    """Write every repository of the source to its place, byte for byte as git has it."""
    reader = Repository(git_dir=scratch / "reader.git")
    reader.init()
    archive = scratch / "tree.tar"
    for tree in trees:
        target = source / tree.path if tree.path else source
        if target.is_dir():
            target.rmdir()  # git's archive has an empty folder where a submodule goes
        reader.run(
            "archive",
            "--format=tar",
            f"--output={archive}",
            f"{tree.commit}^{{tree}}",
            env={"GIT_ALTERNATE_OBJECT_DIRECTORIES": str(tree.objects)},
        )
        unpack_folder(archive, "", target, origin=f"{pin.name} {tree.path}".strip(), has_top=False)
        archive.unlink()


def _apply_patches(
    layout: Layout, scratch: Path, source: Path, trees: Sequence[GitTree], console: Console
) -> None:
    scripts = {
        tree.path: script
        for tree in trees
        if tree.path and (script := source / f"{tree.path}.patches" / SCRIPT).is_file()
    }
    if not scripts:
        return
    if missing := [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]:
        raise MissingError(
            "upstream-patch-programs",
            f"upstream's patches cannot be applied: {', '.join(missing)} not found",
            hint=f"apt-get install {' '.join(missing)}",
        )
    if isolation_mode() == "":
        console.warn("this machine allows no namespaces: upstream's patch scripts could reach the network")
    log = layout.logs / "ape-upstream-patches.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "w", encoding="utf-8") as file:
        for path, script in scripts.items():
            console.info(f"applying upstream's patches to {path} (log: {log})")
            _run_script(scratch, source / path, script, log=log, file=file, console=console)
    for pattern in _LEFTOVERS:
        for leftover in source.rglob(pattern):
            leftover.unlink()


def _run_script(
    scratch: Path, folder: Path, script: Path, *, log: Path, file: IO[str], console: Console
) -> None:
    """Run one of upstream's scripts on a folder that it finds to be a clean git checkout."""
    _pretend_checkout(folder)
    lines: list[str] = []

    def take(line: str) -> None:
        file.write(f"{line}\n")
        lines.append(line)

    code = process.stream(
        [*_isolated(), "/bin/bash", str(script)], take, cwd=script.parent.parent, env=_environment(scratch)
    )
    shutil.rmtree(folder / ".git")
    if code != 0:
        raise BuildError(
            "upstream-patches-failed",
            f"upstream's patches do not apply to {folder.name}",
            why=_last_complaint(lines) or f"{SCRIPT} ended with code {code}",
            hint=f"the submodules are not those of one commit, or `patch` is not GNU patch; log: {log}",
        )
    if fuzzy := [line for line in lines if _FUZZ in line]:
        console.warn(f"{len(fuzzy)} hunks of upstream's patches to {folder.name} fitted with fuzz only")


def _pretend_checkout(folder: Path) -> None:
    """Make the folder a git repository of one commit, the same each time: the script asks for that."""
    repository = Repository(git_dir=folder / ".git", work_tree=folder)
    repository.init()
    repository.run("add", "--all", "--force", ".")
    commit = repository.commit_tree(repository.write_tree(), None, f"{folder.name}\n", 0)
    repository.run("update-ref", "HEAD", commit)


def _isolated() -> list[str]:
    """The words that start a command without network, as far as this machine allows."""
    mode = isolation_mode() or "none"
    return [sys.executable, "-I", "-S", str(isolated.__file__), mode, str(os.getpid())]


def _environment(scratch: Path) -> dict[str, str]:
    home = scratch / "home"
    home.mkdir(exist_ok=True)
    return {
        "PATH": _PATH,
        "HOME": str(home),
        "TMPDIR": str(home),
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
    }


def _last_complaint(lines: Sequence[str]) -> str:
    """Return the line that says most: the first refused hunk or error, else the last that was printed."""
    marks = ("FAILED", "error:", "dirty", "can't find file", "No such file")
    found = next((line for line in lines if any(mark in line for mark in marks)), "")
    return (found or (lines[-1] if lines else "")).strip()[:300]
