"""Releases with an attestation beside them: required, remembered, missing, and somebody else's."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from opencoti import state
from opencoti.fetch.release import Trust
from opencoti.pins import ArtifactPin
from opencoti.trust.memory import Strength
from tests.fakes.http_faults import serving
from tests.fakes.releases import Publisher
from tests.fakes.sigstore_instance import Instance, Run, statement
from tests.integration.fetch.bench import CONTENT, SHA
from tests.integration.fetch.test_release import DOWNLOAD, NAME, SCOPE, Client, cli
from tests.unit.release.samples import REPO, TAG

BUNDLE = f"{DOWNLOAD}/{TAG}.sigstore.json"
INSTANCE = Instance()


class AttestingClient(Client):
    """A client that knows the Sigstore instance of the test, and a server with a bundle of it."""

    def trust(self) -> Trust:
        root = self.folder / "trusted_root.json"
        root.write_bytes(INSTANCE.trusted_root())
        return Trust(folder=self.trust_folder, anchor=self.anchor, now=lambda: self.now, sigstore_root=root)

    def resolve(self, trust: Trust | None = None, **wish: object):  # type: ignore[no-untyped-def]
        return super().resolve(trust or self.trust(), **wish)

    def publish(self, *, run: Run | None = None, **changes: object) -> None:
        """Publish the release, and a bundle about all files of it."""
        files = self.publisher.publish({NAME: CONTENT}, **changes)
        named = {path.removeprefix(f"{DOWNLOAD}/"): data for path, data in files.items() if DOWNLOAD in path}
        bundle = INSTANCE.attest(run or Run(repository=REPO), statement(named))
        self.server.files = {**files, BUNDLE: bundle}

    @property
    def strength(self) -> Strength | None:
        return state.load(self.trust_folder).memory(SCOPE).strength


@pytest.fixture
def client(tmp_path: Path) -> Iterator[AttestingClient]:
    with serving(b"") as server:
        client = AttestingClient(folder=tmp_path, server=server, publisher=Publisher())
        client.publish()
        yield client


def test_attested_release_is_that_strong_and_this_is_remembered(client: AttestingClient) -> None:
    resolved = client.resolve(require=Strength.ATTESTATION)
    assert resolved.strength is Strength.ATTESTATION
    assert client.get(require=Strength.ATTESTATION).read_bytes() == CONTENT
    assert client.strength is Strength.ATTESTATION


def test_it_is_checked_and_remembered_without_being_asked_for(client: AttestingClient) -> None:
    client.get()
    assert client.strength is Strength.ATTESTATION


@pytest.mark.parametrize("word", ["signature", "attestation"])
def test_strength_once_seen_is_never_lowered_silently(client: AttestingClient, word: str) -> None:
    client.get()
    del client.server.files[BUNDLE]
    expected = {"signature": "proof-weaker-than-before", "attestation": "proof-too-weak"}
    assert client.refused(require=Strength[word.upper()]) == expected[word]
    assert client.strength is Strength.ATTESTATION


def test_strength_is_lowered_on_purpose_for_one_time_only(client: AttestingClient) -> None:
    client.get()
    del client.server.files[BUNDLE]
    assert client.get(allow_weaker=True).read_bytes() == CONTENT
    assert client.strength is Strength.ATTESTATION
    assert client.refused() == "proof-weaker-than-before"


def test_missing_package_after_an_attested_release_is_told(
    client: AttestingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.get()
    monkeypatch.setitem(sys.modules, "sigstore", None)
    assert client.refused() == "attestation-unsupported"


def test_bundle_of_somebody_else_counts_as_none_until_one_is_needed(client: AttestingClient) -> None:
    client.publish(run=Run(repository="owner/fork"))
    assert client.refused(require=Strength.ATTESTATION) == "attestation-refused"
    assert client.get().read_bytes() == CONTENT
    assert client.strength is Strength.SIGNATURE
    assert "going on with the signatures alone" in client.recorded.text


def test_bundle_that_does_not_speak_of_the_index_proves_nothing(client: AttestingClient) -> None:
    only = {NAME: CONTENT}
    client.server.files[BUNDLE] = INSTANCE.attest(Run(repository=REPO), statement(only))
    assert client.refused(require=Strength.ATTESTATION) == "proof-too-weak"


def test_bundle_of_an_older_release_does_not_prove_a_newer_one(client: AttestingClient) -> None:
    old = client.server.files[BUNDLE]
    client.publish(sequence=9)
    client.server.files[BUNDLE] = old
    assert client.refused(require=Strength.ATTESTATION) == "proof-too-weak"


def test_nothing_is_fetched_or_remembered_where_it_is_refused(client: AttestingClient) -> None:
    client.publish(run=Run(repository="owner/fork"))
    client.server.seen.clear()
    client.refused(require=Strength.ATTESTATION)
    assert not any(request.path.endswith(NAME) for request in client.server.seen)
    assert client.strength is None


def test_pin_with_a_required_attestation(client: AttestingClient) -> None:
    pin = ArtifactPin.parse(f"{REPO} {TAG} {NAME} {SHA}", "pin")
    assert client.resolve(pin=pin, require=Strength.ATTESTATION).strength is Strength.ATTESTATION
    del client.server.files[BUNDLE]
    assert client.refused(pin=pin, require=Strength.ATTESTATION) == "proof-too-weak"


def test_command_requires_an_attestation(client: AttestingClient) -> None:
    client.publish(expires="2999-01-01T00:00:00Z")
    root = client.folder / "trusted_root.json"
    root.write_bytes(INSTANCE.trusted_root())
    words = ("get", "--latest", "--require", "attestation", "--no-try", "--sigstore-root", root)
    done = cli(client, *words)
    assert json.loads(done.stdout)["proof"] == "attestation", done.stderr
    refused = cli(client, *words[:-2])
    assert (refused.returncode, json.loads(refused.stdout)["error"]) == (6, "attestation-refused")
