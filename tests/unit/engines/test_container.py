"""What a container may see and do, under which user, and how its output becomes lines."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import Any, cast

import docker
import pytest
import requests

from ci.engines.client import EngineClient, call_error, keep_alive
from ci.engines.container import (
    ContainerRequest,
    Mount,
    UserMapping,
    create_arguments,
    map_user,
    split_lines,
)
from ci.engines.endpoint import Daemon, Endpoint
from ci.engines.image import build_failure
from opencoti.errors import MissingError, StorageError

DAEMON = Daemon(
    endpoint=Endpoint(url="unix:///s", origin="default"), kind="docker", version="20.10", api="1.41"
)
REQUEST = ContainerRequest(
    image="opencoti-toolchain-zig:abc",
    argv=("/t/ninja",),
    env={"HOME": "/cache/home", "CCACHE_DIR": "/cache/ccache"},
    mounts=(
        Mount(source="/a", target="/src", is_read_only=True),
        Mount(source="/b", target="/out", is_read_only=False),
    ),
    user=UserMapping(user="1000:1001"),
    platform="linux/amd64",
    memory_limit_mb=512,
)


class OfflineClient:
    """Builds requests with the real SDK and sends none."""

    def __init__(self) -> None:
        self.daemon = DAEMON
        self.api = docker.APIClient(base_url="unix:///nonexistent", version="1.41")


@pytest.fixture
def arguments() -> dict[str, Any]:
    client = OfflineClient()
    made = create_arguments(REQUEST, cast(EngineClient, client))
    client.api.close()
    return made


def test_every_run_carries_the_callers_numbers_a_home_and_the_platform(arguments: dict[str, Any]) -> None:
    """case B08, case B19"""
    assert arguments["user"] == "1000:1001"
    assert arguments["environment"] == {"HOME": "/cache/home", "CCACHE_DIR": "/cache/ccache"}
    assert arguments["platform"] == "linux/amd64"


def test_a_container_has_no_network_no_capabilities_and_limits(arguments: dict[str, Any]) -> None:
    host = arguments["host_config"]
    assert host["NetworkMode"] == "none"
    assert host["CapDrop"] == ["ALL"]
    assert "no-new-privileges" in host["SecurityOpt"]
    assert host["ReadonlyRootfs"] is True
    assert host["Init"] is True
    assert (host["Memory"], host["MemorySwap"], host["PidsLimit"]) == (512 << 20, 512 << 20, 4096)
    assert [(mount["Target"], mount["ReadOnly"]) for mount in host["Mounts"]] == [
        ("/src", True),
        ("/out", False),
    ]


def test_a_volume_is_mounted_without_what_the_image_has_there() -> None:
    client = OfflineClient()
    volume = Mount(source="opencoti-out-1", target="/out", is_read_only=False, is_volume=True)
    made = create_arguments(replace(REQUEST, mounts=(volume,)), cast(EngineClient, client))
    client.api.close()
    (mount,) = made["host_config"]["Mounts"]
    assert (mount["Type"], mount["Source"]) == ("volume", "opencoti-out-1")
    assert mount["VolumeOptions"]["NoCopy"] is True


def test_a_connection_over_a_network_shows_signs_of_life() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        session = requests.Session()
        keep_alive(session)
        adapter = session.get_adapter("http://localhost")
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        connection = adapter.poolmanager.connection_from_url(address)._get_conn()  # type: ignore[attr-defined]
        connection.connect()
        assert connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert connection.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
        connection.close()
        session.close()


def test_a_container_says_who_owns_it(arguments: dict[str, Any]) -> None:
    """case B10"""
    labels = arguments["labels"]
    assert set(labels) == {
        "org.opencoti.run",
        "org.opencoti.owner-pid",
        "org.opencoti.owner-start",
        "org.opencoti.host",
    }
    assert arguments["name"] == f"opencoti-{labels['org.opencoti.run']}"


@pytest.mark.parametrize(
    ("kind", "options", "uid", "expected"),
    [
        ("docker", ["name=seccomp,profile=default"], 1000, UserMapping(user="1000:100")),
        ("docker", ["name=rootless", "name=cgroupns"], 1000, UserMapping(user="0:0")),
        ("docker", ["name=userns"], 1000, UserMapping(user="1000:100", userns_mode="host")),
        ("podman", [], 1000, UserMapping(user="1000:100", userns_mode="keep-id")),
        ("podman", [], 0, UserMapping(user="0:100")),
    ],
)
def test_files_get_the_callers_owner_whatever_the_engine_does_with_users(
    kind: str, options: list[str], uid: int, expected: UserMapping
) -> None:
    """case B08"""
    assert map_user(kind, {"SecurityOptions": options}, uid=uid, gid=100) == expected


def test_lines_are_put_together_from_chunks_that_end_anywhere() -> None:
    text = "[1/2] ä\r\nsecond\n\nlast"
    data = text.encode()
    for size in (1, 3, 7, 100):
        chunks = [data[start : start + size] for start in range(0, len(data), size)]
        assert list(split_lines(chunks)) == ["[1/2] ä", "second", "", "last"]
    assert list(split_lines([b"\xff\n"])) == ["\ufffd"]


# Answers of dockerd 20.10 to a build on a full disk, and to one whose Dockerfile has an unknown word.
FULL = "write /opt/toolchain/zig/zig: no space left on device"
UNKNOWN = "dockerfile parse error line 5: unknown instruction: AD"


def test_a_full_disk_of_the_daemon_is_told_from_other_failures() -> None:
    full, other = call_error(DAEMON, "build", FULL, None), call_error(DAEMON, "build", UNKNOWN, 400)
    assert isinstance(full, StorageError)
    assert isinstance(other, MissingError)
    assert (full.error_id, other.error_id) == ("docker-disk-full", "docker-call-failed")
    assert "unix:///s (from default)" in full.what


def test_the_last_failure_of_a_build_is_found_among_its_messages() -> None:
    messages: list[dict[str, Any]] = [
        {"stream": "Step 1/4 : FROM scratch"},
        {"errorDetail": {"message": FULL}, "error": FULL},
    ]
    assert build_failure(messages) == FULL
    assert build_failure(messages[:1]) == ""
