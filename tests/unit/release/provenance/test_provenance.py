"""Envelopes and statements: signed, read strictly, and refused when anything differs."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from opencoti.errors import OpencotiError
from opencoti.jsonio import render_json
from release.keys import SecretKey
from release.provenance.dsse import PAYLOAD_TYPE, open_envelope, sign_envelope, signed_bytes
from release.provenance.make import public_key_pem
from release.provenance.statement import Builder, read_subjects
from tests.unit.release.samples import trusted_root

KEY = SecretKey.generate()
PAYLOAD = b'{"a": 1}'


def test_signed_bytes_are_those_of_the_protocol() -> None:
    """The example of the DSSE specification."""
    assert signed_bytes("http://example.com/HelloWorld", b"hello world") == (
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )


def test_envelope_opens_with_the_right_key_only() -> None:
    data = sign_envelope(PAYLOAD, KEY)
    assert data.count(b"\n") == 1
    opened = open_envelope(data, keys=trusted_root(KEY), what="x")
    assert (opened.payload, opened.key.public) == (PAYLOAD, KEY.public)
    with pytest.raises(OpencotiError) as caught:
        open_envelope(data, keys=trusted_root(SecretKey.generate()), what="x")
    assert (caught.value.error_id, caught.value.exit_code) == ("envelope-unsigned", 6)


def test_key_in_use_counts_before_a_retired_one() -> None:
    old = SecretKey.generate()
    one, two = (json.loads(sign_envelope(PAYLOAD, key)) for key in (old, KEY))
    both = json.dumps(one | {"signatures": one["signatures"] + two["signatures"]}).encode()
    assert open_envelope(both, keys=trusted_root((old, 3), KEY), what="x").key.public == KEY.public
    opened = open_envelope(sign_envelope(PAYLOAD, old), keys=trusted_root((old, 3), KEY), what="x")
    assert opened.key.last_sequence == 3


@pytest.mark.parametrize("field", ["payload", "payloadType", "sig"])
def test_every_changed_field_breaks_the_signature(field: str) -> None:
    envelope = json.loads(sign_envelope(PAYLOAD, KEY))
    if field == "sig":
        raw = bytearray(base64.b64decode(envelope["signatures"][0]["sig"]))
        raw[0] ^= 1
        envelope["signatures"][0]["sig"] = base64.b64encode(raw).decode()
    elif field == "payload":
        envelope["payload"] = base64.b64encode(PAYLOAD + b" ").decode()
    else:
        envelope["payloadType"] += "x"
    with pytest.raises(OpencotiError) as caught:
        open_envelope(json.dumps(envelope).encode(), keys=trusted_root(KEY), what="x")
    assert caught.value.error_id == "envelope-unsigned"


def test_other_payload_of_ours_is_no_statement() -> None:
    signature = KEY.sign_bytes(signed_bytes("text/plain", PAYLOAD))
    envelope = {
        "payloadType": "text/plain",
        "payload": base64.b64encode(PAYLOAD).decode(),
        "signatures": [{"keyid": "", "sig": base64.b64encode(signature).decode()}],
    }
    with pytest.raises(OpencotiError) as caught:
        open_envelope(json.dumps(envelope).encode(), keys=trusted_root(KEY), what="x")
    assert caught.value.error_id == "envelope-malformed"


@pytest.mark.parametrize(
    "data",
    [
        b"[]",
        b"{}",
        b"{}\n{}\n",
        b'{"payloadType": "a", "payload": "!", "signatures": [{"sig": "AA=="}]}',
        b'{"payloadType": "a", "payload": "", "signatures": []}',
    ],
)
def test_what_is_no_envelope_is_refused(data: bytes) -> None:
    with pytest.raises(OpencotiError) as caught:
        open_envelope(data, keys=trusted_root(KEY), what="x")
    assert (caught.value.error_id, caught.value.exit_code) == ("envelope-malformed", 6)


@pytest.mark.parametrize(
    "change",
    [{"_type": "other"}, {"predicateType": "other"}, {"subject": [{"name": "a"}]}, {"subject": None}],
)
def test_statement_of_another_kind_is_refused(change: dict[str, Any]) -> None:
    good = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "a", "digest": {"sha256": "0" * 64}}],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {},
    }
    assert read_subjects(render_json(good), "x") == {"a": "0" * 64}
    with pytest.raises(OpencotiError) as caught:
        read_subjects(render_json(good | change), "x")
    assert caught.value.error_id == "statement-malformed"


def test_minisign_key_becomes_a_pem_of_the_same_key() -> None:
    pem = public_key_pem(KEY.public)
    assert pem.startswith("-----BEGIN PUBLIC KEY-----\n")
    loaded = load_pem_public_key(pem.encode())
    loaded.verify(KEY.sign_bytes(b"x"), b"x")  # type: ignore[union-attr, call-arg]


def test_builder_is_the_workflow_or_says_that_it_is_none() -> None:
    environ = {
        "GITHUB_ACTIONS": "true",
        "GITHUB_REPOSITORY": "a/b",
        "GITHUB_RUN_ID": "7",
        "GITHUB_RUN_ATTEMPT": "2",
        "GITHUB_WORKFLOW_REF": "a/b/.github/workflows/release.yml@refs/tags/c1",
    }
    found = Builder.from_environ(environ, "a/b")
    assert found.builder_id == "https://github.com/a/b/.github/workflows/release.yml@refs/tags/c1"
    assert found.invocation_id == "https://github.com/a/b/actions/runs/7/attempts/2"
    assert Builder.from_environ({}, "a/b") == Builder(builder_id="https://github.com/a/b/local-build")


def test_type_of_the_payload_is_that_of_in_toto() -> None:
    assert PAYLOAD_TYPE == "application/vnd.in-toto+json"
