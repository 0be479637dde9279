"""Volumes of a daemon that stand for folders of this machine: their labels, and when they go.

A kept volume lives as long as the local folder that names it in its state file: empty or remove that folder
and the next start removes the volume. A volume for one run belongs to a process, like a container. Volumes of
machines that never come back (hosted CI) go after a month.
"""

from __future__ import annotations

import json
import socket
import uuid
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from ci.engines.client import EngineClient, translated
from ci.engines.owner import is_orphan, owner_labels
from ci.locks import exclusive_lock
from ci.stages.model import digest
from opencoti.console import Console
from opencoti.errors import storage_error
from opencoti.files import write_atomic

VOLUME: Final = "org.opencoti.volume"
CLIENT: Final = "org.opencoti.client"
STATE: Final = "org.opencoti.state"
_KEEP_DAYS: Final = 30
_CLIENT_FILE: Final = "client-id"
_IN_USE: Final = 409


def client_id(cache: Path) -> str:
    """Return what identifies this user's build cache on this machine; made at the first call.

    Raises:
        StorageError: the cache cannot be written.
    """
    path = cache / _CLIENT_FILE
    text = _read_id(path)
    if not text:
        with exclusive_lock(cache / "locks" / f"{_CLIENT_FILE}.lock", f"the file {path}", wait=True):
            text = _read_id(path)  # another command may have been quicker
            if not text:
                text = uuid.uuid4().hex
                write_atomic(path, f"{text}\n".encode())
    return digest([text, socket.gethostname()])[:16]


def _read_id(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip() if path.is_file() else ""
    except UnicodeDecodeError:
        return ""
    except OSError as exc:
        raise storage_error(exc, f"cannot read {path}") from exc


def new_name(purpose: str) -> str:
    """Return a name for a new volume."""
    return f"opencoti-{purpose}-{uuid.uuid4().hex[:12]}"


def make_volume(client: EngineClient, name: str, *, owner: str, state: Path | None) -> None:
    """Make a volume that the state file `state` names, or with None one for this run only."""
    labels = {VOLUME: "kept" if state else "run", CLIENT: owner}
    labels |= {STATE: str(state)} if state else owner_labels(name)
    with translated(client.daemon, "make a volume"):
        client.api.create_volume(name, labels=labels)


def has_volume(client: EngineClient, name: str) -> bool:
    """Tell whether the daemon has a volume."""
    import docker

    with translated(client.daemon, "look at a volume"):
        try:
            client.api.inspect_volume(name)
        except docker.errors.NotFound:
            return False
    return True


def remove_volume(client: EngineClient, name: str) -> bool:
    """Remove a volume; False when something uses it."""
    import docker

    with translated(client.daemon, "remove a volume"):
        try:
            client.api.remove_volume(name)
        except docker.errors.NotFound:
            return True
        except docker.errors.APIError as exc:
            if exc.status_code == _IN_USE:
                return False
            raise
    return True


def sweep_volumes(
    client: EngineClient, console: Console, *, owner: str, now: datetime | None = None
) -> list[str]:
    """Remove volumes that nothing stands for any more; return their names."""
    with translated(client.daemon, "list volumes"):
        found = client.api.volumes(filters={"label": VOLUME}).get("Volumes") or []
    oldest = (now or datetime.now(UTC)) - timedelta(days=_KEEP_DAYS)
    stale = [str(entry["Name"]) for entry in found if is_stale(entry, owner=owner, oldest=oldest)]
    removed = [name for name in stale if remove_volume(client, name)]
    if removed:
        console.info(f"removed {len(removed)} volumes of build folders that are gone")
    return removed


def is_stale(entry: Mapping[str, Any], *, owner: str, oldest: datetime) -> bool:
    """Tell whether a volume, as the daemon describes it, is of no use to anyone."""
    labels: Mapping[str, str] = entry.get("Labels") or {}
    if labels.get(VOLUME) == "run":
        is_mine_and_gone = is_orphan(labels)
    else:
        is_mine_and_gone = labels.get(CLIENT) == owner and not _is_named(entry, labels)
    return is_mine_and_gone or (labels.get(CLIENT) != owner and _created(entry) < oldest)


def named_volumes(state: Path) -> tuple[str, ...]:
    """Return the volumes that a state file names, none if it cannot be read."""
    try:
        data = json.loads(state.read_bytes())
        return tuple(str(name) for name in data["volumes"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ()


def _is_named(entry: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    return str(entry.get("Name")) in named_volumes(Path(labels.get(STATE, "/nonexistent")))


def _created(entry: Mapping[str, Any]) -> datetime:
    with suppress(ValueError):
        made = datetime.fromisoformat(str(entry.get("CreatedAt") or ""))
        return made if made.tzinfo else made.replace(tzinfo=UTC)
    return datetime.now(UTC)
