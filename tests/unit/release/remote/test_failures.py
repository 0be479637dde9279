"""What an answer means: limits are waited for, permissions are named, nothing foreign is printed raw."""

from __future__ import annotations

import ssl
from email.utils import formatdate
from typing import Any

import pytest

from opencoti.errors import ConfigError, NetworkError, OpencotiError
from release.remote.failures import broken_off, failure_of, json_of
from release.remote.model import NotThereError, PassingError, RefusedError
from release.remote.settings import GitHubSettings

NOW = 1_000_000.0
SPENT = {"x-ratelimit-remaining": "0"}
SECONDARY = {"documentation_url": "https://docs/rate-limits"}


def failure(status: int, headers: dict[str, str] | None = None, data: Any = None) -> Exception:
    return failure_of(status, headers or {}, data, what="do it", now=NOW)


@pytest.mark.parametrize(
    ("status", "headers", "data", "wait_s"),
    [
        (403, {"retry-after": "30"}, None, 30.0),
        (429, {"retry-after": "0"}, None, 0.0),
        (429, {}, None, 60.0),
        (403, {}, SECONDARY, 60.0),
        (403, SPENT | {"x-ratelimit-reset": str(NOW + 100)}, None, 101.0),
        (403, SPENT | {"x-ratelimit-reset": str(NOW - 100)}, None, 1.0),
        (403, SPENT | {"x-ratelimit-reset": str(NOW + 5000), "date": formatdate(NOW + 4990, usegmt=True)},
         None, 11.0),
        (403, SPENT | {"x-ratelimit-reset": "soon"}, None, 60.0),
        (403, {"retry-after": "nan"}, None, 60.0),
        (429, {"retry-after": "-1"}, None, 60.0),
    ],
)  # fmt: skip
def test_a_limit_says_how_long(status: int, headers: dict[str, str], data: Any, wait_s: float) -> None:
    found = failure(status, headers, data)
    assert isinstance(found, PassingError)
    assert found.wait_s == wait_s


@pytest.mark.parametrize("status", [500, 502, 503, 504, 408, 409])
def test_trouble_of_the_server_may_pass(status: int) -> None:
    found = failure(status)
    assert isinstance(found, PassingError)
    assert found.wait_s is None


def test_a_permission_names_what_is_needed_and_what_is_there() -> None:
    headers = {"x-accepted-github-permissions": "contents=write", "x-ratelimit-remaining": "4990"}
    found = failure(403, headers | {"x-oauth-scopes": "read:org"})
    assert isinstance(found, NetworkError)
    assert (found.error_id, found.why) == (
        "github-permission",
        "the token lacks a permission; needed: contents=write; it has: read:org",
    )


@pytest.mark.parametrize(
    ("status", "kind"), [(401, NetworkError), (404, NotThereError), (422, RefusedError), (418, NetworkError)]
)
def test_other_answers_have_their_type(status: int, kind: type[Exception]) -> None:
    assert isinstance(failure(status, data={"message": "m"}), kind)


def test_reasons_of_a_refusal_are_kept_and_made_harmless() -> None:
    errors = [
        {"field": "name", "code": "already_exists"},
        "odd",
        {"code": "custom", "message": "a\x1b[31m\nb"},
    ]
    found = failure(422, data={"message": "Validation Failed", "errors": errors})
    assert isinstance(found, RefusedError)
    assert ("name", "already_exists") in found.codes
    assert found.text.isprintable()
    assert len(failure(422, data={"message": "x" * 9999}).text) <= 300  # type: ignore[attr-defined]


def test_a_certificate_that_is_not_trusted_does_not_pass() -> None:
    try:
        try:
            raise ssl.SSLCertVerificationError("bad certificate")
        except ssl.SSLCertVerificationError as exc:
            raise ConnectionError("what a library makes of it") from exc
    except ConnectionError as exc:
        found = broken_off(exc)
    assert isinstance(found, NetworkError)
    assert found.error_id == "github-untrusted"
    assert isinstance(broken_off(ConnectionError("reset")), PassingError)


@pytest.mark.parametrize("data", [b"", b"<html>", b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_json_is_none(data: bytes) -> None:
    assert json_of([data]) is None


def test_a_body_without_end_is_not_kept() -> None:
    with pytest.raises(PassingError):
        json_of(bytes(1 << 16) for _ in range(1000))


@pytest.mark.parametrize(
    ("api", "upload", "is_fine"),
    [
        (
            "https://api.github.com",
            "https://uploads.github.com/repos/o/r/releases/1/assets{?name,label}",
            True,
        ),
        ("https://api.x.ghe.com", "https://uploads.x.ghe.com/repos/o/r/releases/1/assets{?name}", True),
        ("https://git.example/api/v3", "https://git.example/api/uploads/repos/o/r/releases/1/assets", True),
        ("http://127.0.0.1:1/api", "http://127.0.0.1:2/repos", True),
        ("https://api.github.com", "https://uploads.github.com.evil.example/x", False),
        ("https://api.github.com", "https://evil.example/uploads.github.com", False),
        ("https://api.github.com", "http://uploads.github.com/x", False),
        ("https://api.github.com", "https://user:pw@uploads.github.com/x", False),
        ("https://api.github.com", "http://127.0.0.1:2/repos", False),
        ("https://api.github.com", "", False),
    ],
)
def test_the_token_goes_to_its_own_service_only(api: str, upload: str, is_fine: bool) -> None:
    settings = GitHubSettings(token="secret", api_url=api)
    if is_fine:
        assert settings.upload_address(upload) == upload.partition("{")[0]
        return
    with pytest.raises(OpencotiError) as caught:
        settings.upload_address(upload)
    assert caught.value.error_id == "upload-address-refused"


def test_the_token_is_not_shown() -> None:
    settings = GitHubSettings.from_environ({"GITHUB_TOKEN": "secret-token\n"})
    assert settings.token == "secret-token"
    assert "secret" not in repr(settings)


@pytest.mark.parametrize("token", ["", "  ", "two words", "two\nlines", "caf\u00e9"])
def test_what_is_no_token_is_not_repeated(token: str) -> None:
    with pytest.raises(ConfigError) as caught:
        GitHubSettings.from_environ({"GITHUB_TOKEN": token})
    assert not token.strip() or token not in str(caught.value.as_dict())
