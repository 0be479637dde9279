"""The token goes to the server that it is for, and nowhere else: no other host, no output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opencoti.errors import ConfigError
from opencoti.fetch.credential import Credential
from opencoti.fetch.settings import Settings
from tests.fakes.http_faults import Fault, serving
from tests.integration.fetch.bench import CONTENT, SHA, run_cli

TOKEN = "s3cret-token"


def test_token_is_sent_to_the_mirror_and_not_behind_its_redirect(tmp_path: Path) -> None:
    pin = tmp_path / "some.pin"
    pin.write_text(f"owner/name c1 engine.bin {SHA}\n")
    with serving(CONTENT) as cdn:
        with serving(
            CONTENT,
            Fault(kind="status", status=404),
            Fault(kind="redirect", location=cdn.url("elsewhere")),
        ) as mirror:
            env = {
                "OPENCOTI_MIRROR": f"http://127.0.0.1:{mirror.port}",
                "OPENCOTI_TOKEN": TOKEN,
                "OPENCOTI_CACHE_DIR": str(tmp_path),
            }
            done = run_cli("--pin", pin, "--json", env=env)
            sent = [request.headers.get("authorization") for request in mirror.seen]
        elsewhere = [request.headers.get("authorization") for request in cdn.seen]
    assert json.loads(done.stdout)["sha256"] == SHA, done.stderr
    assert sent == [f"Bearer {TOKEN}"] * 2
    assert elsewhere == [None]
    assert TOKEN not in done.stdout + done.stderr
    assert not any(TOKEN.encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_token_is_not_sent_to_an_address_of_another_server(tmp_path: Path) -> None:
    with serving(CONTENT, Fault(kind="status", status=403)) as server:
        words = ("--url", server.url(), "--sha256", SHA, "--dest", tmp_path)
        done = run_cli(*words, env={"OPENCOTI_TOKEN": TOKEN, "OPENCOTI_MIRROR": "https://mirror.example"})
        assert done.returncode == 7
        assert server.seen[0].headers.get("authorization") is None
    assert TOKEN not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("url", "is_sent"),
    [
        ("https://mirror.example/a", True),
        ("https://mirror.example:443/a", True),
        ("https://MIRROR.example/a", True),
        ("https://mirror.example:444/a", False),
        ("http://mirror.example/a", False),
        ("https://mirror.example.evil/a", False),
        ("https://evil/mirror.example", False),
    ],
)
def test_same_server_means_scheme_host_and_port(url: str, is_sent: bool) -> None:
    credential = Credential.of(TOKEN, "https://mirror.example/base")
    assert credential is not None
    assert credential.headers_for(url) == ({"authorization": f"Bearer {TOKEN}"} if is_sent else {})
    assert TOKEN not in repr(credential)


@pytest.mark.parametrize("text", ["two words", "line\nbreak", "umlaut-ä", "x" * 5000])
def test_what_is_no_token_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.from_environ({"OPENCOTI_TOKEN": text, "OPENCOTI_CACHE_DIR": "/nowhere"})
    assert caught.value.error_id == "bad-token"
    assert text not in str(caught.value.as_dict())


def test_no_token_is_none() -> None:
    assert Settings.from_environ({"OPENCOTI_TOKEN": " ", "OPENCOTI_CACHE_DIR": "/nowhere"}).credential is None
