"""Signed releases from end to end: a directory of published files, a client with a root, what goes wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from opencoti import state
from opencoti.errors import OpencotiError
from opencoti.fetch.choose import Wish
from opencoti.fetch.download import Tools
from opencoti.fetch.get import fetch
from opencoti.fetch.release import ReleaseWish, Resolved, Resolver, Trust
from opencoti.fetch.settings import Settings
from opencoti.fetch.transport import HttpxTransport
from opencoti.pins import ArtifactPin
from opencoti.trust.chain import TrustedRoot
from opencoti.trust.memory import Scope, Strength
from opencoti.trust.shipped import shipped_root
from release.keys import SecretKey
from tests.conftest import RecordedConsole
from tests.fakes.http_faults import Fault, FaultServer, serving
from tests.fakes.releases import CHUNK, Publisher, artifact_entry, sidecars
from tests.integration.fetch.bench import CONTENT, LIMITS, SHA, run_cli
from tests.unit.release.samples import NOW, REPO, TAG

NAME = "engine.llamafile"
SCOPE = Scope(repo=REPO, product="opencoti")
DOWNLOAD = f"/{REPO}/releases/download/{TAG}"
LATEST = f"/{REPO}/releases/latest/download"


@dataclass
class Client:
    """One user's machine against one server."""

    folder: Path
    server: FaultServer
    publisher: Publisher
    recorded: RecordedConsole = field(default_factory=RecordedConsole)
    now: datetime = NOW
    anchor: TrustedRoot = field(init=False)

    def __post_init__(self) -> None:
        self.anchor = self.publisher.root()

    @property
    def trust_folder(self) -> Path:
        return self.folder / "trust"

    def settings(self) -> Settings:
        base = f"http://127.0.0.1:{self.server.port}"
        return Settings(artifacts=self.folder / "artifacts", base_url=base, limits=LIMITS)

    def resolve(self, trust: Trust | None = None, **wish: Any) -> Resolved:
        trust = trust or Trust(folder=self.trust_folder, anchor=self.anchor, now=lambda: self.now)
        with HttpxTransport(timeout_s=LIMITS.timeout_s) as transport:
            tools = Tools(transport=transport, sleep=lambda _: None)
            resolver = Resolver(self.settings(), trust, self.recorded.console, tools)
            if (pin := wish.pop("pin", None)) is not None:
                return resolver.resolve_pin(pin, wish["require"])
            return resolver.resolve(ReleaseWish(repository=REPO, **wish))

    def get(self, **wish: Any) -> Path:
        resolved = self.resolve(**wish)
        done = fetch(
            resolved.request,
            self.settings(),
            self.recorded.console,
            find_chunks=resolved.find_blueprint,
            allow_trial=False,
        )
        resolved.remember()
        return done.path

    def refused(self, **wish: Any) -> str:
        with pytest.raises(OpencotiError) as caught:
            self.get(**wish)
        return caught.value.error_id

    def seen_sequences(self) -> list[int]:
        return [seen.sequence for seen in state.load(self.trust_folder).memory(SCOPE).seen]


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    publisher = Publisher()
    with serving(b"") as server:
        server.files = publisher.publish({NAME: CONTENT})
        yield Client(folder=tmp_path, server=server, publisher=publisher)


