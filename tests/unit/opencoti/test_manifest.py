"""The manifest model: what is refused, what survives, and that its published schema is fresh."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opencoti.errors import ConfigError, OpencotiError
from opencoti.manifest import dump_manifest, json_schema, load_manifest

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = (ROOT / "tests/unit/package/golden.MANIFEST.json").read_bytes()
KNOWN = {None, "json-malformed", "manifest-malformed", "manifest-schema-unknown"}
DOCUMENT: dict[str, Any] = json.loads(GOLDEN)


def error_id(action: Callable[[], object]) -> str | None:
    """Return the id of the expected error that `action` raises; any other exception goes on."""
    try:
        action()
    except OpencotiError as error:
        return error.error_id
    return None


def changed(change: Callable[[dict[str, Any]], object]) -> bytes:
    document = copy.deepcopy(DOCUMENT)
    change(document)
    return json.dumps(document).encode()


def setting(path: str, value: object) -> bytes:
    """Return the golden manifest with the field at a dotted path replaced."""

    def change(document: dict[str, Any]) -> None:
        *way, last = path.split(".")
        target: Any = document
        for step in way:
            target = target[int(step)] if isinstance(target, list) else target[step]
        target[int(last) if isinstance(target, list) else last] = value

    return changed(change)


def refused(data: bytes) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_manifest(data, "sample")
    assert caught.value.exit_code == 3
    return caught.value


def test_the_golden_manifest_survives_a_round_trip() -> None:
    manifest = load_manifest(GOLDEN)
    assert dump_manifest(manifest) == GOLDEN
    assert manifest.version_string == "opencoti-0.5.0-g0c1e570-c1"
    assert manifest.members[3].mode == "0755"
    member = manifest.member("llama-server")
    assert member is not None
    assert member.offset == 327680
    assert manifest.member("absent") is None


def test_unknown_fields_survive() -> None:
    def change(document: dict[str, Any]) -> None:
        document["future"] = {"a": [1, 2.5, None]}
        document["members"][0]["compressed"] = False
        document["chunks"]["tree"] = "x"

    again = json.loads(dump_manifest(load_manifest(changed(change))))
    assert again["future"] == {"a": [1, 2.5, None]}
    assert again["members"][0]["compressed"] is False
    assert again["chunks"]["tree"] == "x"


@pytest.mark.parametrize(
    "commit", ["", "unknown", "0c1e570", "0C1E57098BBA43AC29E6E3B677CDCEEBDD22334F", "1" * 40 + "\n", None, 1]
)
def test_a_commit_is_forty_hex_digits(commit: object) -> None:
    """Case B09."""
    for field in ("gitCommit", "sources.0.commit"):
        error = refused(setting(field, commit))
        assert error.error_id == "manifest-malformed"
        assert field in error.why


def test_a_version_that_names_another_commit_is_refused() -> None:
    """Case B09: the embedded commit is not the pinned one."""
    assert "which no source has" in refused(setting("sources.0.commit", "9" * 40)).why


def test_a_version_with_another_tag_is_refused() -> None:
    assert "does not end in -c2" in refused(setting("opencotiTag", "c2")).why


@pytest.mark.parametrize(
    "name",
    [
        "../../x",
        "/abs",
        "a/../../b",
        "a\\..\\b",
        "C:\\x",
        "CON",
        "",
        ".",
        "..",
        "x\0y",
        "a" * 300,
        ".git/config",
    ],
)
def test_names_that_are_no_plain_names_are_refused(name: str) -> None:
    """Case B44."""
    for field in ("name", "hostBinary.name", "dsos.0.name", "chunks.file", "patches.0.name"):
        assert refused(setting(field, name)).error_id == "manifest-malformed"
    if name != ".git/config":
        assert refused(setting("members.0.name", name)).error_id == "manifest-malformed"


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("sha256", "A" * 64, "sha256"),
        ("sha256", "a" * 63, "sha256"),
        ("size", -1, "size"),
        ("size", "459524", "size"),
        ("size", 459524.0, "size"),
        ("size", True, "size"),
        ("size", 65536, "behind the end"),
        ("lane", "exe", "lane"),
        ("windows_runnable", "no", "windows_runnable"),
        ("gitDirty", 0, "gitDirty"),
        ("members", [], "members"),
        ("sources", [], "sources"),
        ("members.1.offset", 65536, "overlaps"),
        ("members.0.offset", 100, "overlaps the loader"),
        ("members.0.offset", (1 << 63) - 1, "behind the end"),
        ("members.0.mode", "0777", "members.0.mode"),
        ("members.0.name", "LLAMA-server", "stands twice"),
        ("members.0.name", "llama-server", "stands twice"),
        ("dsos.0.name", "other.so", "no member with this sha256"),
        ("dsos.0.sha256", "0" * 64, "no member with this sha256"),
        ("dsos.0.glibcFloor", "2.28; rm", "glibcFloor"),
        ("hostBinary.name", "other", "is no member"),
        ("loader", None, "loader and a hostBinary"),
        ("chunks.file", "other.chunks", "chunks.file"),
        ("chunks.count", 9, "9 chunks"),
        ("chunks.chunkSize", 1, "chunkSize"),
        ("versionString", "opencoti-../x-c1", "versionString"),
    ],
)
def test_values_that_matter_are_checked(field: str, value: object, why: str) -> None:
    error = refused(setting(field, value))
    assert error.error_id == "manifest-malformed"
    assert why in error.why


def test_a_missing_field_is_named() -> None:
    error = refused(changed(lambda document: document.pop("gitCommit")))
    assert "gitCommit" in error.why


@pytest.mark.parametrize("schema", [None, "opencoti.manifest/2", "x", 1])
def test_another_schema_is_refused_as_such(schema: object) -> None:
    assert refused(setting("schema", schema)).error_id == "manifest-schema-unknown"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b'{"a": 1, "a": 2}', "stands twice"),
        (b'{"a": {"b": 1, "b": 1}}', "stands twice"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "Infinity"),
        (b'{"a": 1e999}', "too large"),
        (b'{"a": 9223372036854775808}', "64 bits"),
        (b'{"a": ' + b"9" * 100_000 + b"}", "64 bits"),
        (b"[" * 100_000, "deeper"),
        (b"[" * 40 + b"]" * 40, "deeper"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b'{"\\udfff": 1}', "surrogate"),
        (b"\xff", "not UTF-8"),
        (b"\xef\xbb\xbf{}", "line 1"),
        (b"", "line 1"),
        (b"{}x", "line 1"),
        (b" " * (9 << 20), "more than"),
    ],
)
def test_json_that_readers_disagree_about_is_refused(data: bytes, why: str) -> None:
    error = refused(data)
    assert error.error_id == "json-malformed"
    assert why in error.why


@settings(max_examples=300, deadline=2000)
@given(st.integers(0, len(GOLDEN) - 1), st.binary(max_size=6))
def test_damaged_manifests_raise_known_errors_only(at: int, new: bytes) -> None:
    for data in (GOLDEN[:at] + new + GOLDEN[at + len(new) :], GOLDEN[:at] + new, new):
        assert error_id(partial(load_manifest, data)) in KNOWN


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=300, deadline=2000)
@given(st.sampled_from(sorted(DOCUMENT)), values)
def test_any_value_in_any_field_raises_known_errors_only(field: str, value: object) -> None:
    data = setting(field, value)
    found = error_id(lambda: load_manifest(data))
    assert found in KNOWN
    if found is None:
        manifest = load_manifest(data)
        assert load_manifest(dump_manifest(manifest)) == manifest


def test_the_published_schema_is_fresh() -> None:
    """Write it again with `python -m ci.package.schema` when this fails."""
    assert (ROOT / "docs/reference/manifest.schema.json").read_bytes() == json_schema()
