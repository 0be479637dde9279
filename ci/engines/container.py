"""One container from start to removal: what it may see and do, its output, its end.

A container never outlives the block that runs it. It is removed on every way out, with signals held
back; if this process is killed hard, the next start finds the container by its labels and removes it.
"""

from __future__ import annotations

import codecs
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from ci.engines.client import EngineClient, translated
from ci.engines.failures import StepExit
from ci.engines.owner import RUN, is_orphan, owner_labels
from ci.engines.signals import SignalGate
from opencoti.console import Console
from opencoti.errors import MissingError, OpencotiError

SRC: Final = "/src"
OUT: Final = "/out"
CACHE: Final = "/cache"
_TMP_SIZE: Final = "2g"
_DEFAULT_PIDS: Final = 4096
BAD_REQUEST: Final = 400


def new_run_id() -> str:
    """Return an id for one container."""
    return uuid.uuid4().hex[:12]


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A folder of this machine inside the container, or with `is_volume` a volume of the daemon."""

    source: str
    target: str
    is_read_only: bool
    is_volume: bool = False


@dataclass(frozen=True, kw_only=True)
class UserMapping:
    """Under which user a container runs, so that its files belong to the caller (case B08)."""

    user: str
    userns_mode: str = ""


@dataclass(frozen=True, kw_only=True)
class ContainerRequest:
    """Everything about one container."""

    image: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    mounts: tuple[Mount, ...]
    user: UserMapping
    platform: str
    memory_limit_mb: int | None = None
    pids_limit: int | None = None
    working_dir: str = OUT
    is_root_read_only: bool = True
    run_id: str = field(default_factory=new_run_id)

    @property
    def container_name(self) -> str:
        """The name under which the daemon knows it, chosen here so that it can be removed by it."""
        return f"opencoti-{self.run_id}"


def map_user(kind: str, info: Mapping[str, Any], *, uid: int, gid: int) -> UserMapping:
    """Return the user under which files in a mount get the caller's owner.

    A plain daemon takes the numbers as they are. A rootless Docker maps its own user to 0 inside; a
    rootless Podman keeps the numbers with `keep-id`; a daemon with remapped users is told not to.
    """
    options = " ".join(str(option) for option in info.get("SecurityOptions") or ())
    is_rootless = "name=rootless" in options
    if kind == "podman":
        return UserMapping(user=f"{uid}:{gid}", userns_mode="keep-id" if uid != 0 else "")
    if is_rootless:
        return UserMapping(user="0:0")
    return UserMapping(user=f"{uid}:{gid}", userns_mode="host" if "name=userns" in options else "")


def create_arguments(request: ContainerRequest, client: EngineClient) -> dict[str, Any]:
    """Return the arguments of the SDK's `create_container` for a request."""
    memory = f"{request.memory_limit_mb}m" if request.memory_limit_mb else None
    options: dict[str, Any] = {
        "mounts": [_mount(mount) for mount in request.mounts],
        "network_mode": "none",
        "init": True,
        "read_only": request.is_root_read_only,
        "tmpfs": {"/tmp": f"exec,mode=1777,size={_TMP_SIZE}"},  # noqa: S108
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges", "label=disable"],
        "mem_limit": memory,
        "memswap_limit": memory,
        "pids_limit": request.pids_limit or _DEFAULT_PIDS,
        # Output comes through the attached stream; a second copy in the daemon's folder is of no use.
        "log_config": {"type": "none", "config": {}},
    }
    if request.user.userns_mode:
        options["userns_mode"] = request.user.userns_mode
    return {
        "image": request.image,
        "command": list(request.argv),
        "name": request.container_name,
        "user": request.user.user,
        "environment": dict(request.env),
        "working_dir": request.working_dir,
        "labels": owner_labels(request.run_id),
        "network_disabled": True,
        "platform": request.platform,
        "host_config": client.api.create_host_config(**options),
    }