@pytest.fixture
def without_sigstore(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package that checks attestations is not installed: Python's own mark for that."""
    monkeypatch.setitem(sys.modules, "sigstore", None)


@pytest.mark.usefixtures("without_sigstore")
def test_newest_release_is_verified_chosen_fetched_and_remembered(client: Client) -> None:
    assert client.get().read_bytes() == CONTENT
    assert [request.path for request in client.server.seen] == [
        f"{LATEST}/opencoti-release.json",
        f"{LATEST}/opencoti-release.json.minisig",
        f"{LATEST}/root-2.json",
        f"{DOWNLOAD}/{NAME}.MANIFEST.json",
        f"{DOWNLOAD}/{NAME}.MANIFEST.json.minisig",
        f"{DOWNLOAD}/{NAME}.chunks",
        f"{DOWNLOAD}/{NAME}",
    ]
    assert client.seen_sequences() == [5]
    assert state.load(client.trust_folder).memory(SCOPE).strength is Strength.SIGNATURE


def test_second_time_no_chunk_table_and_no_artifact_are_asked_for(client: Client) -> None:
    client.get(tag=TAG)
    client.server.seen.clear()
    assert client.get(tag=TAG).read_bytes() == CONTENT
    assert not any(request.path.endswith((NAME, ".chunks")) for request in client.server.seen)


def test_the_shipped_root_lists_no_key_and_nobody_is_asked(client: Client) -> None:
    trust = Trust(folder=client.trust_folder, anchor=shipped_root())
    with pytest.raises(OpencotiError) as caught:
        client.resolve(trust)
    assert (caught.value.error_id, caught.value.exit_code) == ("trust-no-keys", 6)
    assert client.server.seen == []


def test_signature_of_somebody_else_and_none_at_all_are_refused(client: Client) -> None:
    client.server.files = Publisher().publish({NAME: CONTENT})
    assert client.refused() == "signature-key-unknown"
    client.server.files = client.publisher.publish({NAME: CONTENT})
    del client.server.files[f"{LATEST}/opencoti-release.json.minisig"]
    assert client.refused() == "signature-absent"
    assert not client.trust_folder.exists()


@pytest.mark.parametrize("name", ["opencoti-release.json", f"{NAME}.MANIFEST.json", f"{NAME}.chunks", NAME])
def test_one_changed_byte_anywhere_is_refused_and_nothing_is_remembered(client: Client, name: str) -> None:
    for path, data in client.server.files.items():
        if path.endswith(f"/{name}"):
            client.server.files[path] = data[:-3] + bytes([data[-3] ^ 1]) + data[-2:]
    expected = {NAME: "hash-mismatch", f"{NAME}.chunks": "chunks-mismatch"}.get(name, "signature-mismatch")
    assert client.refused() == expected
    assert client.seen_sequences() == []
    assert not list(client.folder.rglob(NAME))


def test_failed_transfer_remembers_nothing(client: Client) -> None:
    del client.server.files[f"{DOWNLOAD}/{NAME}"]
    assert client.refused() == "not-found"
    assert client.seen_sequences() == []


def test_going_back_needs_the_word_for_it(client: Client) -> None:
    client.server.files = client.publisher.publish({NAME: CONTENT}, sequence=9)
    client.get()
    client.server.files = client.publisher.publish({NAME: CONTENT}, sequence=8)
    assert client.refused() == "index-rollback"
    assert client.get(allow_downgrade=True).read_bytes() == CONTENT
    assert client.seen_sequences() == [9]


def test_expired_index_is_an_error_or_a_warning(client: Client) -> None:
    client.now = datetime(2027, 1, 1, tzinfo=NOW.tzinfo)
    assert client.refused() == "index-expired"
    assert client.get(allow_expired=True).read_bytes() == CONTENT
    assert "out of date" in client.recorded.text


def test_another_tag_than_asked_for_is_refused(client: Client) -> None:
    for path in list(client.server.files):
        client.server.files[path.replace("/c1/", "/c9/")] = client.server.files[path]
    assert client.refused(tag="c9") == "wrong-tag"


@pytest.mark.usefixtures("without_sigstore")
def test_attestation_that_cannot_be_checked_is_not_pretended(client: Client) -> None:
    with pytest.raises(OpencotiError) as caught:
        client.get(require=Strength.ATTESTATION)
    assert (caught.value.error_id, caught.value.exit_code) == ("attestation-unsupported", 4)
    assert "opencoti[attest]" in caught.value.hint


def test_new_root_beside_the_release_is_followed_and_kept(client: Client) -> None:
    client.get()
    client.publisher.change_key(SecretKey.generate(), last_sequence=5)
    client.server.files = client.publisher.publish({NAME: CONTENT}, sequence=6)
    assert client.get().read_bytes() == CONTENT
    assert sorted(client.seen_sequences()) == [5, 6]
    assert (client.trust_folder / "root-2.json").exists()
    for path in [path for path in client.server.files if "root-2" in path]:
        del client.server.files[path]
    assert client.get().read_bytes() == CONTENT


def test_root_that_the_old_one_did_not_sign_is_refused(client: Client) -> None:
    stranger = Publisher()
    stranger.change_key(SecretKey.generate(), last_sequence=5)
    client.publisher.roots = stranger.roots
    client.server.files = client.publisher.publish({NAME: CONTENT})
    assert client.refused() == "root-threshold"


def test_artifact_for_another_host_is_not_taken_and_the_reasons_are_told(client: Client) -> None:
    other = "other.llamafile"
    entries = [artifact_entry(other, CONTENT[:5000], arch="vax"), artifact_entry(NAME, CONTENT)]
    client.server.files = client.publisher.publish({NAME: CONTENT, other: CONTENT[:5000]}, entries)
    resolved = client.resolve()
    assert resolved.request.name == NAME
    assert resolved.choice is not None
    assert [verdict.is_taken for verdict in resolved.choice.verdicts] == [False, True]
    assert "it is for vax" in resolved.choice.verdicts[0].reason
    with pytest.raises(OpencotiError) as caught:
        client.resolve(wish=Wish(backend="cuda13"))
    assert (caught.value.error_id, caught.value.exit_code) == ("nothing-for-this-host", 4)


def test_artifact_in_parts_becomes_one_file(client: Client) -> None:
    cut = 5 * CHUNK
    parts = {f"{NAME}.1": CONTENT[:cut], f"{NAME}.2": CONTENT[cut:]}
    entry = artifact_entry(NAME, CONTENT)
    entry["parts"] = [{"name": name, "size": len(data), "sha256": "0" * 64} for name, data in parts.items()]
    files = client.publisher.publish({NAME: CONTENT}, [entry])
    del files[f"{DOWNLOAD}/{NAME}"]
    client.server.files = files | {f"{DOWNLOAD}/{name}": data for name, data in parts.items()}
    assert client.get().read_bytes() == CONTENT
    assert client.server.ranges[-2:] == [f"bytes=0-{cut - 1}", f"bytes=0-{len(CONTENT) - cut - 1}"]


def test_pin_with_a_required_signature(client: Client) -> None:
    pin = ArtifactPin.parse(f"{REPO} {TAG} {NAME} {SHA}", "pin")
    assert client.get(pin=pin, require=Strength.SIGNATURE).read_bytes() == CONTENT
    assert not any(request.path.endswith("opencoti-release.json") for request in client.server.seen)
    wrong = ArtifactPin.parse(f"{REPO} {TAG} {NAME} {'0' * 64}", "pin")
    assert client.refused(pin=wrong, require=Strength.SIGNATURE) == "wrong-artifact"


# --- the command ------------------------------------------------------------------------------------------


def cli(client: Client, *words: str | Path) -> Any:
    env = {
        "OPENCOTI_MIRROR": f"http://127.0.0.1:{client.server.port}",
        "OPENCOTI_CACHE_DIR": str(client.folder),
    }
    root = client.folder / "root.json"
    root.write_bytes(client.publisher.root_document())
    return run_cli(words[0], "--trust-root", root, "--json", *words[1:], env=env)


def test_command_gets_a_release_and_explains_the_choice(client: Client) -> None:
    client.server.files = client.publisher.publish({NAME: CONTENT}, expires="2999-01-01T00:00:00Z")
    told = json.loads(cli(client, "explain", "--tag", TAG).stdout)
    assert [item["is_taken"] for item in told["candidates"]] == [True]
    assert told["needs_network"]
    done = json.loads(cli(client, "get", "--tag", TAG).stdout)
    assert (done["action"], done["proof"], done["sha256"]) == ("downloaded", "signature", SHA)
    assert json.loads(cli(client, "verify", "--latest").stdout)["is_right"]


def test_explanation_tells_what_each_backend_would_be_for(client: Client) -> None:
    needs = [{"backend": "cpu"}, {"backend": "cuda13", "archs": ["sm_75"], "min_driver": "9999"}]
    client.server.files = client.publisher.publish(
        {NAME: CONTENT}, [artifact_entry(NAME, CONTENT, backends=needs)], expires="2999-01-01T00:00:00Z"
    )
    done = cli(client, "explain", "--latest")
    told = json.loads(done.stdout)
    (candidate,) = told["candidates"]
    assert [(use["backend"], use["rank"]) for use in candidate["uses"]] == [("cuda13", 0)]
    assert set(told["hardware"]) >= {"gpus", "notes", "memory"}


def test_command_with_the_shipped_root_fails_closed(client: Client) -> None:
    done = run_cli("get", "--latest", env={"OPENCOTI_CACHE_DIR": str(client.folder)})
    assert done.returncode == 6
    assert "lists no signing key" in done.stderr
    assert "use a pin with its own SHA-256" in done.stderr


def test_plain_pin_after_a_signed_release_says_that_it_proves_less(client: Client, tmp_path: Path) -> None:
    client.get()
    pin = tmp_path / "some.pin"
    pin.write_text(f"{REPO} {TAG} {NAME} {SHA}\n")
    env = {
        "OPENCOTI_MIRROR": f"http://127.0.0.1:{client.server.port}",
        "OPENCOTI_CACHE_DIR": str(client.folder),
    }
    done = run_cli("--pin", pin, env=env)
    assert done.returncode == 0
    assert "were proven by signature before" in done.stderr


def test_pin_of_a_repository_uses_the_chunks_beside_the_asset(client: Client, tmp_path: Path) -> None:
    pin = tmp_path / "some.pin"
    pin.write_text(f"{REPO} {TAG} {NAME} {SHA}\n")
    env = {"OPENCOTI_MIRROR": f"http://127.0.0.1:{client.server.port}", "OPENCOTI_CACHE_DIR": str(tmp_path)}
    old = tmp_path / "old"
    old.write_bytes(bytes([CONTENT[0] ^ 1]) + CONTENT[1:])
    done = run_cli("--pin", pin, "--seed-from", old, "--json", env=env)
    data = json.loads(done.stdout)
    assert (data["transferred_bytes"], data["seeded_bytes"]) == (CHUNK, len(CONTENT) - CHUNK)
    path = Path(data["path"])
    path.write_bytes(CONTENT[:-1] + b"?")
    repaired = json.loads(run_cli("repair", "--pin", pin, "--json", env=env).stdout)
    assert repaired["transferred_bytes"] == len(CONTENT) % CHUNK
    assert path.read_bytes() == CONTENT


def test_url_with_a_manifest_by_address_and_by_path(client: Client, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{client.server.port}{DOWNLOAD}/{NAME}"
    words = ("--url", url, "--sha256", SHA, "--json")
    done = run_cli(*words, "--dest", tmp_path / "a", "--manifest", f"{url}.MANIFEST.json")
    assert json.loads(done.stdout)["transferred_bytes"] == len(CONTENT)
    assert client.server.ranges[-1] == f"bytes=0-{len(CONTENT) - 1}"
    for name, data in sidecars(NAME, CONTENT).items():
        (tmp_path / name).write_bytes(data)
    done = run_cli(*words, "--dest", tmp_path / "b", "--manifest", tmp_path / f"{NAME}.MANIFEST.json")
    assert json.loads(done.stdout)["transferred_bytes"] == len(CONTENT)
    other = sidecars(NAME, CONTENT + b"?")
    (tmp_path / f"{NAME}.MANIFEST.json").write_bytes(other[f"{NAME}.MANIFEST.json"])
    done = run_cli(*words, "--dest", tmp_path / "c", "--manifest", tmp_path / f"{NAME}.MANIFEST.json")
    assert json.loads(done.stdout)["error"] == "manifest-contradicts-pin"
    done = run_cli(*words, "--dest", tmp_path / "d", "--manifest", tmp_path / "none")
    assert (done.returncode, json.loads(done.stdout)["error"]) == (3, "document-missing")


@pytest.mark.parametrize(
    "words",
    [
        ("--latest", "--tag", "c1"),
        ("--latest", "--pin", "x"),
        ("--backend", "cuda13"),
        ("--repo", "a/b"),
        ("--tag", "../x"),
        ("--latest", "--repo", "a"),
        ("--manifest", "x"),
        ("--url", "https://example.com/a", "--sha256", SHA, "--require", "signature"),
        ("--url", "https://example.com/a"),
        ("--latest", "--connections", "0"),
    ],
)
def test_words_that_do_not_go_together_are_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = run_cli(*words, env={"OPENCOTI_CACHE_DIR": str(tmp_path)})
    assert (done.returncode, "bad-usage" in done.stderr) == (2, True)


def test_passing_trouble_with_a_document_is_sat_out(client: Client) -> None:
    client.server.script[:] = [Fault(kind="status", status=503), Fault(kind="close", at=10)]
    assert client.get().read_bytes() == CONTENT
