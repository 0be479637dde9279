"""The engine of a smoke test in a container without network, spoken to through a socket file.

Whatever the run needs is mounted at the place that it has on this machine, so paths in memory maps, in logs
and on the command line mean the same inside and outside. The kernel says which process listens on the socket
file; that the answers come from this run, and which libraries it has mapped, is proved as on this machine.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final

from ci.engines.client import EngineClient, translated
from ci.engines.container import (
    ContainerRequest,
    Mount,
    UserMapping,
    create_arguments,
    map_user,
    remove_container,
    sweep,
)
from ci.engines.endpoint import find_endpoint, probe, uses_tls
from ci.engines.image import ToolchainImage
from ci.engines.signals import SignalGate
from ci.paths import Layout
from ci.smoke.failures import log_tail
from ci.smoke.loopback import Loopback
from ci.smoke.scratch import Scratch
from ci.smoke.server import Server
from ci.toolchains.recipe import Recipe
from opencoti import procfs
from opencoti.console import Console
from opencoti.errors import MissingError, VerificationError

RECIPE: Final = "lavapipe"
_SOCKET: Final = "engine.sock"
_POLL_S: Final = 0.1
_PROBE_TIMEOUT_S: Final = 5.0
# struct sockaddr_un, its closing zero left out.
_MAX_SOCKET_PATH: Final = 107
_SIGNALLED: Final = 128
_RUN: Final = 'exec "$@" >>"$0" 2>&1'


class ContainerPlace:
    """Starts engines in containers of one image; see `open_container_place`.

    Args:
        files: what an engine reads beside its artifact, such as the model.
    """

    def __init__(
        self,
        client: EngineClient,
        *,
        image: ToolchainImage,
        user: UserMapping,
        files: Sequence[Path],
        console: Console,
    ) -> None:
        self._client = client
        self._image = image
        self._user = user
        self._files = tuple(files)
        self._console = console

    def address(self, scratch: Scratch, port: int) -> tuple[str, ...]:
        """See `Place.address`; nothing listens on a port."""
        return ("--host", str(_socket_path(scratch)))

    def launch(
        self,
        artifact: Path,
        arguments: Sequence[str],
        *,
        scratch: Scratch,
        log: IO[bytes],
        variables: Mapping[str, str],
    ) -> Server:
        """See `Place.launch`."""
        _socket_path(scratch).unlink(missing_ok=True)
        request = ContainerRequest(
            image=self._image.tag,
            # The output goes straight to the file, as on this machine.
            argv=("/bin/sh", "-c", _RUN, log.name, str(artifact), *arguments),
            env=scratch.environment({}) | dict(variables),
            mounts=self._mounts(artifact, scratch, Path(log.name)),
            user=self._user,
            platform=self._image.platform,
            working_dir=str(scratch.work),
        )
        child = _start(self._client, request, self._console)
        return ContainedServer(child, scratch=scratch, log=Path(log.name), socket_path=_socket_path(scratch))

    def _mounts(self, artifact: Path, scratch: Scratch, log: Path) -> tuple[Mount, ...]:
        read = (artifact, *self._files)
        written = (scratch.root, log)
        return tuple(
            Mount(source=str(path), target=str(path), is_read_only=path in read) for path in (*written, *read)
        )


@contextmanager
def open_container_place(
    layout: Layout, console: Console, *, files: Sequence[Path]
) -> Iterator[ContainerPlace]:
    """Provide the pinned image with the software device, and a connection to the container engine.

    Raises:
        MissingError: no container engine answers.
        OpencotiError: the image is missing and cannot be made.
    """
    client = EngineClient(probe(find_endpoint(), with_tls=uses_tls()))
    try:
        sweep(client, console)
        image = ToolchainImage(lavapipe(layout), layout)
        image.ensure(client, console)
        user = map_user(client.daemon.kind, client.info(), uid=os.getuid(), gid=os.getgid())
        yield ContainerPlace(client, image=image, user=user, files=files, console=console)
    finally:
        client.close()


def lavapipe(layout: Layout) -> Recipe:
    """Return the recipe of the image with the software device. Raises `ConfigError`."""
    return Recipe.load(layout.containers / RECIPE)


class ContainerChild:
    """The first process of a container, as `Server` looks at processes."""

    def __init__(self, client: EngineClient, name: str, console: Console) -> None:
        self._client = client
        self._name = name
        self._console = console
        self.pid = int(self._state()["Pid"])

    def poll(self) -> int | None:
        """See `Child.poll`."""
        state = self._state()
        if state.get("Running"):
            return None
        code = int(state.get("ExitCode") or 0)
        # The container's init turns a signal into this number.
        return _SIGNALLED - code if _SIGNALLED < code < _SIGNALLED + signal.NSIG else code

    def wait(self, timeout: float | None = None) -> int:
        """See `Child.wait`."""
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if end is not None and time.monotonic() >= end:
                raise subprocess.TimeoutExpired(self._name, timeout or 0)
            time.sleep(_POLL_S)
        return code

    def terminate(self) -> None:
        """Send SIGTERM, which the container's init passes on."""
        with translated(self._client.daemon, "stop a container"):
            self._client.api.kill(self._name, signal="SIGTERM")

    def remove(self) -> None:
        """End it at any price, and remove the container."""
        remove_container(self._client, self._name, self._console)

    def _state(self) -> Mapping[str, Any]:
        with translated(self._client.daemon, "look at a container"):
            return dict(self._client.api.inspect_container(self._name)["State"])


