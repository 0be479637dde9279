"""Getting the tree of a git pin: one commit, by its full id, as a tar archive for the same unpacker."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ci import process
from ci.git import Repository, fetch_environment, git_failed, split_z
from ci.locks import exclusive_lock
from ci.paths import Layout
from ci.pins import GitOrigin, SourcePin
from opencoti.console import Console
from opencoti.errors import ConfigError, NetworkError
from opencoti.hashing import sha256_bytes

_SUBMODULE: Final = "160000"


def export_commit(layout: Layout, pin: SourcePin, archive: Path, console: Console, *, offline: bool) -> None:
    """Write the pinned commit's tree to `archive`, fetched first if the cache does not have it.

    The commit id covers every byte, so what git checked needs no second hash.

    Raises:
        ConfigError: `pin-commit-missing`, the repository has no such commit; `pin-has-submodules`.
        NetworkError: `source-offline`, `source-fetch`.
    """
    assert isinstance(pin.origin, GitOrigin)
    url = pin.origin.url
    folder = layout.cache / "git" / f"{sha256_bytes(url.encode())[:16]}.git"
    repository = Repository(git_dir=folder)
    with exclusive_lock(folder.with_suffix(".lock"), f"the copy of {url}", wait=True):
        if repository.resolve(f"{pin.commit}^{{commit}}") is None if folder.is_dir() else True:
            _fetch(repository, pin, url, console, offline)
        _require_no_submodules(repository, pin)
        repository.run("archive", "--format=tar", f"--output={archive}", f"{pin.commit}^{{tree}}")


def _fetch(repository: Repository, pin: SourcePin, url: str, console: Console, offline: bool) -> None:
    if offline:
        raise NetworkError(
            "source-offline",
            f"the source of pin {pin.path.name} is not in the download cache",
            why=f"commit {pin.commit[:12]} of {url} is needed and --offline forbids to fetch it",
            hint="run `vendor` once without --offline",
        )
    console.info(f"fetching {pin.commit[:12]} of {url}")
    repository.init()
    if _run_fetch(repository, "--depth=1", "--", url, pin.commit).is_ok:
        return
    # Not every server hands out a commit that no branch ends at: then everything is fetched.
    done = _run_fetch(repository, "--", url, "+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
    if not done.is_ok:
        raise NetworkError(
            "source-fetch",
            f"cannot fetch the source of pin {pin.path.name}",
            why=git_failed(done, repository.git_dir, "fetch").why,
            hint="check the address, the network and git's settings (`git ls-remote` with the same address)",
        )
    if repository.resolve(f"{pin.commit}^{{commit}}") is None:
        raise ConfigError(
            "pin-commit-missing",
            f"{url} has no commit {pin.commit}, which pin {pin.path.name} names",
            hint="check the commit of the pin",
        )


def _run_fetch(repository: Repository, *words: str) -> process.Completed:
    """Run `git fetch` with the user's own network settings, but no hooks of theirs."""
    settings = ("-c", "core.hooksPath=/dev/null", "-c", "gc.auto=0", "-c", "fetch.fsckObjects=true")
    return process.run(
        ["git", f"--git-dir={repository.git_dir}", *settings, "fetch", "--quiet", "--no-tags", *words],
        cwd=repository.git_dir,
        env=fetch_environment(),
    )


def _require_no_submodules(repository: Repository, pin: SourcePin) -> None:
    listing = split_z(repository.run("ls-tree", "-r", "-z", "--full-tree", pin.commit).stdout)
    paths = [entry.partition("\t")[2] for entry in listing if entry.startswith(_SUBMODULE)]
    if paths:
        raise ConfigError(
            "pin-has-submodules",
            f"the tree of pin {pin.path.name} has submodules",
            why=f"{', '.join(paths[:3])} would stay empty",
            hint="pin a source that holds everything, or the submodules as pins of their own",
        )
