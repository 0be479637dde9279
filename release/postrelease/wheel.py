"""The `opencoti` wheel: built from committed files only, twice the same bytes, its content checked.

The build runs in a scratch copy of what the package consists of, so nothing that lies about in a checkout
gets in. Needs `build`, `setuptools` and `wheel` in the running environment; takes nothing from the network.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ci import process
from ci.frozen import read_record
from ci.git import split_z
from ci.repository import read_git
from opencoti.errors import BuildError, storage_error
from opencoti.files import atomic_file
from opencoti.hashing import sha256_bytes, sha256_file

_PACKAGE: Final = "opencoti"
_BESIDE: Final = ("pyproject.toml", "README.md", "LICENSE")
_MUST_HAVE: Final = ("opencoti/__init__.py", "opencoti/py.typed", "opencoti/fetch/pin.txt")
_EARLIEST_S: Final = 315532800  # a zip knows no time before 1980


@dataclass(frozen=True, kw_only=True)
class BuiltWheel:
    """A wheel whose content was checked."""

    path: Path
    sha256: str
    file_count: int
    is_repeated: bool


def build_wheel(root: Path, out: Path, *, epoch_s: int, repeat: bool = True) -> BuiltWheel:
    """Build and check the wheel.

    Args:
        root: the checkout, or a frozen source.
        out: the folder to put it in.
        epoch_s: the time that its members get (SOURCE_DATE_EPOCH).
        repeat: build it a second time in another folder, and compare.

    Raises:
        BuildError: `wheel-failed`, `wheel-not-repeatable`, `wheel-content`.
        StorageError: no room.
    """
    sources = _sources(root)
    epoch_s = max(epoch_s, _EARLIEST_S)
    with tempfile.TemporaryDirectory(prefix="opencoti-wheel-") as scratch:
        first = _build(root, sources, Path(scratch) / "one", epoch_s)
        if repeat:
            second = _build(root, sources, Path(scratch) / "two" / "deeper", epoch_s)
            _require_same(first, second)
        names = check_wheel(first, {path for path in sources if path.startswith(f"{_PACKAGE}/")})
        target = out / first.name
        with atomic_file(target) as file:
            file.write(first.read_bytes())
    return BuiltWheel(path=target, sha256=sha256_file(target), file_count=len(names), is_repeated=repeat)


def commit_time(root: Path) -> int:
    """Return when the commit of a checkout or a frozen source was made, in seconds since 1970.

    Raises:
        BuildError: `wheel-failed`.
    """
    record = None if (root / ".git").exists() else read_record(root)
    if record is not None:
        from opencoti.trust.comment import parse_time

        return int(parse_time(record.committed, "SOURCE.json").timestamp())
    done = read_git(root, "show", "--no-patch", "--format=%ct", "HEAD")
    if not done.is_ok:
        raise _failed("git does not tell the time of the commit", done.error_text)
    return int(done.text)


def check_wheel(wheel: Path, sources: set[str]) -> tuple[str, ...]:
    """Compare the content of a wheel with what it was built from; return the names in it.

    Raises:
        BuildError: `wheel-content`: a file is missing, foreign, changed, or not as RECORD says.
    """
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        info = next((name.split("/")[0] for name in names if name.endswith(".dist-info/RECORD")), "")
        ours = {name for name in names if not name.startswith(f"{info}/")}
        expected = {name for name in sources if _ships(name)}
        for name in sorted(ours ^ expected):
            raise _content(wheel, f"{name} is {'foreign' if name in ours else 'missing'}")
        for name in _MUST_HAVE:
            if name not in ours:
                raise _content(wheel, f"{name} is missing")
        if len(set(names)) != len(names):
            raise _content(wheel, "a name stands twice")
        _check_record(wheel, archive, f"{info}/RECORD")
        _check_metadata(wheel, archive.read(f"{info}/METADATA").decode("utf-8"))
    return tuple(names)


def _ships(path: str) -> bool:
    """Tell whether a file of the package is one that `pyproject.toml` lists."""
    return path.endswith((".py", "/py.typed", ".txt", ".json", ".minisig"))


def _check_record(wheel: Path, archive: zipfile.ZipFile, name: str) -> None:
    rows = csv.reader(io.StringIO(archive.read(name).decode("utf-8")))
    listed = {path: digest for path, digest, _ in rows}
    for path in archive.namelist():
        raw = hashlib.sha256(archive.read(path)).digest()
        wanted = "" if path == name else f"sha256={base64.urlsafe_b64encode(raw).rstrip(b'=').decode()}"
        if listed.get(path) != wanted:
            raise _content(wheel, f"RECORD does not say what {path} is")


def _check_metadata(wheel: Path, text: str) -> None:
    from opencoti import __version__

    for line in (f"Name: {_PACKAGE}", f"Version: {__version__}", "License-Expression: Apache-2.0"):
        if line not in text.splitlines():
            raise _content(wheel, f"METADATA lacks {line!r}")


def _sources(root: Path) -> tuple[str, ...]:
    """Return what the wheel is built from, as the commit has it."""
    record = None if (root / ".git").exists() else read_record(root)
    if record is not None:
        names = [item.path for item in record.files]
    else:
        done = read_git(root, "ls-files", "-z")
        if not done.is_ok:
            raise _failed("git does not list the files", done.error_text)
        names = split_z(done.stdout)
    return tuple(sorted(name for name in names if name in _BESIDE or name.startswith(f"{_PACKAGE}/")))


def _build(root: Path, sources: tuple[str, ...], folder: Path, epoch_s: int) -> Path:
    tree, out = folder / "tree", folder / "out"
    try:
        for name in sources:
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / name, tree / name)
            (tree / name).chmod(0o644)
    except OSError as exc:
        raise storage_error(exc, f"cannot copy the package to {tree}") from exc
    done = process.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, tree],
        env=_environment(epoch_s),
        timeout_s=600,
    )
    if not done.is_ok:
        raise _failed("the build backend failed", done.error_text or done.text)
    found = sorted(out.glob("*.whl"))
    if len(found) != 1:
        raise _failed("the build backend made no wheel", done.text)
    return found[0]


def _environment(epoch_s: int) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    return kept | {
        "SOURCE_DATE_EPOCH": str(epoch_s),
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _require_same(first: Path, second: Path) -> None:
    if first.read_bytes() == second.read_bytes():
        return
    differing = ", ".join(_differing(first, second)) or "the order or the attributes of its members"
    raise BuildError(
        "wheel-not-repeatable",
        f"two builds of {first.name} differ",
        why=differing,
        hint="look what in the build reads a clock, a path or an order of files",
    )


def _differing(first: Path, second: Path) -> Iterator[str]:
    with zipfile.ZipFile(first) as one, zipfile.ZipFile(second) as two:
        names = sorted({*one.namelist(), *two.namelist()})
        for name in names:
            digests = [
                sha256_bytes(zipped.read(name)) if name in zipped.namelist() else "" for zipped in (one, two)
            ]
            if digests[0] != digests[1]:
                yield name


def _failed(what: str, output: str) -> BuildError:
    lines = [line for line in output.splitlines() if line.strip()] or ["it said nothing"]
    return BuildError(
        "wheel-failed",
        f"cannot build the wheel: {what}",
        why=lines[-1],
        hint="run it in the dev environment (`./noxw -s dev`), which has build, setuptools and wheel",
    )


def _content(wheel: Path, why: str) -> BuildError:
    return BuildError(
        "wheel-content",
        f"{wheel.name} is not what it should be",
        why=why,
        hint="look at [tool.setuptools] in pyproject.toml, and at what git tracks",
    )
