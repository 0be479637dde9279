"""Build identity: complete, well-formed, the expected one (case B09)."""

from __future__ import annotations

import pytest

from ci.smoke.identity import Expected, check_identity, from_props, from_version_output
from opencoti.errors import VerificationError

GOOD = {
    "version_string": "opencoti-0.5.0-g0123456-c1",
    "patch_set": "ab" * 32,
    "upstream_commit": "0123456789" * 4,
}
WANTED = Expected(
    version_string=GOOD["version_string"],
    patch_set=GOOD["patch_set"],
    upstream_commits=frozenset({GOOD["upstream_commit"], "e" * 40}),
)


def test_the_expected_identity_passes() -> None:
    assert check_identity(GOOD, WANTED, source="/props").model_dump() == GOOD
    assert check_identity(GOOD, Expected(), source="/props").patch_set == GOOD["patch_set"]


@pytest.mark.parametrize("field", sorted(GOOD))
@pytest.mark.parametrize("value", ["", "unknown", "unidentified", None, "0" * 39, " " + "0" * 64])
def test_an_empty_or_unknown_field_is_no_identity_case_b09(field: str, value: str | None) -> None:
    values = {key: text for key, text in GOOD.items() if key != field}
    if value is not None:
        values[field] = value
    with pytest.raises(VerificationError) as caught:
        check_identity(values, Expected(), source="/props")
    assert caught.value.error_id == "smoke-no-build-identity"
    assert caught.value.what == "no build identity in /props"
    assert field in caught.value.why


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version_string", "opencoti-0.5.0-g0123456-c2"),
        ("patch_set", "cd" * 32),
        ("upstream_commit", "d" * 40),
    ],
)
def test_another_build_is_named(field: str, value: str) -> None:
    with pytest.raises(VerificationError) as caught:
        check_identity(GOOD | {field: value}, WANTED, source="--version")
    assert caught.value.error_id == "smoke-other-build"
    assert value in caught.value.why


def test_version_output_is_read_line_by_line() -> None:
    text = (
        "version: 0.5.0-dev (build 0)\nopencoti: opencoti-0.5.0-g0123456-c1\r\n"
        f"patch set: {GOOD['patch_set']}\n  upstream commit: {GOOD['upstream_commit']}\nopencoti: second\n"
    )
    assert from_version_output(text) == GOOD


@pytest.mark.parametrize("text", ["", "opencoti:", "patch set", "version: 1"])
def test_output_without_identity_gives_nothing(text: str) -> None:
    assert from_version_output(text) == {}


@pytest.mark.parametrize(
    "document", [None, [], {}, {"opencoti": None}, {"opencoti": "x"}, {"opencoti": {"patch_set": 7}}]
)
def test_props_of_any_form_give_what_is_there(document: object) -> None:
    assert from_props(document) == {}


def test_props_are_read() -> None:
    assert from_props({"opencoti": GOOD | {"more": "x"}}) == GOOD
