"""Addresses of daemons behind ssh, and how ssh is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.engines.endpoint import Endpoint
from ci.engines.tunnel import open_tunnel, ssh_command
from opencoti.errors import MissingError, NetworkError


def command(url: str) -> list[str]:
    words = ssh_command(Endpoint(url=url, origin="DOCKER_HOST"), Path("/near"), program="ssh")
    return words[words.index("-L") :]


def test_user_port_and_socket_are_taken_from_the_address() -> None:
    assert command("ssh://big") == ["-L", "/near:/var/run/docker.sock", "--", "big"]
    assert command("ssh://me@big:2222/run/user/5/podman.sock") == [
        "-L",
        "/near:/run/user/5/podman.sock",
        "-l",
        "me",
        "-p",
        "2222",
        "--",
        "big",
    ]


@pytest.mark.parametrize(
    "url", ["ssh://", "ssh://-oProxyCommand=x", "ssh://-x@h", "ssh://me:word@h", "ssh://h:port", "ssh://h?a"]
)
def test_an_address_that_ssh_could_take_for_something_else_is_refused(url: str) -> None:
    with pytest.raises(MissingError) as caught:
        command(url)
    assert caught.value.error_id == "docker-ssh-malformed"
    assert "word" not in str(caught.value).replace("passwords", "")


def test_it_asks_nothing_and_says_what_ssh_said(tmp_path: Path) -> None:
    program = tmp_path / "ssh"
    program.write_text(
        '#!/bin/sh\nfor word do [ "$word" = BatchMode=yes ] && echo "no route" >&2; done; exit 255\n'
    )
    program.chmod(0o755)
    with pytest.raises(NetworkError) as caught:
        open_tunnel(Endpoint(url="ssh://big", origin="DOCKER_HOST"), program=str(program))
    assert caught.value.error_id == "docker-ssh-failed"
    assert "no route" in caught.value.why
    assert "ssh://big (from DOCKER_HOST)" in caught.value.what


def test_a_machine_without_ssh_is_told_so() -> None:
    with pytest.raises(MissingError) as caught:
        open_tunnel(Endpoint(url="ssh://big", origin="DOCKER_HOST"), program="no-such-program")
    assert caught.value.error_id == "program-missing"


def test_it_ends_with_its_owner(tmp_path: Path) -> None:
    program = tmp_path / "ssh"
    program.write_text("#!/bin/sh\necho opencoti-tunnel-ready\nexec sleep 1000\n")
    program.chmod(0o755)
    tunnel = open_tunnel(Endpoint(url="ssh://big", origin="DOCKER_HOST"), program=str(program))
    near = Path(tunnel.endpoint.socket_path)
    assert str(tunnel.endpoint) == "ssh://big (from DOCKER_HOST)"
    assert near.parent.is_dir()
    tunnel.close()
    assert not near.parent.exists()
