"""The release index: what is refused, what survives."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opencoti.errors import ConfigError
from opencoti.index import dump_index, load_index
from tests.unit.release.samples import ARTIFACT, MANIFEST_NAME, index_bytes, index_dict, result_or_known_error

KNOWN = ("json-malformed", "index-malformed", "index-schema-unknown")


def setting(path: str, value: object) -> bytes:
    """Return the sample index with the field at a dotted path replaced."""
    document: Any = index_dict()
    *way, last = path.split(".")
    target = document
    for step in way:
        target = target[int(step)] if isinstance(target, list) else target[step]
    target[int(last) if isinstance(target, list) else last] = value
    return json.dumps(document).encode()


def refused(data: bytes) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_index(data)
    return caught.value


def test_the_sample_survives_a_round_trip() -> None:
    index = load_index(index_bytes())
    assert dump_index(index) == index_bytes()
    assert index.artifact(index.artifacts[0].sha256) is index.artifacts[0]
    assert index.artifact_of_manifest(MANIFEST_NAME) is index.artifacts[0]
    assert index.artifact("0" * 64) is None
    assert index.artifacts[0].requires.glibc == "2.28"


def test_unknown_fields_survive() -> None:
    """Case B27."""
    document = index_dict(future={"small": 1e-05, "text": "é"})
    document["artifacts"][0]["requires"]["npu"] = True
    again = json.loads(dump_index(load_index(json.dumps(document).encode())))
    assert again["future"] == {"small": 1e-05, "text": "é"}
    assert again["artifacts"][0]["requires"]["npu"] is True


PART = {"name": f"{ARTIFACT}.part1", "size": 10, "sha256": "c" * 64}


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("product", "Open Coti", "product"),
        ("repo", "opencoti", "repo"),
        ("tag", "../c1", "tag"),
        ("versionString", "x", "versionString"),
        ("lane", "auto", "lane"),
        ("sequence", 0, "sequence"),
        ("sequence", "5", "sequence"),
        ("sequence", 1 << 53, "sequence"),
        ("created", "2026-05-01", "created"),
        ("expires", "2026-05-01T00:00:00Z", "not after"),
        ("expires", "2026-02-30T00:00:00Z", "expires"),
        ("planSha256", "a" * 63, "planSha256"),
        ("artifacts", [], "artifacts"),
        ("artifacts.0.name", "../x", "name"),
        ("artifacts.0.name", "other", "manifest.name is"),
        ("artifacts.0.manifest.name", "other.MANIFEST.json", "manifest.name is"),
        ("artifacts.0.manifest.sha256", "A" * 64, "sha256"),
        ("artifacts.0.size", -1, "size"),
        ("artifacts.0.parts", [PART], "one part"),
        ("artifacts.0.parts", [PART, PART], "add up"),
        ("artifacts.0.requires.glibc", "2.x", "glibc"),
        ("artifacts.0.requires.backends.0.minDriver", "", "minDriver"),
        ("evidence.0.artifactSha256", "0" * 64, "no artifact"),
        ("evidence.0.name", "Opencoti-Release.json", "stands twice"),
        ("evidence.0.name", ARTIFACT, "stands twice"),
        ("waivers.0.reason", "", "reason"),
    ],
)
def test_values_that_matter_are_checked(field: str, value: object, why: str) -> None:
    error = refused(setting(field, value))
    assert error.error_id == "index-malformed"
    assert why in error.why


def test_parts_that_add_up_are_taken() -> None:
    size = index_dict()["artifacts"][0]["size"]
    parts = [PART, PART | {"name": f"{ARTIFACT}.part2", "size": size - 10}]
    assert len(load_index(setting("artifacts.0.parts", parts)).artifacts[0].parts) == 2


@pytest.mark.parametrize("schema", [None, "opencoti.release/2", "opencoti.manifest/1", 1])
def test_another_schema_is_refused_as_such(schema: object) -> None:
    assert refused(setting("schema", schema)).error_id == "index-schema-unknown"


def test_a_key_twice_is_refused() -> None:
    """Case B27."""
    assert refused(index_bytes().replace(b'"tag"', b'"repo"', 1)).error_id == "json-malformed"


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200)
@given(st.sampled_from(sorted(index_dict())), values)
def test_any_value_in_any_field_raises_known_errors_only(field: str, value: object) -> None:
    index = result_or_known_error(lambda: load_index(setting(field, value)), *KNOWN)
    if index is not None:
        assert load_index(dump_index(index)) == index


@settings(max_examples=200)
@given(st.integers(0, 2000), st.integers(0, 60), st.binary(max_size=20))
def test_damaged_indexes_raise_known_errors_only(at: int, gone: int, new: bytes) -> None:
    data = index_bytes()
    for damaged in (data[:at] + new + data[at + gone :], new):
        result_or_known_error(partial(load_index, damaged), *KNOWN)
