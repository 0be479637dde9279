"""Attestations against a Sigstore instance of our own: who signed, what they speak of, and hostile bytes."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opencoti.errors import ConfigError, VerificationError
from opencoti.hashing import sha256_bytes
from opencoti.trust import attestation
from opencoti.trust.attestation import Attestation, verify_attestation
from tests.fakes.sigstore_instance import Instance, Run, statement

REPO, TAG = "owner/project", "c7"
FILES = {"a": b"alpha", "b": b"beta"}
INSTANCE = Instance()
GOOD = INSTANCE.attest(Run(repository=REPO), statement(FILES))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sigstore") / "trusted_root.json"
    path.write_bytes(INSTANCE.trusted_root())
    return path


def verify(bundle: bytes, root: Path | None, *, repository: str = REPO, tag: str = TAG) -> Attestation:
    return verify_attestation(bundle, repository=repository, tag=tag, trusted_root=root)


def refused(bundle: bytes, root: Path | None, **asked: str) -> str:
    with pytest.raises(VerificationError) as caught:
        verify(bundle, root, **asked)
    assert (caught.value.error_id, caught.value.exit_code) == ("attestation-refused", 6)
    return caught.value.why


def test_good_attestation_speaks_of_its_files_and_of_no_other(root: Path) -> None:
    found = verify(GOOD, root)
    assert found.digests == {sha256_bytes(data) for data in FILES.values()}
    assert found.covers(b"alpha")
    assert not found.covers(b"alphA")


def test_run_on_the_tag_counts_too(root: Path) -> None:
    run = Run(repository=REPO, ref=f"refs/tags/{TAG}")
    assert verify(INSTANCE.attest(run, statement(FILES)), root).covers(b"beta")


@pytest.mark.parametrize(
    "run",
    [
        Run(repository="owner/fork"),
        Run(repository=REPO, workflow=".github/workflows/other.yml"),
        Run(repository=REPO, ref="refs/heads/feature"),
        Run(repository=REPO, ref="refs/tags/c8"),
        Run(repository=REPO, ref="refs/pull/1/merge"),
        Run(repository=REPO, issuer="https://accounts.example.com"),
        Run(repository=REPO, runner="self-hosted"),
    ],
    ids=lambda run: run.identity,
)
def test_anybody_else_and_any_other_run_is_refused(root: Path, run: Run) -> None:
    refused(INSTANCE.attest(run, statement(FILES)), root)


def test_another_repository_or_tag_than_asked_for_is_refused(root: Path) -> None:
    assert "does not match" in refused(GOOD, root, repository="owner/other")
    tagged = INSTANCE.attest(Run(repository=REPO, ref="refs/tags/c7"), statement(FILES))
    refused(tagged, root, tag="c8")


def test_bundle_of_another_instance_is_refused(root: Path) -> None:
    refused(Instance().attest(Run(repository=REPO), statement(FILES)), root)
    refused(GOOD, None)  # the public instance does not know this authority


@pytest.mark.parametrize("part", ["ca_key", "ct_key", "log_key"])
def test_each_key_of_the_instance_is_needed(root: Path, part: str) -> None:
    other = Instance(
        **{name: getattr(INSTANCE, name) for name in ("ca_key", "ct_key", "log_key") if name != part}
    )
    if part != "ca_key":
        other.ca, other.name = INSTANCE.ca, INSTANCE.name
    refused(other.attest(Run(repository=REPO), statement(FILES)), root)


def changed(edit: Callable[[dict[str, Any]], None]) -> bytes:
    document = json.loads(GOOD)
    edit(document)
    return json.dumps(document).encode()


def test_statement_that_was_not_signed_is_refused(root: Path) -> None:
    other = base64.b64encode(json.dumps(statement({"evil": b"evil"})).encode()).decode()
    refused(changed(lambda it: it["dsseEnvelope"].update(payload=other)), root)


def test_entry_of_another_bundle_is_refused(root: Path) -> None:
    other = json.loads(INSTANCE.attest(Run(repository=REPO), statement(FILES)))
    entries = other["verificationMaterial"]["tlogEntries"]
    refused(changed(lambda it: it["verificationMaterial"].update(tlogEntries=entries)), root)
    refused(changed(lambda it: it["verificationMaterial"].update(tlogEntries=[])), root)


@pytest.mark.parametrize(
    "document",
    [
        statement(FILES, predicateType="https://spdx.dev/Document/v2.3"),
        statement(FILES, _type="https://in-toto.io/Statement/v0.1"),
        statement(FILES, subject=[]),
        statement(FILES, subject="all"),
        statement(FILES, subject=[{"name": "a", "digest": {"sha512": "0" * 128}}]),
        statement(FILES, subject=[{"name": "a", "digest": {"sha256": "0" * 63}}]),
        [],
        "text",
    ],
)
def test_what_is_no_statement_about_builds_is_refused(root: Path, document: object) -> None:
    refused(INSTANCE.attest(Run(repository=REPO), document), root)


def test_payload_of_another_type_is_refused(root: Path) -> None:
    bundle = INSTANCE.attest(Run(repository=REPO), statement(FILES), kind="text/plain")
    assert "text/plain" in refused(bundle, root)


def test_root_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    for content in (None, b"", b"{}", b'{"mediaType": "x"}'):
        path = tmp_path / "root.json"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ConfigError) as caught:
            verify(GOOD, path)
        assert caught.value.error_id == "attestation-root-unusable"


def test_bundle_of_any_size_is_bounded(root: Path) -> None:
    assert "more than" in refused(b" " * (attestation.MAX_BUNDLE_BYTES + 1), root)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=60), st.integers(0, len(GOOD) - 1), st.integers(0, 40))
def test_damaged_bundles_raise_known_errors_only(root: Path, data: bytes, at: int, cut: int) -> None:
    damaged = GOOD[:at] + data + GOOD[at + cut :]
    try:
        found = verify(damaged, root)
    except VerificationError:
        return
    assert found.digests == {sha256_bytes(content) for content in FILES.values()}