class ContainedServer(Server):
    """An engine in a container that listens on a socket file."""

    def __init__(self, child: ContainerChild, *, scratch: Scratch, log: Path, socket_path: Path) -> None:
        super().__init__(child, scratch=scratch, log=log)
        self._container = child
        self._socket = socket_path

    def client(self) -> Loopback:
        """See `Server.client`."""
        return Loopback(0, socket=self._socket)

    def wait_ready(self, *, port: int, timeout_s: float) -> None:
        """See `Server.wait_ready`.

        Raises:
            VerificationError: `smoke-died`, `smoke-not-ready`, `smoke-not-ours`.
            MissingError: `smoke-container-elsewhere`.
        """
        end = time.monotonic() + timeout_s
        state = f"it does not listen on {_SOCKET}"
        while time.monotonic() < end:
            pid = _listening_process(self._socket)
            if pid is not None:
                self._require_own(pid)
                self.engine_pid = pid
                state = self._health_at_socket()
                if not state:
                    return
            with suppress(subprocess.TimeoutExpired):
                self.child.wait(timeout=_POLL_S)
            self.require_alive("before it was ready")
        raise VerificationError(
            "smoke-not-ready",
            f"the engine was not ready within {timeout_s:.0f} s",
            why=f"{state}; its last lines:\n{log_tail(self.log)}",
            hint=f"the full log is {self.log}",
        )

    def _require_own(self, pid: int) -> None:
        if pid == 0:
            raise MissingError(
                "smoke-container-elsewhere",
                "the processes of the container engine cannot be seen from here",
                why="the test reads from /proc which libraries the engine has mapped",
                hint="run it on the machine of the container engine",
            )
        if pid not in self.members():
            raise VerificationError(
                "smoke-not-ours", f"process {pid} listens on {_SOCKET}", why="it is none of this run"
            )

    def _health_at_socket(self) -> str:
        with self.client() as client:
            reply = client.probe("/health", timeout_s=_PROBE_TIMEOUT_S)
        if reply is None:
            return "it listens and /health does not answer"
        return "" if reply.status == 200 else f"/health says {reply.status}"

    def members(self) -> tuple[int, ...]:
        """See `Server.members`; known by their mark alone.

        The number of the container's first process is 0 once it has ended, and that of a session of which
        the kernel's and other namespaces' processes seem to be members.
        """
        return procfs.marked(self._mark)

    def ask_to_stop(self) -> None:
        """See `Server.ask_to_stop`."""
        self._container.terminate()

    def kill(self) -> None:
        """See `Server.kill`; the container engine ends every process of the container."""
        self._container.remove()


def _start(client: EngineClient, request: ContainerRequest, console: Console) -> ContainerChild:
    name = request.container_name
    try:
        # A signal is held back until the container can be removed by whoever catches what it raises.
        with SignalGate(), translated(client.daemon, "start a container"):
            client.api.create_container(**create_arguments(request, client))
            client.api.start(name)
            return ContainerChild(client, name, console)
    except BaseException:
        remove_container(client, name, console)
        raise


def _socket_path(scratch: Scratch) -> Path:
    path = scratch.root / _SOCKET
    if len(os.fsencode(path)) > _MAX_SOCKET_PATH:
        raise MissingError(
            "smoke-path-too-long",
            f"no socket can be made at {path}",
            why=f"its path has more than {_MAX_SOCKET_PATH} bytes",
            hint="set TMPDIR to a folder with a shorter name",
        )
    return path


def _listening_process(path: Path) -> int | None:
    """Return the process that listens on a socket file: None when nobody does, 0 when it cannot be seen."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(str(path))
        except OSError:
            return None
        size = struct.calcsize("3i")
        pid, _, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(pid)
