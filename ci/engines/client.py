"""The one place that talks to a container engine, through the docker SDK; its failures as errors of ours."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from ci.engines.endpoint import Daemon
from opencoti.errors import MissingError, StorageError

if TYPE_CHECKING:
    import requests

_CALL_TIMEOUT_S: Final = 120
KEEP_ALIVE: Final = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 8),
)
# What the daemon passes on from the kernel when its own disk is full; it has no code of its own for it.
_NO_SPACE: Final = "no space left on device"


class EngineClient:
    """Connection to a daemon. `stream` has no time-out: a compiler may print nothing for minutes.

    Args:
        daemon: a daemon that answered.
        call_timeout_s: how long an ordinary call may take, in seconds.
    """

    def __init__(self, daemon: Daemon, *, call_timeout_s: int = _CALL_TIMEOUT_S) -> None:
        import docker
        from docker.utils import kwargs_from_env

        self.daemon = daemon
        arguments: dict[str, Any] = kwargs_from_env() | {"base_url": daemon.endpoint.url, "version": "auto"}
        with translated(daemon, "connect"):
            self.api: Any = docker.APIClient(**arguments | {"timeout": call_timeout_s})
            self.stream: Any = docker.APIClient(**arguments | {"timeout": None})
        if not daemon.endpoint.socket_path:
            keep_alive(self.stream)

    def info(self) -> Mapping[str, Any]:
        """Return the daemon's description of itself."""
        with translated(self.daemon, "info"):
            return dict(self.api.info())

    def image(self, tag: str) -> Mapping[str, Any] | None:
        """Return what the daemon knows about an image, None when it has none."""
        import docker

        with translated(self.daemon, f"look at image {tag}"):
            try:
                return dict(self.api.inspect_image(tag))
            except docker.errors.NotFound:
                return None

    def close(self) -> None:
        """Close the connections."""
        self.api.close()
        self.stream.close()


def keep_alive(session: requests.Session) -> None:
    """Make connections of a session show signs of life while nothing is sent.

    Else something on the way (a firewall, address translation) forgets a connection over which a silent
    compiler sends nothing for minutes, and neither end ever hears of it.
    """
    import requests

    class Adapter(requests.adapters.HTTPAdapter):
        def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
            super().init_poolmanager(*args, socket_options=KEEP_ALIVE, **kwargs)

    for scheme in ("http://", "https://"):
        session.mount(scheme, Adapter())


@contextmanager
def translated(daemon: Daemon, action: str) -> Iterator[None]:
    """Turn failures of the SDK inside the block into errors with one line of text.

    Raises:
        MissingError: `docker-lost`, the connection broke; `docker-call-failed`, the daemon refused.
        StorageError: `docker-disk-full`.
    """
    import docker
    import requests

    try:
        yield
    except docker.errors.APIError as exc:
        raise call_error(daemon, action, str(exc.explanation or exc), exc.status_code) from exc
    except (docker.errors.DockerException, requests.RequestException, OSError) as exc:
        raise MissingError(
            "docker-lost",
            f"the {daemon.kind} at {daemon.endpoint} went away ({action})",
            why=f"{type(exc).__name__}",
            hint="see the log of the daemon and run the command again, or use --engine host",
        ) from exc


def call_error(daemon: Daemon, action: str, said: str, status: int | None) -> MissingError | StorageError:
    """Make the error for a call that the daemon answered with a failure."""
    said = " ".join(said.split())[:300]
    what = f"the {daemon.kind} at {daemon.endpoint} failed to {action}"
    if _NO_SPACE in said:
        return StorageError(
            "docker-disk-full",
            what,
            why=said,
            hint="free space on the disk of the container engine (`docker system df`), or use --engine host",
        )
    return MissingError(
        "docker-call-failed",
        what,
        why=f"{said} (status {status})",
        hint="see the log of the daemon, or use --engine host",
    )
