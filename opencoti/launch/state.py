"""What is written down about each launch, so that another process can find, judge and stop it.

One folder per launch below `engines/`: `state.json` (`opencoti.engine/1`), `engine.log` and `lock`. The lock
is held as long as the engine's keeper lives; the kernel drops it with the last holder. A process is only ever
signalled after its number, start time and boot were compared (case B47).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from opencoti import paths, procfs
from opencoti.errors import BusyError, ConfigError, storage_error
from opencoti.files import is_at
from opencoti.jsonio import parse_strict, render_json
from opencoti.procfs import Identity

SCHEMA: Final = "opencoti.engine/1"
STATE_NAME: Final = "state.json"
LOG_NAME: Final = "engine.log"
LOCK_NAME: Final = "lock"
_MAX_STATE_BYTES: Final = 256 << 10
_SWEEP_S: Final = 2.0  # how long a sweep, or another short look at a folder, may hold its lock
_HELD_S: Final = 0.2
_POLL_S: Final = 0.01
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

Phase = Literal["loading", "ready"]
Condition = Literal["loading", "ready", "stale"]


@dataclass(frozen=True, kw_only=True)
class State:
    """One launch.

    `keeper` and `engine` are processes, `mark` stands in the environment of all that belong to it.
    `is_transient`: it ends with its launcher, and its folder with it; False once it was let go.
    `fingerprint`: of a shared engine, what it was started with; empty for others.
    """

    name: str
    phase: Phase
    is_transient: bool
    mark: str
    keeper: Identity
    engine: Identity
    started: str
    artifact: str
    model: str
    alias: str
    host: str
    port: int
    is_isolated: bool
    libraries: tuple[str, ...] = ()
    fingerprint: str = ""

    @property
    def url(self) -> str:
        """Base address of the engine, without a path."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def condition(self) -> Condition:
        """Compare with the live processes: stale when the engine is gone, whoever has its number now."""
        return self.phase if procfs.is_same_process(self.engine) else "stale"

    def as_dict(self) -> dict[str, Any]:
        """Return it as data, without the mark."""
        data = asdict(self)
        del data["mark"]
        return {**data, "url": self.url, "condition": self.condition()}


def engines_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder of all launches: in `OPENCOTI_CACHE_DIR` if set, else in the place for state.

    Raises:
        ConfigError: `no-cache-folder`, no home folder is known.
    """
    if (os.environ if environ is None else environ).get(paths.CACHE_VARIABLE):
        return paths.cache_folder(environ) / "engines"
    import platformdirs

    try:
        return platformdirs.user_state_path("opencoti", appauthor=False).expanduser() / "engines"
    except RuntimeError as exc:
        raise ConfigError(
            "no-cache-folder",
            "cannot tell where to write down what runs",
            why=str(exc),
            hint=f"set HOME, or {paths.CACHE_VARIABLE} to a folder",
        ) from exc


@dataclass(frozen=True, kw_only=True)
class Place:
    """The folder of one launch, and the lock on it (-1 where this file system has none)."""

    folder: Path
    lock: int

    @property
    def log(self) -> Path:
        """The engine's log."""
        return self.folder / LOG_NAME

    @property
    def is_ours(self) -> bool:
        """Whether the lock that lies there is the one that is held; taken for granted without locks."""
        return self.lock < 0 or is_at(self.lock, self.folder / LOCK_NAME)

    def release(self) -> None:
        """Close the lock; a keeper that has it too keeps it."""
        if self.lock >= 0:
            os.close(self.lock)

    def remove(self) -> None:
        """Remove the folder and what is in it; the lock last, since without it another launch may begin.

        Where another launch has begun already, after this one was ended from outside, all is left to it.
        """
        if not self.is_ours:
            return
        with suppress(OSError):
            _clear(self.folder)
            (self.folder / LOCK_NAME).unlink(missing_ok=True)
            self.folder.rmdir()


def claim(folder: Path, *, ending_s: float = 0.0) -> Place:
    """Make the folder of a launch and take its lock; what a dead launch left in it is removed.

    Args:
        folder: of the launch; its name is the name that may be taken.
        ending_s: how long to wait for an engine that ends with its launcher, and so may be ending now.

    Raises:
        BusyError: `engine-name-taken`, an engine of this name runs or is being started.
        StorageError: the folder cannot be written.
    """
    end = time.monotonic() + max(ending_s, _SWEEP_S)
    while True:
        place = _try_claim(folder)
        if place is not None:
            return place
        if time.monotonic() >= end or _stays(read_state(folder), may_end=ending_s > 0):
            raise _taken(folder)
        time.sleep(_POLL_S)


def _try_claim(folder: Path) -> Place | None:
    """Take the lock at once, and clear the folder of what is dead; None while anything of it lives."""
    import fcntl

    lock = _open_lock(folder)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    except OSError:
        # Some network file systems have no locks: identities in the state file have to do.
        os.close(lock)
        lock = -1
    place = Place(folder=folder, lock=lock)
    if place.is_ours and not _is_alive(folder):
        _clear(folder)
        if place.is_ours:  # nobody removed the folder between two of these steps
            return place
    place.release()
    return None


