"""Evidence as a border: what is written is read back, what contradicts itself is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from opencoti.errors import ConfigError
from opencoti.evidence import dump_evidence, load_evidence

FAILED: dict[str, Any] = {
    "schema": "opencoti.evidence/1",
    "kind": "smoke",
    "artifact": {"name": "a.llamafile", "sha256": "ab" * 32, "size": 7},
    "device": {"cpuModel": "Some CPU", "kernel": "Linux 6"},
    "backend": "cpu",
    "started": "2026-01-02T03:04:05Z",
    "passed": False,
    "failure": {"error": "smoke-died", "what": "it died"},
    "notTested": ["GPU offload"],
    "later": {"field": 1},
}


def _bytes(**change: Any) -> bytes:
    return json.dumps(FAILED | change).encode()


def test_what_is_written_is_read_back_with_unknown_fields() -> None:
    evidence = load_evidence(_bytes())
    assert evidence.not_tested == ("GPU offload",)
    assert load_evidence(dump_evidence(evidence)) == evidence
    assert json.loads(dump_evidence(evidence))["later"] == {"field": 1}


@pytest.mark.parametrize(
    ("change", "error_id", "field"),
    [
        ({"schema": "opencoti.evidence/9"}, "evidence-schema-unknown", "opencoti.evidence/9"),
        ({"passed": True}, "evidence-malformed", "no failure"),
        ({"failure": None}, "evidence-malformed", "says why"),
        ({"passed": 1}, "evidence-malformed", "passed"),
        ({"started": "yesterday"}, "evidence-malformed", "started"),
        (
            {"artifact": {"name": "a", "sha256": "AB" * 32, "size": 7}},
            "evidence-malformed",
            "artifact.sha256",
        ),
        ({"artifact": {"name": "a", "sha256": "ab" * 32, "size": -1}}, "evidence-malformed", "artifact.size"),
    ],
)
def test_what_contradicts_itself_is_refused(change: dict[str, Any], error_id: str, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_evidence(_bytes(**change), "x.json")
    assert caught.value.error_id == error_id
    assert "x.json" in caught.value.what
    assert field in caught.value.why


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'{"schema": 1, "schema": 2}'])
def test_what_is_no_document_is_refused(data: bytes) -> None:
    with pytest.raises(ConfigError):
        load_evidence(data)
