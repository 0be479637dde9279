"""Finding the container engine of this machine, and saying exactly what is wrong when there is none.

The daemon is looked at with plain sockets before the docker SDK is imported: the operating system's own
error code tells the cases apart (case B11), and a build that finds its result in the cache needs no SDK.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import json
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from opencoti.errors import MissingError

# `platform` of a new container needs API 1.41 (Docker 20.10, Podman 3).
MIN_API: Final = (1, 41)
_PROBE_TIMEOUT_S: Final = 5.0
_USE_HOST: Final = "or build without containers: --engine host"
_SCHEMES: Final = ("unix", "tcp", "http", "https", "ssh")


_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where a daemon is expected, and which setting says so ("DOCKER_HOST", "default").

    `shown` is what messages call it, when that is something else than the address that is connected to.
    """

    url: str
    origin: str
    shown: str = ""

    def __str__(self) -> str:
        return f"{self.shown or self.url} (from {self.origin})"

    @property
    def is_open_to_others(self) -> bool:
        """Whether it is spoken to over a network without any proof of who speaks."""
        parts = urlsplit(self.url)
        return parts.scheme in {"tcp", "http"} and parts.hostname not in _LOOPBACK

    @property
    def socket_path(self) -> str:
        """Path of a unix socket, empty for other endpoints."""
        return self.url.removeprefix("unix://") if self.url.startswith("unix://") else ""


@dataclass(frozen=True, kw_only=True)
class Daemon:
    """A daemon that answered."""

    endpoint: Endpoint
    kind: str
    version: str
    api: str


def find_endpoint(env: Mapping[str, str] | None = None, *, home: Path | None = None) -> Endpoint:
    """Return the endpoint that the docker command line would use, else a socket at a usual place.

    Raises:
        MissingError: `docker-not-found`, nothing is configured and no usual socket exists;
            `docker-endpoint-unsupported`.
    """
    env = os.environ if env is None else env
    if url := env.get("DOCKER_HOST", ""):
        return _supported(Endpoint(url=url, origin="DOCKER_HOST"))
    config = Path(env.get("DOCKER_CONFIG", "") or (home or Path.home()) / ".docker")
    if endpoint := _context_endpoint(config, env):
        return _supported(endpoint)
    return _default_endpoint(env)


def probe(endpoint: Endpoint, *, with_tls: bool = False, timeout_s: float = _PROBE_TIMEOUT_S) -> Daemon:
    """Ask a daemon for its version.

    Raises:
        MissingError: `docker-socket-missing`, `docker-refused`, `docker-denied`, `docker-unreachable`,
            `docker-no-answer`, `docker-too-old`. The text names the endpoint and where it comes from.
    """
    try:
        connection = _connect(endpoint, timeout_s)
    except OSError as exc:
        raise connect_error(endpoint, exc) from exc
    if with_tls and not endpoint.socket_path:
        # Keys and certificates are the SDK's business; it asks for the version again.
        connection.close()
        return Daemon(endpoint=endpoint, kind="docker", version="?", api="?")
    try:
        connection.request("GET", "/version", headers={"Host": "docker"})
        answer = json.loads(connection.getresponse().read())
    except (OSError, ValueError, http.client.HTTPException) as exc:
        raise MissingError(
            "docker-no-answer",
            f"no container engine answers at {endpoint}",
            why=f"something accepts connections there, but did not answer as one ({type(exc).__name__})",
            hint=f"start it again, {_USE_HOST}",
        ) from exc
    finally:
        connection.close()
    return check_version(endpoint, answer)


def check_version(endpoint: Endpoint, answer: Mapping[str, Any]) -> Daemon:
    """Turn the daemon's answer to `/version` into a `Daemon`. Raises `MissingError`: `docker-too-old`."""
    components = {str(part.get("Name", "")) for part in answer.get("Components") or ()}
    kind = "podman" if "Podman Engine" in components else "docker"
    daemon = Daemon(
        endpoint=endpoint,
        kind=kind,
        version=str(answer.get("Version", "?")),
        api=str(answer.get("ApiVersion", "0.0")),
    )
    if _version_tuple(daemon.api) < MIN_API:
        raise MissingError(
            "docker-too-old",
            f"the {kind} at {endpoint} is too old",
            why=f"version {daemon.version} has API {daemon.api}, needed is {MIN_API[0]}.{MIN_API[1]}",
            hint=f"install Docker 20.10 or newer, {_USE_HOST}",
        )
    return daemon