def run_container(
    client: EngineClient, request: ContainerRequest, on_line: Callable[[str], None], console: Console
) -> StepExit:
    """Run a container to its end, pass every output line on, and remove it.

    Raises:
        MissingError: `docker-mount-invisible`, or the daemon went away or refused.
        StorageError: the daemon's disk is full.
    """
    with SignalGate() as gate:
        try:
            stream = _start(client, request)
            with _closed(stream), gate.open(), translated(client.daemon, "run the container"):
                for line in split_lines(stream):
                    on_line(line)
                code = int(client.stream.wait(request.container_name)["StatusCode"])
                state = client.api.inspect_container(request.container_name)["State"]
            return StepExit(code=code, is_out_of_memory=bool(state.get("OOMKilled")))
        finally:
            remove_container(client, request.container_name, console)


def sweep(client: EngineClient, console: Console) -> list[str]:
    """Remove containers whose owner was killed hard; return their names."""
    with translated(client.daemon, "list containers"):
        found = client.api.containers(all=True, filters={"label": RUN})
    orphans = [entry for entry in found if is_orphan(entry.get("Labels") or {})]
    names = [str((entry.get("Names") or [entry["Id"]])[0]).removeprefix("/") for entry in orphans]
    for name in names:
        console.warn(f"removing container {name}: the command that started it was killed")
        remove_container(client, name, console)
    return names


def split_lines(stream: Iterable[bytes]) -> Iterator[str]:
    """Turn chunks of output into lines; a chunk may end inside a line or a character."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    rest = ""
    for chunk in stream:
        *lines, rest = (rest + decoder.decode(chunk)).split("\n")
        for line in lines:
            yield line.rstrip("\r")
    rest += decoder.decode(b"", final=True)
    if rest:
        yield rest


def _start(client: EngineClient, request: ContainerRequest) -> Any:
    import docker

    with translated(client.daemon, "start a container"):
        try:
            client.api.create_container(**create_arguments(request, client))
        except docker.errors.APIError as exc:
            if exc.status_code == BAD_REQUEST:
                raise _invisible(client, request, str(exc.explanation)) from exc
            raise
        # Attached before it starts, so that no output is lost.
        stream = client.stream.attach(
            request.container_name, stdout=True, stderr=True, stream=True, logs=False
        )
        client.api.start(request.container_name)
        return stream


@contextmanager
def _closed(stream: Any) -> Iterator[None]:
    """Close an attached stream; the SDK's own `close` leaves the response, and so the socket, open."""
    try:
        yield
    finally:
        stream.close()
        stream._response.close()


def _invisible(client: EngineClient, request: ContainerRequest, said: str) -> MissingError:
    folders = ", ".join(mount.source for mount in request.mounts)
    return MissingError(
        "docker-mount-invisible",
        f"the {client.daemon.kind} at {client.daemon.endpoint} cannot mount {folders}",
        why=" ".join(said.split())[:300],
        hint="it runs on another machine, or sees other folders than this container: use --engine host",
    )


def remove_container(client: EngineClient, name: str, console: Console) -> None:
    """Remove a container, running or not; a warning when that fails."""
    import docker

    try:
        with translated(client.daemon, "remove a container"):
            try:
                client.api.remove_container(name, force=True, v=True)
            except docker.errors.NotFound:
                return
    except OpencotiError as error:
        console.warn(f"container {name} may be left behind ({error}); the next build removes it")


def _mount(mount: Mount) -> Any:
    import docker

    if mount.is_volume:
        # `no_copy`: else the daemon copies owner and content of the image's folder into an empty volume.
        return docker.types.Mount(
            target=mount.target,
            source=mount.source,
            type="volume",
            read_only=mount.is_read_only,
            no_copy=True,
        )
    return docker.types.Mount(
        target=mount.target, source=mount.source, type="bind", read_only=mount.is_read_only
    )
