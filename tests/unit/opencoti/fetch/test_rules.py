"""The pure parts: addresses, settings, what a pin or an address asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from opencoti import paths
from opencoti.errors import ConfigError, NetworkError, UsageError
from opencoti.fetch.addresses import follow_redirect, last_segment, release_url, require_allowed
from opencoti.fetch.settings import Settings
from opencoti.fetch.source import HttpSource, LocalSource, Request, request_for_pin, request_for_url
from opencoti.fetch.trial import suits_this_host
from opencoti.pins import ArtifactPin

SHA = "0f" * 32


def pinned(line: str, **environ: str) -> Request:
    settings = Settings.from_environ({"OPENCOTI_CACHE_DIR": "/c", **environ})
    return request_for_pin(ArtifactPin.parse(f"{line} {SHA}", "a.pin"), settings)


@pytest.mark.parametrize(
    "url",
    ["https://example.com/a", "http://127.0.0.1:1/a", "http://localhost/a", "http://[::1]:8080/a"],
)
def test_https_and_loopback_may_be_asked(url: str) -> None:
    assert require_allowed(url, "--url") == url


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/a",
        "http://127.0.0.1.example.com/a",
        "http://127.0.0.1@example.com/a",
        "https://user:secret@example.com/a",
        "ftp://example.com/a",
        "https:///a",
        "https://example.com:port/a",
        "https://exa mple.com/a",
        "https://example.com/a\r\nX: y",
        "https://[::1/a",
        "engine.bin",
        "",
    ],
)
def test_other_addresses_are_refused_without_repeating_a_password(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        require_allowed(url, "--url")
    assert caught.value.error_id == "address-refused"
    assert "secret" not in str(caught.value.as_dict())


def test_redirects_stay_on_https() -> None:
    assert follow_redirect("https://a.example/x/y", "../z") == "https://a.example/z"
    assert follow_redirect("http://127.0.0.1:9/x", "https://b.example/z") == "https://b.example/z"
    assert follow_redirect("http://127.0.0.1:9/x", "/z") == "http://127.0.0.1:9/z"


@pytest.mark.parametrize("location", ["http://b.example/z", "http://127.0.0.1/z", "file:///etc/passwd"])
def test_redirects_out_of_https_are_refused(location: str) -> None:
    with pytest.raises(NetworkError) as caught:
        follow_redirect("https://a.example/x", location)
    assert (caught.value.error_id, caught.value.exit_code) == ("redirect-refused", 7)


def test_release_address_is_the_cdn_path() -> None:
    assert (
        release_url("https://github.com/", "mann1x/opencoti", "c1+x", "a.llamafile")
        == "https://github.com/mann1x/opencoti/releases/download/c1%2Bx/a.llamafile"
    )


def test_mirror_stands_in_for_github() -> None:
    request = pinned("mann1x/opencoti c1 a.llamafile", OPENCOTI_MIRROR="http://127.0.0.1:8000/mirror/")
    url = "http://127.0.0.1:8000/mirror/mann1x/opencoti/releases/download/c1/a.llamafile"
    assert request.source == HttpSource(url=url)


def test_relative_file_pin_counts_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    request = pinned("file:./dist/a.llamafile v0 engine.llamafile")
    assert request.source == LocalSource(path=tmp_path / "dist" / "a.llamafile", named_by="a.pin")
    assert request.is_executable


@pytest.mark.parametrize(
    ("asset", "named_by"),
    [
        ("opencoti-llamafile-1-c1-linux-x86_64.llamafile", "OPENCOTI_LLAMAFILE_LOCAL"),
        ("engine.llamafile", "OPENCOTI_LLAMAFILE_LOCAL"),
        ("opencoti-embedder.llamafile", "OPENCOTI_EMBEDDER_LOCAL"),
        ("model.gguf", None),
    ],
)
def test_variables_replace_the_path_and_never_the_hash(asset: str, named_by: str | None) -> None:
    request = pinned(
        f"mann1x/opencoti c1 {asset}",
        OPENCOTI_LLAMAFILE_LOCAL="/local/llamafile",
        OPENCOTI_EMBEDDER_LOCAL="/local/embedder",
    )
    assert (request.name, request.sha256) == (asset, SHA)
    if named_by is None:
        assert isinstance(request.source, HttpSource)
        assert not request.is_executable
    else:
        assert isinstance(request.source, LocalSource)
        assert request.source.named_by == named_by


def test_file_of_an_address_gets_its_last_part_as_name_and_no_executable_bit() -> None:
    request = request_for_url("https://example.com/a/b.bin?x=1", SHA.upper())
    assert (request.name, request.sha256, request.is_executable) == ("b.bin", SHA, False)
    assert request_for_url("file:///tmp/a%20b", SHA, name="c").source == LocalSource(
        path=Path("/tmp/a b"), named_by="--url"
    )


@pytest.mark.parametrize(
    "name",
    ["../../x", "/abs", "a/../../b", "a\\..\\b", "C:\\x", "CON", "", ".", "..", "x\0y", "n" * 300,
     ".git/config"],
)  # fmt: skip
def test_case_b44_unsafe_names_are_refused(name: str) -> None:
    with pytest.raises(UsageError):
        request_for_url("https://example.com/a.bin", SHA, name=name)


@pytest.mark.parametrize(
    "segment", ["", "..", ".", "%2e%2e%2fx", "a%2fb", "a\\..\\b", "CON", "n" * 300, "x%00y", "C:x"]
)
def test_case_b44_unsafe_last_parts_of_an_address_are_refused(segment: str) -> None:
    assert last_segment(f"https://example.com/{segment}") == segment
    with pytest.raises(UsageError):
        request_for_url(f"https://example.com/{segment}", SHA)


@pytest.mark.parametrize("name", ["a.part", "a.part.json", "a.LOCK", "a.stamp"])
def test_names_of_our_own_side_files_are_refused(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        request_for_url("https://example.com/a", SHA, name=name)
    assert caught.value.error_id == "name-reserved"


@pytest.mark.parametrize("url", ["file://host/a", "file:", "file:///a%00b"])
def test_file_addresses_name_a_file_of_this_machine(url: str) -> None:
    with pytest.raises(UsageError):
        request_for_url(url, SHA, name="a")


@pytest.mark.parametrize("sha256", ["", "abc", "g" * 64, SHA + "\n"])
def test_hash_argument_must_be_one(sha256: str) -> None:
    with pytest.raises(UsageError) as caught:
        request_for_url("https://example.com/a", sha256)
    assert caught.value.error_id == "bad-sha256"


@pytest.mark.parametrize(
    ("environ", "error_id"),
    [
        ({"OPENCOTI_OFFLINE": "maybe"}, "bad-variable"),
        ({"OPENCOTI_TRIES": "many"}, "bad-variable"),
        ({"OPENCOTI_TRIES": "0"}, "bad-variable"),
        ({"OPENCOTI_TIMEOUT_S": "nan"}, "bad-variable"),
        ({"OPENCOTI_MIRROR": "http://example.com"}, "address-refused"),
    ],
)
def test_variables_that_make_no_sense_are_errors(environ: dict[str, str], error_id: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.from_environ(environ)
    assert caught.value.error_id == error_id


def test_settings_come_from_the_given_environment() -> None:
    settings = Settings.from_environ(
        {
            "OPENCOTI_CACHE_DIR": "/c",
            "OPENCOTI_OFFLINE": "1",
            "OPENCOTI_TRIES": "2",
            "OPENCOTI_TIMEOUT_S": "3",
        }
    )
    assert settings.artifacts == Path("/c/artifacts")
    assert (settings.is_offline, settings.limits.tries, settings.limits.timeout_s) == (True, 2, 3.0)


def test_cache_folder_is_the_system_one_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert paths.artifact_folder("ab" * 32, {}) == Path("/somewhere/opencoti/artifacts/abababababab")


@pytest.mark.parametrize(
    ("asset", "expected"),
    [
        ("opencoti-llamafile-0.5.0-g0c1e570-c1-linux-x86_64.llamafile", True),
        ("opencoti-llamafile-0.5.0-g0c1e570-c1-linux-x86_64-cuda12.llamafile", True),
        ("opencoti-embedder-0.10.1-x86_64.llamafile", True),
        ("opencoti-llamafile-0.5.0-g0c1e570-c1-linux-aarch64.llamafile", False),
        ("opencoti-llamafile-0.5.0-c1-linux-x86_64.llamafile.MANIFEST.json", False),
        ("model.gguf", False),
    ],
)
def test_only_engines_of_this_platform_are_tried(asset: str, expected: bool) -> None:
    assert suits_this_host(asset, system="linux", machine="AMD64") is expected


def test_elf_engines_are_not_tried_elsewhere() -> None:
    assert not suits_this_host(
        "opencoti-llamafile-1-c1-linux-x86_64.llamafile", system="darwin", machine="x86_64"
    )
    assert suits_this_host("opencoti-llamafile-1-c1-x86_64.llamafile", system="darwin", machine="x86_64")
