"""case B11: every way in which there is no container engine has its own text."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from ci.engines.endpoint import Endpoint, check_version, connect_error, find_endpoint, probe
from opencoti.errors import MissingError
from tests.fakes.docker_daemon import DOCKER_20, PODMAN_4, version_daemon


def error_of(endpoint: Endpoint) -> MissingError:
    with pytest.raises(MissingError) as caught:
        probe(endpoint, timeout_s=30.0)
    assert str(endpoint) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "--engine host" in caught.value.hint
    assert caught.value.exit_code == 4
    return caught.value


def at(path: Path) -> Endpoint:
    return Endpoint(url=f"unix://{path}", origin="DOCKER_HOST")


def test_docker_host_comes_first_and_is_named(tmp_path: Path) -> None:
    endpoint = find_endpoint({"DOCKER_HOST": "unix:///x.sock", "DOCKER_CONTEXT": "y"}, home=tmp_path)
    assert str(endpoint) == "unix:///x.sock (from DOCKER_HOST)"


@pytest.mark.parametrize("by_variable", [True, False])
def test_the_current_context_is_followed(by_variable: bool, tmp_path: Path) -> None:
    meta = tmp_path / ".docker/contexts/meta" / hashlib.sha256(b"lab").hexdigest()
    meta.mkdir(parents=True)
    (meta / "meta.json").write_text(json.dumps({"Endpoints": {"docker": {"Host": "tcp://lab:2375"}}}))
    if not by_variable:
        (tmp_path / ".docker/config.json").write_text('{"currentContext": "lab"}')
    endpoint = find_endpoint({"DOCKER_CONTEXT": "lab"} if by_variable else {}, home=tmp_path)
    assert str(endpoint) == "tcp://lab:2375 (from docker context lab)"


def test_a_context_without_an_endpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="'gone'"):
        find_endpoint({"DOCKER_CONTEXT": "gone"}, home=tmp_path)


@pytest.mark.parametrize("url", ["npipe:////./pipe/docker_engine", "nonsense"])
def test_an_address_that_nothing_here_can_speak_to_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(MissingError) as caught:
        find_endpoint({"DOCKER_HOST": url}, home=tmp_path)
    assert caught.value.error_id == "docker-endpoint-unsupported"
    assert url in caught.value.what


def test_nothing_installed_lists_where_it_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os.path, "exists", lambda path: False)
    with pytest.raises(MissingError) as caught:
        find_endpoint({"XDG_RUNTIME_DIR": "/run/user/5"}, home=tmp_path)
    assert caught.value.error_id == "docker-not-found"
    assert "/var/run/docker.sock" in caught.value.why
    assert "/run/user/5/podman/podman.sock" in caught.value.why


@pytest.mark.parametrize("place", ["docker.sock", "podman/podman.sock"])
def test_a_socket_of_the_users_own_engine_is_found(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exists = os.path.exists
    monkeypatch.setattr(os.path, "exists", lambda path: exists(path) and str(path).startswith(str(tmp_path)))
    socket_path = tmp_path / place
    socket_path.parent.mkdir(exist_ok=True)
    with version_daemon(socket_path, PODMAN_4):
        endpoint = find_endpoint({"XDG_RUNTIME_DIR": str(tmp_path)}, home=tmp_path)
        assert endpoint.url == f"unix://{socket_path}"
        assert probe(endpoint).kind == "podman"


@pytest.mark.parametrize(
    ("url", "is_open"),
    [("tcp://build:2375", True), ("tcp://127.0.0.1:2375", False), ("unix:///s", False), ("ssh://b", False)],
)
def test_a_port_that_anybody_can_use_is_known_as_such(url: str, is_open: bool) -> None:
    assert Endpoint(url=url, origin="DOCKER_HOST").is_open_to_others is is_open


def test_a_socket_that_does_not_exist(tmp_path: Path) -> None:
    assert error_of(at(tmp_path / "nonexistent.sock")).error_id == "docker-socket-missing"


def test_a_socket_that_nobody_listens_on(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "s"))
    assert error_of(at(tmp_path / "s")).error_id == "docker-refused"


def test_a_port_that_nobody_listens_on() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        endpoint = Endpoint(url=f"tcp://127.0.0.1:{bound.getsockname()[1]}", origin="DOCKER_HOST")
        assert error_of(endpoint).error_id == "docker-refused"


def test_a_socket_that_this_user_may_not_use() -> None:
    # A test may run as root, whom nothing is denied: the operating system's answer is given instead.
    error = connect_error(at(Path("/s")), PermissionError(errno.EACCES, "Permission denied"))
    assert error.error_id == "docker-denied"
    assert "usermod -aG docker" in error.hint


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH_9\r\n", b"", b"HTTP/1.0 200 OK\r\n\r\nhello"])
def test_something_else_that_listens_there(answer: bytes, tmp_path: Path) -> None:
    with version_daemon(tmp_path / "s", answer):
        assert error_of(at(tmp_path / "s")).error_id == "docker-no-answer"


@pytest.mark.parametrize("api", ["1.40", "1.9", "?"])
def test_a_daemon_that_is_too_old(api: str, tmp_path: Path) -> None:
    with version_daemon(tmp_path / "s", {**DOCKER_20, "ApiVersion": api}):
        error = error_of(at(tmp_path / "s"))
    assert error.error_id == "docker-too-old"
    assert f"API {api}, needed is 1.41" in error.why


@pytest.mark.parametrize(("answer", "kind"), [(DOCKER_20, "docker"), (PODMAN_4, "podman")])
def test_docker_and_podman_are_told_apart(answer: dict[str, Any], kind: str, tmp_path: Path) -> None:
    with version_daemon(tmp_path / "s", answer):
        daemon = probe(at(tmp_path / "s"))
    assert (daemon.kind, daemon.version, daemon.api) == (kind, answer["Version"], "1.41")


def test_newer_versions_compare_as_numbers() -> None:
    assert check_version(at(Path("/s")), {**DOCKER_20, "ApiVersion": "1.100"}).api == "1.100"