def connect_error(endpoint: Endpoint, exc: OSError) -> MissingError:
    """Make the error for a connection that the operating system refused."""
    if exc.errno in {errno.ENOENT, errno.ENOTDIR}:
        error_id, why = "docker-socket-missing", "there is no such socket"
        hint = f"start the container engine or correct {endpoint.origin}"
    elif exc.errno == errno.ECONNREFUSED:
        error_id, why = "docker-refused", "nothing listens there (connection refused)"
        hint = "start the container engine (`systemctl start docker`, `dockerd`, `podman system service`)"
    elif exc.errno in {errno.EACCES, errno.EPERM}:
        error_id, why = "docker-denied", "this user may not use the socket (permission denied)"
        hint = "join the group of the socket (`usermod -aG docker $USER`, then log in again)"
    else:
        error_id, why = "docker-unreachable", exc.strerror or type(exc).__name__
        hint = f"check {endpoint.origin}"
    return MissingError(error_id, f"no container engine at {endpoint}", why=why, hint=f"{hint}, {_USE_HOST}")


def _supported(endpoint: Endpoint) -> Endpoint:
    scheme = urlsplit(endpoint.url).scheme
    if scheme in _SCHEMES:
        return endpoint
    raise MissingError(
        "docker-endpoint-unsupported",
        f"cannot build with the container engine at {endpoint}",
        why=f"{scheme or 'this form'} is none of {', '.join(_SCHEMES)}",
        hint=f"correct {endpoint.origin}, {_USE_HOST}",
    )


def _context_endpoint(config: Path, env: Mapping[str, str]) -> Endpoint | None:
    """The endpoint of the current docker context; the context `default` means the usual socket."""
    name = env.get("DOCKER_CONTEXT", "")
    with suppress(OSError, ValueError):
        name = name or str(json.loads((config / "config.json").read_bytes()).get("currentContext", ""))
    if not name or name == "default":
        return None
    # The command line keeps a context in a folder named by the SHA-256 of the context's name.
    folder = config / "contexts" / "meta" / hashlib.sha256(name.encode()).hexdigest()
    try:
        url = str(json.loads((folder / "meta.json").read_bytes())["Endpoints"]["docker"]["Host"])
    except (OSError, ValueError, KeyError, TypeError):
        raise MissingError(
            "docker-context-missing",
            f"docker context {name!r} has no endpoint",
            why=f"{folder / 'meta.json'} cannot be read",
            hint=f"`docker context ls` shows what there is, {_USE_HOST}",
        ) from None
    return Endpoint(url=url, origin=f"docker context {name}")


def _default_endpoint(env: Mapping[str, str]) -> Endpoint:
    runtime = env.get("XDG_RUNTIME_DIR", "")
    places = ["/var/run/docker.sock"]
    places += [f"{runtime}/docker.sock", f"{runtime}/podman/podman.sock"] if runtime else []
    places += ["/run/podman/podman.sock"]
    for place in places:
        if os.path.exists(place):
            return Endpoint(url=f"unix://{place}", origin="default")
    raise MissingError(
        "docker-not-found",
        "no container engine is installed or running",
        why=f"DOCKER_HOST is not set and there is no socket at {', '.join(places)}",
        hint=f"install Docker or Podman, {_USE_HOST}",
    )


def _connect(endpoint: Endpoint, timeout_s: float) -> http.client.HTTPConnection:
    if endpoint.socket_path:
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        stream.settimeout(timeout_s)
        try:
            stream.connect(endpoint.socket_path)
        except OSError:
            stream.close()
            raise
        connection = http.client.HTTPConnection("localhost", timeout=timeout_s)
        connection.sock = stream
        return connection
    parts = urlsplit(endpoint.url)
    connection = http.client.HTTPConnection(
        parts.hostname or "localhost", parts.port or 2375, timeout=timeout_s
    )
    connection.connect()
    return connection


def uses_tls(env: Mapping[str, str] | None = None) -> bool:
    """Tell whether the daemon is to be spoken to with TLS, as the docker command line decides it."""
    return bool((os.environ if env is None else env).get("DOCKER_TLS_VERIFY"))


def _version_tuple(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split("."))
    except ValueError:
        return (0,)
