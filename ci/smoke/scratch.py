"""The private folder of one run: an empty HOME, a working folder with a trap in it, a clean environment."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from opencoti.errors import StorageError, VerificationError, storage_error
from opencoti.files import is_at

MARK_VARIABLE: Final = "OPENCOTI_SMOKE_RUN"
_PREFIX: Final = "opencoti-smoke-"
_LOCK_NAME: Final = ".lock"
PLANTED_NAME: Final = "libggml-cpu-evil.so"
# Everything else is left out: LLAMA_ARG_*, GGML_*, LD_*, proxies and the like would change what is tested.
_KEPT_VARIABLES: Final = ("PATH", "USER", "LOGNAME")


@dataclass(frozen=True, kw_only=True)
class Scratch:
    """The folders of one run. `mark` is unguessable and stands in the environment of every process of it."""

    root: Path
    mark: str

    @property
    def home(self) -> Path:
        """HOME of the engine."""
        return self.root / "home"

    @property
    def work(self) -> Path:
        """Working folder of the engine; the planted library lies in it."""
        return self.root / "work"

    @property
    def planted(self) -> Path:
        """The library that must never be loaded."""
        return self.work / PLANTED_NAME

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the engine: the few variables it may inherit, and ours."""
        kept = {name: environ[name] for name in _KEPT_VARIABLES if name in environ}
        return (
            {"PATH": os.defpath, "LANG": "C.UTF-8"}
            | kept
            | {
                "HOME": str(self.home),
                "TMPDIR": str(self.root / "tmp"),
                "GGML_BACKEND_PATH": str(self.planted),
                MARK_VARIABLE: self.mark,
            }
        )


@contextmanager
def scratch_folder(fallback: Path, *, keep: bool = False) -> Iterator[Scratch]:
    """Make the folders of a run and remove them at the end, whatever happened.

    Args:
        fallback: where they go when the temporary folder cannot hold programs (mounted noexec).
        keep: leave them there.

    Raises:
        StorageError: they cannot be made.
        VerificationError: `smoke-scratch-left`, something in them cannot be removed.
    """
    base = _choose_base(fallback)
    _sweep(base)
    root = _make_root(base)
    while (lock := _hold(root / _LOCK_NAME)) is None:
        root = _make_root(base)
    scratch = Scratch(root=root, mark=secrets.token_hex(16))
    try:
        for folder in (scratch.home, scratch.work, scratch.root / "tmp"):
            folder.mkdir(mode=0o700)
        yield scratch
    finally:
        if keep:
            (scratch.root / _LOCK_NAME).unlink()
        else:
            _remove(scratch.root)
        os.close(lock)
    if not keep and scratch.root.exists():
        raise VerificationError(
            "smoke-scratch-left",
            f"the scratch folder {scratch.root} could not be removed",
            why=f"left in it: {', '.join(sorted(os.listdir(scratch.root))[:5])}",
            hint="remove it by hand",
        )


def plant(scratch: Scratch) -> None:
    """Put a library where a careless engine would load it: a copy of one of its own, under another name."""
    pattern = "libggml-cpu-*.so"
    sample = next(iter(sorted(scratch.home.rglob(pattern)) or sorted(scratch.home.rglob("*.so"))), None)
    if sample is not None:
        shutil.copyfile(sample, scratch.planted)
    else:
        scratch.planted.write_bytes(b"\x7fELF")
    scratch.planted.chmod(0o755)


def is_noexec(path: Path) -> bool:
    """Tell whether programs on the file system of `path` cannot be run."""
    return bool(os.statvfs(path).f_flag & os.ST_NOEXEC)


def _choose_base(fallback: Path) -> Path:
    base = Path(tempfile.gettempdir())
    try:
        if not is_noexec(base):
            return base
        fallback.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise _cannot_make(exc, base) from exc
    return fallback


def _make_root(base: Path) -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base)).resolve()
    except OSError as exc:
        raise _cannot_make(exc, base) from exc


def _hold(path: Path) -> int | None:
    """Take the lock that says "in use"; the kernel drops it when this process dies.

    None: a sweep met the folder before it was locked, and removed it.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(handle, fcntl.LOCK_EX)
    if is_at(handle, path):
        return handle
    os.close(handle)
    return None


def _sweep(base: Path) -> None:
    """Remove what runs that were killed hard left behind: folders of this user whose lock nobody holds."""
    for lock in base.glob(f"{_PREFIX}*/{_LOCK_NAME}"):
        with suppress(OSError):
            if lock.parent.stat().st_uid != os.geteuid():
                continue
            handle = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(lock.parent)
            finally:
                os.close(handle)


def _cannot_make(exc: OSError, base: Path) -> StorageError:
    return storage_error(exc, f"cannot make a scratch folder in {base}")


def _remove(root: Path) -> None:
    """Remove a tree, read-only folders in it included; what is left is reported by the caller."""
    for folder, _, _ in os.walk(root):
        with suppress(OSError):
            os.chmod(folder, stat.S_IRWXU)
    shutil.rmtree(root, ignore_errors=True)
