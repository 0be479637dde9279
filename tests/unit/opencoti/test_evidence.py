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


MEASURED: dict[str, Any] = {
    "model": {"name": "tiny.gguf", "sha256": "cd" * 32, "size": 1},
    "threads": 2,
    "promptTokens": 512,
    "completionTokens": 64,
    "cachedTokens": 0,
    "warmUps": 1,
    "samples": [{"promptS": 0.25, "completionS": 0.5, "wallS": 0.8}],
    "promptPerSecond": 2048.0,
    "completionPerSecond": 126.0,
}
OFFLOAD = {"device": "CUDA0", "layers": 3, "splits": 2}


def _bench(backend: str = "cpu", **change: Any) -> bytes:
    passed = {"kind": "bench", "passed": True, "failure": None, "backend": backend}
    return _bytes(**passed, measured=MEASURED | change)


def test_bench_of_a_processor_and_of_a_device_are_read_back() -> None:
    for evidence in (load_evidence(_bench()), load_evidence(_bench("cuda13", offload=OFFLOAD))):
        assert load_evidence(dump_evidence(evidence)) == evidence
        assert evidence.measured is not None
        assert evidence.measured.prompt_per_second == 2048.0


@pytest.mark.parametrize(
    ("backend", "change", "field"),
    [
        ("cpu", {"cachedTokens": 8}, "cached tokens are no work"),
        ("cpu", {"samples": []}, "samples"),
        ("cpu", {"samples": [{"promptS": 0.5, "completionS": 0.5, "wallS": 0.9}]}, "shorter"),
        ("cpu", {"samples": [{"promptS": 0, "completionS": 0.5, "wallS": 0.9}]}, "promptS"),
        ("cpu", {"promptPerSecond": 0}, "promptPerSecond"),
        ("cpu", {"completionTokens": 1}, "completionTokens"),
        ("cpu", {"offload": OFFLOAD}, "layers were on"),
        ("cuda13", {}, "layers were on"),
    ],
)
def test_bench_that_measured_nothing_is_refused(backend: str, change: dict[str, Any], field: str) -> None:
    """Cached tokens are no work, and a device that fell back to the CPU was not measured."""
    with pytest.raises(ConfigError) as caught:
        load_evidence(_bench(backend, **change))
    assert (caught.value.error_id, field in caught.value.why) == ("evidence-malformed", True)


def test_passed_bench_without_figures_is_refused() -> None:
    with pytest.raises(ConfigError):
        load_evidence(_bytes(kind="bench", passed=True, failure=None))


@pytest.mark.parametrize(
    ("device", "is_real"),
    [
        ({}, True),
        ({"emulator": "qemu-aarch64"}, False),
        ({"accelerators": [{"name": "A card", "isSoftware": False}]}, True),
        ({"accelerators": [{"name": "llvmpipe", "isSoftware": True}]}, False),
    ],
)
def test_what_is_played_is_no_device(device: dict[str, Any], is_real: bool) -> None:
    evidence = load_evidence(_bytes(device=FAILED["device"] | device))
    assert evidence.is_of_a_device is is_real
