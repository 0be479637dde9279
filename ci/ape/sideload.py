"""The side-load mirror: GPU libraries copied to `~/.llamafile/v/<version>/`, where an engine looks.

Only on request. A developer's engine without embedded libraries finds them there. That place, or the home
folder itself, is also where a stale library is found instead of the one that was just built, so it is said
what was put where, and what else of that name there is.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from opencoti.console import Console
from opencoti.errors import MissingError, StorageError, UsageError, storage_error
from opencoti.files import atomic_file, require_safe_name
from opencoti.hashing import sha256_file

_FOLDER: Final = ".llamafile"


def side_load(
    libraries: Sequence[Path], version: str, console: Console, *, environ: Mapping[str, str]
) -> tuple[Path, ...]:
    """Copy libraries to the folder of an engine's version; each appears whole or not at all.

    Args:
        libraries: the files, under the names that the engine looks for.
        version: of the engine (`0.10.1`).
        console: told of each copy, and warned of another library of that name in the home folder.
        environ: HOME is read from it.

    Raises:
        MissingError: `side-load-home`, no home folder is known; `side-load-empty`, there is nothing to copy.
        StorageError: `side-load-link`, the folder is a link; the folder or the disk refused.
    """
    if not libraries:
        raise MissingError("side-load-empty", "--side-load: there is no GPU library to copy")
    folder = side_load_folder(version, environ)
    _make(folder)
    return tuple(_copy(path, folder, console, home=Path(environ["HOME"])) for path in libraries)


def side_load_folder(version: str, environ: Mapping[str, str]) -> Path:
    """Return where an engine of a version looks. Raises `MissingError` (`side-load-home`)."""
    home = environ.get("HOME", "")
    if not Path(home).is_absolute():
        raise MissingError(
            "side-load-home",
            "--side-load: it is not known where the home folder is",
            why=f"HOME is {home!r}",
            hint="set HOME to an absolute path; without it the engine looks in its working folder",
        )
    return Path(home) / _FOLDER / "v" / require_safe_name(version, "the pin")


def refuse_for_elf() -> UsageError:
    """Make the error for `--side-load` in the other lane."""
    return UsageError(
        "side-load-elf",
        "--side-load is for lane ape",
        why="an engine of lane elf loads only what its own index lists, from a folder named after it: "
        "elsewhere it never looks",
        hint="use --lane ape, or package the library",
    )


def _make(folder: Path) -> None:
    base = folder.parent.parent
    for path in (base, folder.parent, folder):
        if path.is_symlink():
            raise StorageError(
                "side-load-link",
                f"--side-load: {path} is a symbolic link",
                why="what the engine loads would lie where somebody else may write",
                hint="replace it by a folder",
            )
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o755)
    except OSError as exc:
        raise storage_error(exc, f"cannot make {folder}") from exc


def _copy(source: Path, folder: Path, console: Console, *, home: Path) -> Path:
    target = folder / source.name
    sha256 = sha256_file(source)
    try:
        with open(source, "rb") as reader, atomic_file(target, mode=0o755) as writer:
            shutil.copyfileobj(reader, writer, 1 << 20)
    except OSError as exc:
        raise storage_error(exc, f"cannot copy {source} to {target}") from exc
    console.info(f"side-loaded {target} (SHA-256 {sha256[:12]}, inode {target.stat().st_ino})")
    other = home / source.name
    if other.is_file() and sha256_file(other) != sha256:
        console.warn(
            f"{other} is another library of that name, and an engine may load it instead of the one just "
            "copied: remove it"
        )
    return target