def _is_alive(folder: Path) -> bool:
    known = read_state(folder)
    return known is not None and known.condition() != "stale"


def _stays(known: State | None, *, may_end: bool) -> bool:
    """Tell whether there is no use in waiting for a name: engine and keeper live, and are to go on."""
    if known is None or (may_end and known.is_transient):
        return False
    return known.condition() != "stale" and procfs.is_same_process(known.keeper)


def _open_lock(folder: Path, tries: int = 20) -> int:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.mkdir(mode=0o700, exist_ok=True)
        return os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as exc:
        if isinstance(exc, FileNotFoundError | FileExistsError) and tries:
            # Somebody removed it between two of these steps.
            return _open_lock(folder, tries - 1)
        raise storage_error(exc, f"cannot write {folder}") from exc


def _clear(folder: Path) -> None:
    import shutil

    try:
        paths = list(folder.iterdir())
    except OSError:
        return
    for path in paths:
        if path.name == LOCK_NAME:
            continue
        with suppress(OSError):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()


def _taken(folder: Path) -> BusyError:
    known = read_state(folder)
    where = f"it listens on {known.url}" if known and known.port else "it is being started"
    return BusyError(
        "engine-name-taken",
        f"an engine named {folder.name!r} is there already",
        why=where,
        hint=f"use it, `python -m opencoti.launch stop {folder.name}`, or choose another --name",
    )


def write_state(folder: Path, state: State) -> None:
    """Write `state.json`, whole or not at all. Raises `StorageError`.

    It is not synced: after a crash of the machine nothing that it describes is alive.
    """
    temporary = folder / f".{STATE_NAME}.tmp"
    try:
        with open(temporary, "wb", opener=_private) as file:
            file.write(render_json({"schema": SCHEMA, **asdict(state)}))
        os.replace(temporary, folder / STATE_NAME)
    except OSError as exc:
        raise storage_error(exc, f"cannot write {folder / STATE_NAME}") from exc


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def read_state(folder: Path) -> State | None:
    """Read what is known about a launch; None where nothing usable is."""
    try:
        with open(folder / STATE_NAME, "rb") as file:
            document = parse_strict(file.read(_MAX_STATE_BYTES + 1), STATE_NAME, max_bytes=_MAX_STATE_BYTES)
        return _parse(document)
    except (OSError, ConfigError, KeyError, TypeError, ValueError):
        # A damaged file describes no process that could safely be signalled.
        return None


def _parse(document: Any) -> State:
    if document.pop("schema") != SCHEMA:
        raise ValueError("another schema")
    state = State(
        **{
            **document,
            "keeper": Identity(**document["keeper"]),
            "engine": Identity(**document["engine"]),
            "libraries": tuple(document["libraries"]),
        }
    )
    if not all(type(item.pid) is int and item.pid > 1 for item in (state.keeper, state.engine)):
        raise ValueError("no process numbers")
    return replace(state, port=int(state.port))


def known_states(folder: Path) -> Iterator[State]:
    """Return every launch that is written down, dead ones included."""
    for path in sorted(folder.glob(f"*/{STATE_NAME}")):
        state = read_state(path.parent)
        if state is not None and state.name == path.parent.name and _NAME.fullmatch(state.name):
            yield state


def _has_locked(handle: int) -> bool:
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@contextmanager
def _try_lock(folder: Path) -> Iterator[bool]:
    try:
        handle = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        yield False
        return
    try:
        yield _has_locked(handle) and is_at(handle, folder / LOCK_NAME)
    finally:
        os.close(handle)


def remove_ended(folder: Path, mark: str) -> None:
    """Remove the folder of a launch that was ended, unless another one has its name by now.

    A lock that is held while the notes stay is that of its launcher: another one clears them at once, and
    looks afterwards whether the folder is still its own.
    """
    end = time.monotonic() + _HELD_S
    while _has_mark(folder, mark):
        with _try_lock(folder) as is_ours:
            if (is_ours or time.monotonic() >= end) and _has_mark(folder, mark):
                Place(folder=folder, lock=-1).remove()
                return
        time.sleep(_POLL_S)


def _has_mark(folder: Path, mark: str) -> bool:
    known = read_state(folder)
    return known is not None and known.mark == mark


def sweep(folder: Path) -> list[str]:
    """Remove the folders of launches that were killed hard; return their names.

    An engine that was started to stay keeps its notes until it is stopped, so that `status` can tell.
    """
    removed = []
    for lock in sorted(folder.glob(f"*/{LOCK_NAME}")):
        with _try_lock(lock.parent) as is_ours:
            state = read_state(lock.parent)
            is_dead = state is None or (state.is_transient and state.condition() == "stale")
            if is_ours and is_dead:
                Place(folder=lock.parent, lock=-1).remove()
                removed.append(lock.parent.name)
    for path in sorted(folder.glob("*/")):
        # Killed between making the folder and its lock, or removing them; who is just doing it tries again.
        with suppress(OSError):
            path.rmdir()
            removed.append(path.name)
    return removed
