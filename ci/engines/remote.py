"""The folders of a stage on a daemon that cannot see this machine: volumes there, tar streams in between.

The source tree goes in, only what changed since last time. Build folder and tool cache stay on the daemon's
side between steps and between runs, so that builds are incremental there too. Declared outputs and what the
checks between steps read come back, each file compared with the hash that a container made of it.

A file gets the time of the daemon's clock at which it was sent first: the two clocks may differ, and a build
tool compares the times of sources with those of its own products.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from ci.engines.client import EngineClient, translated
from ci.engines.compiler_cache import STATS_FILE
from ci.engines.container import (
    CACHE,
    OUT,
    SRC,
    ContainerRequest,
    Mount,
    UserMapping,
    create_arguments,
    new_run_id,
    remove_container,
)
from ci.engines.outputs import OutputReader, run_inside
from ci.engines.signals import SignalGate
from ci.engines.steps import TOOL_FOLDERS
from ci.engines.transfer import SourceFile, list_source, send_stream
from ci.engines.volumes import has_volume, make_volume, new_name, remove_volume
from ci.engines.workplace import REMOTE_STATE, StageFolders
from ci.stages.model import Stage
from opencoti.console import Console
from opencoti.errors import storage_error
from opencoti.files import write_atomic

_NAMES_PER_CALL: Final = 500
_SPACE_FILE: Final = ".opencoti-space"
_SPACE_BYTES: Final = 1 << 20


@dataclass(frozen=True, kw_only=True)
class RemotePlan:
    """One run of a stage on such a daemon.

    Args:
        template: what every container of the stage has in common: image, user, platform, environment.
        folders: the local ones.
        owner: `ci.engines.volumes.client_id`.
        is_cache_kept: False removes the tool cache at the end (builds from scratch).
    """

    template: ContainerRequest
    folders: StageFolders
    owner: str
    is_cache_kept: bool


@dataclass(kw_only=True)
class _State:
    """What a local folder remembers of the volumes that stand for it."""

    daemon: str
    volumes: dict[str, str]
    # Path to [size, mtime_ns, mode, time that the copy has].
    files: dict[str, tuple[int, int, int, float]] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        data = {"daemon": self.daemon, "volumes": self.volumes, "files": self.files}
        write_atomic(path, json.dumps(data).encode() + b"\n")


class RemoteFolders:
    """See `ci.engines.workplace.Workplace`. Made by `remote_folders`, which also ends it."""

    def __init__(self, client: EngineClient, plan: RemotePlan, console: Console) -> None:
        self._client = client
        self._plan = plan
        self._console = console
        self._daemon = str(client.info().get("ID") or client.info().get("Name") or "?")
        self._holder = replace(
            plan.template,
            run_id=new_run_id(),
            argv=("/bin/sh",),
            working_dir="/",
            is_root_read_only=False,
        )
        self._volumes: dict[str, str] = {}
        self._reader: OutputReader | None = None

    @property
    def mounts(self) -> tuple[Mount, ...]:
        """See `Workplace.mounts`."""
        return self._mounts(is_source_read_only=True)

    @property
    def user(self) -> UserMapping:
        """See `Workplace.user`: plain numbers; what comes back is written by us anyway."""
        return self._plan.template.user

    def open(self) -> None:
        """Make or find the volumes, and send what is not there yet.

        Raises:
            MissingError: the daemon went away or refused.
            StorageError: one of the two disks is full.
        """
        plan = self._plan
        build = self._open_build()
        cache = self._open_cache()
        self._volumes = {**build.volumes, "cache": cache}
        # It keeps the volumes from being removed, and is the door through which files come and go.
        self._holder = replace(self._holder, mounts=self._mounts(is_source_read_only=False))
        with translated(self._client.daemon, "make a container"):
            self._client.api.create_container(**create_arguments(self._holder, self._client))
        self._send(build)
        template = replace(plan.template, mounts=self.mounts)
        self._reader = OutputReader(
            self._client,
            template,
            holder=self._holder.container_name,
            out=plan.folders.out,
            console=self._console,
        )

    def explain_failure(self) -> None:
        """See `Workplace.explain_failure`: a full disk over there shows when we write to it ourselves."""
        data = send_stream(
            self._plan.folders.out,
            {},
            below=OUT[1:],
            folders=(),
            empty=(f"{OUT[1:]}/{_SPACE_FILE}",),
            fill_bytes=_SPACE_BYTES,
            uid=0,
            gid=0,
        )
        with translated(self._client.daemon, "write to its own disk"):
            self._client.stream.put_archive(self._holder.container_name, "/", data)

    def after_step(self) -> None:
        """See `Workplace.after_step`."""
        assert self._reader is not None
        self._reader.fetch_checked()

    def finish(self, stage: Stage) -> None:
        """See `Workplace.finish`. Raises `VerificationError`: a file came back with other bytes."""
        assert self._reader is not None
        self._reader.fetch_outputs(stage)

    def close(self) -> None:
        """Remove the container, and the tool cache of a build from scratch."""
        remove_container(self._client, self._holder.container_name, self._console)
        if not self._plan.is_cache_kept and "cache" in self._volumes:
            remove_volume(self._client, self._volumes["cache"])

    def _open_build(self) -> _State:
        """Find the volumes of build folder and source, or make new ones beside an emptied local folder."""
        path = self._plan.folders.out / REMOTE_STATE
        state = _load(path)
        if state and state.daemon == self._daemon and all(map(self._has, state.volumes.values())):
            return state
        empty_folder(self._plan.folders.out)
        state = _State(daemon=self._daemon, volumes={"out": new_name("out"), "source": new_name("src")})
        self._make(state, path)
        return state

    def _open_cache(self) -> str:
        if not self._plan.is_cache_kept:
            name = new_name("cache")
            make_volume(self._client, name, owner=self._plan.owner, state=None)
            return name
        path = self._plan.folders.tool_cache / REMOTE_STATE
        state = _load(path)
        if not state or state.daemon != self._daemon or not self._has(state.volumes.get("cache", "")):
            state = _State(daemon=self._daemon, volumes={"cache": new_name("cache")})
            self._make(state, path)
        return state.volumes["cache"]

    def _send(self, build: _State) -> None:
        plan = self._plan
        found = list_source(plan.folders.source)
        self._remove_from_source(sorted(set(build.files) - set(found)))
        now = self._now()
        times = {name: _time_of(build, name, file, now) for name, file in found.items()}
        changed = {name: time for name, time in times.items() if time == now}
        uid, gid = (int(number) for number in plan.template.user.user.split(":"))
        folders = ("src", "out", "cache", *(f"cache/{name}" for name in TOOL_FOLDERS))
        stream = send_stream(
            plan.folders.source,
            changed,
            below=SRC[1:],
            folders=folders,
            empty=(f"{OUT[1:]}/{STATS_FILE}",),
            uid=uid,
            gid=gid,
        )
        with translated(self._client.daemon, "take in the source tree"):
            self._client.stream.put_archive(self._holder.container_name, "/", stream)
        build.files = {
            name: (file.size, file.mtime_ns, file.mode, times[name]) for name, file in found.items()
        }
        build.save(plan.folders.out / REMOTE_STATE)
        size = sum(found[name].size for name in changed)
        self._console.info(f"   source: {len(changed)} of {len(found)} files sent, {size / 1e6:.1f} MB")

    def _remove_from_source(self, names: list[str]) -> None:
        template = replace(self._plan.template, mounts=self._mounts(is_source_read_only=False))
        for start in range(0, len(names), _NAMES_PER_CALL):
            paths = [f"{SRC}/{name}" for name in names[start : start + _NAMES_PER_CALL]]
            run_inside(self._client, template, ("cmake", "-E", "rm", "-f", "--", *paths), self._console)

    def _mounts(self, *, is_source_read_only: bool) -> tuple[Mount, ...]:
        places = (("source", SRC, is_source_read_only), ("out", OUT, False), ("cache", CACHE, False))
        return tuple(
            Mount(source=self._volumes[name], target=target, is_read_only=is_read_only, is_volume=True)
            for name, target, is_read_only in places
        )

    def _make(self, state: _State, path: Path) -> None:
        """Make the volumes of a state; the file comes first, so that no sweep takes them for left over."""
        state.save(path)
        for name in state.volumes.values():
            if not self._has(name):
                make_volume(self._client, name, owner=self._plan.owner, state=path.resolve())

    def _has(self, name: str) -> bool:
        return bool(name) and has_volume(self._client, name)

    def _now(self) -> float:
        """The daemon's clock."""
        text = str(self._client.info().get("SystemTime") or "")
        return datetime.fromisoformat(text).timestamp() if text else datetime.now(UTC).timestamp()


