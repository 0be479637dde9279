"""Artifact pins: both forms, comments, and everything that must be refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencoti.errors import ConfigError, OpencotiError, VerificationError
from opencoti.pins import ArtifactPin, FileOrigin, RepositoryOrigin

SHA = "ab" * 32
UNSAFE_NAMES = [
    "../../x", "/abs", "a/../../b", "a\\..\\b", "C:\\x", "CON", ".", "..", "x\0y", "n" * 300, ".git/config",
]  # fmt: skip


def test_repository_form_with_comments_and_blank_lines() -> None:
    pin = ArtifactPin.parse(f"# engine\n\n  mann1x/opencoti c3 engine.llamafile {SHA}  \n", "x")
    assert pin.origin == RepositoryOrigin(repository="mann1x/opencoti")
    assert (pin.tag, pin.asset, pin.sha256) == ("c3", "engine.llamafile", SHA)


def test_file_form_keeps_a_path_with_blanks_as_written() -> None:
    pin = ArtifactPin.parse(f"file:./my builds/a.llamafile\tv0 engine.llamafile {SHA.upper()}", "x")
    assert pin.origin == FileOrigin(path="./my builds/a.llamafile")
    assert pin.sha256 == SHA


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "found 0"),
        (f"a/b t n {SHA}\na/b t n {SHA}\n", "found 2"),
        ("a/b t n", "found 3 fields"),
        (f"a/b t n {SHA[:-1]}", "not 64 hex digits"),
        (f"a/b t n {SHA[:-1]}g", "not 64 hex digits"),
        (f"a/b t/../u n {SHA}", "tag"),
        (f"a/b ../t n {SHA}", "tag"),
        (f"a/.. t n {SHA}", "neither"),
        (f"a/b/c t n {SHA}", "neither"),
        (f"-a/b t n {SHA}", "neither"),
        (f"https://example.com/a t n {SHA}", "neither"),
        (f"file: t n {SHA}", "no usable path"),
    ],
)
def test_malformed_pins_say_what_is_wrong(text: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ArtifactPin.parse(text, "some.pin")
    assert (caught.value.error_id, caught.value.exit_code) == ("artifact-pin-malformed", 3)
    assert "some.pin" in caught.value.what
    assert why in caught.value.why


@pytest.mark.parametrize("name", UNSAFE_NAMES)
@pytest.mark.parametrize("origin", ["a/b", "file:/tmp/x"])
def test_case_b44_unsafe_asset_names_are_refused(name: str, origin: str) -> None:
    with pytest.raises(VerificationError) as caught:
        ArtifactPin.parse(f"{origin} t {name} {SHA}", "some.pin")
    assert (caught.value.error_id, caught.value.exit_code) == ("unsafe-name", 6)


def test_shipped_pin_says_that_there_is_no_release_and_what_to_do() -> None:
    with pytest.raises(ConfigError) as caught:
        ArtifactPin.load_shipped()
    assert (caught.value.error_id, caught.value.exit_code) == ("no-release", 3)
    assert "./noxw -s quickstart" in caught.value.hint
    assert "--pin FILE" in caught.value.hint


@pytest.mark.parametrize(
    ("data", "error_id"),
    [
        (None, "artifact-pin-missing"),
        (b"\xff\xfe", "artifact-pin-malformed"),
        (b"#" * 70_000, "artifact-pin-malformed"),
    ],
)
def test_unreadable_pin_files(tmp_path: Path, data: bytes | None, error_id: str) -> None:
    path = tmp_path / "some.pin"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        ArtifactPin.load(path)
    assert caught.value.error_id == error_id


@given(st.text(max_size=300))
def test_any_text_is_a_pin_or_an_error_of_ours(text: str) -> None:
    try:
        asset = ArtifactPin.parse(text, "x").asset
    except OpencotiError:
        asset = ""
    assert "/" not in asset
