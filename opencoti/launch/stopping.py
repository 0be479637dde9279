"""Ending an engine that another process started, after proving that it is still that engine (case B47)."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from opencoti import procfs
from opencoti.errors import BusyError, StorageError
from opencoti.launch.child import kill_members, reap_detached
from opencoti.launch.state import State, remove_ended
from opencoti.procfs import Identity

_POLL_S: Final = 0.02
_DEATH_S: Final = 5.0


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """What was done: `stopped`, or `stale` where the engine was gone already and nothing was signalled."""

    name: str
    outcome: Literal["stopped", "stale"]
    seconds: float


def stop_engine(folder: Path, state: State, *, grace_s: float) -> Stopped:
    """End an engine and everything that belongs to it, and remove its folder.

    A stale launch is cleared away; the process that may have its number now is left alone.

    Raises:
        StorageError: `engine-not-yours`, the system refuses to signal it.
        BusyError: `engine-does-not-end`, something of it survives SIGKILL.
    """
    started = time.monotonic()
    is_stale = state.condition() == "stale"
    # The keeper ends the engine's whole group and reaps it. Without a keeper that is up to us.
    if not is_stale and not _signal(state.keeper, signal.SIGTERM):
        _signal(state.engine, signal.SIGTERM)
    _wait_gone((state.engine, state.keeper), grace_s)
    for process in (state.engine, state.keeper):
        _signal(process, signal.SIGKILL)
    # Of a stale launch only what carries its mark: its session's number may be somebody else's by now.
    session = -1 if is_stale else state.engine.pid
    if left := kill_members(session, state.mark):
        raise BusyError(
            "engine-does-not-end",
            f"the engine {state.name} does not end",
            why=f"still there after SIGKILL: {', '.join(map(str, left))}",
        )
    _wait_gone((state.engine, state.keeper), _DEATH_S)  # with it goes its lock
    remove_ended(folder / state.name, state.mark)
    reap_detached()
    return Stopped(
        name=state.name, outcome="stale" if is_stale else "stopped", seconds=time.monotonic() - started
    )


def _signal(process: Identity, number: int) -> bool:
    """Signal a process if it still is the one that is meant; nobody can take its number in between."""
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        if not procfs.is_same_process(process):
            return False
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, number)
        return True
    except PermissionError as exc:
        raise StorageError(
            "engine-not-yours",
            f"process {process.pid} may not be stopped by this user",
            hint="stop it as the user who started it",
        ) from exc
    finally:
        os.close(handle)


def _wait_gone(processes: tuple[Identity, ...], timeout_s: float) -> None:
    end = time.monotonic() + timeout_s
    while any(procfs.is_same_process(item) for item in processes) and time.monotonic() < end:
        time.sleep(_POLL_S)