@contextmanager
def remote_folders(client: EngineClient, plan: RemotePlan, console: Console) -> Iterator[RemoteFolders]:
    """Provide the folders of a stage on the daemon's side while the block runs.

    The container that holds them never outlives the block, whatever ends it.
    """
    with SignalGate() as gate:
        folders = RemoteFolders(client, plan, console)
        try:
            with gate.open():
                folders.open()
                yield folders
        finally:
            folders.close()


def leave_remote(out: Path) -> None:
    """Empty a local build folder that only stood for a remote one, before it is built in here."""
    if (out / REMOTE_STATE).is_file():
        empty_folder(out)


def empty_folder(folder: Path) -> None:
    """Remove everything in a folder. Raises `StorageError`."""
    try:
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    except OSError as exc:
        raise storage_error(exc, f"cannot empty {folder}") from exc


def _load(path: Path) -> _State | None:
    try:
        data: Mapping[str, Any] = json.loads(path.read_bytes())
        return _State(
            daemon=str(data["daemon"]),
            volumes=dict(data["volumes"]),
            files={str(name): tuple(entry) for name, entry in data["files"].items()},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _time_of(build: _State, name: str, file: SourceFile, now: float) -> float:
    """The time that the copy of a file has: the one it was sent with, if it is still the same file."""
    known = build.files.get(name)
    is_same = known is not None and known[:3] == (file.size, file.mtime_ns, file.mode)
    return known[3] if known and is_same else now
