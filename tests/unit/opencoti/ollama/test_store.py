"""Names, places, stores and manifests of Ollama."""

from __future__ import annotations

import os
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencoti.errors import OpencotiError, StorageError
from opencoti.ollama.importing import find_model
from opencoti.ollama.manifest import parse_manifest
from opencoti.ollama.places import known_stores, service_texts, store_places
from opencoti.ollama.reference import Reference
from opencoti.ollama.store import Store, open_stores, unreadable
from tests.fakes.ollama_store import FakeStore

NAMES = (
    "registry.ollama.ai/library/llama3/latest",
    "registry.ollama.ai/user/m/7b-q4",
    "hf.co/org/repo-GGUF/Q4_K_M",
    "localhost:5000/x/y/z",
)


@pytest.fixture
def fake(tmp_path: Path) -> FakeStore:
    fake = FakeStore(tmp_path / "models")
    for name in NAMES:
        fake.add(name)
    (fake.root / "manifests" / ".DS_Store").write_bytes(b"\0")
    (fake.root / "manifests" / "registry.ollama.ai" / "library" / ".DS_Store").write_bytes(b"\0")
    (fake.root / "manifests" / "registry.ollama.ai" / "library" / "empty").mkdir()
    (fake.root / "manifests" / "registry.ollama.ai" / "stray").write_text("{}")
    return fake


def stores(fake: FakeStore) -> tuple[Store, ...]:
    return (Store(root=fake.root, reason="test"),)


def error_of(name: str, fake: FakeStore) -> OpencotiError:
    with pytest.raises(OpencotiError) as caught:
        find_model(name, stores(fake))
    return caught.value


def test_case_b52_every_registry_namespace_and_tag_is_listed(fake: FakeStore) -> None:
    listed = [entry.reference for entry in stores(fake)[0].entries()]
    assert sorted(str(item) for item in listed) == [
        "hf.co/org/repo-GGUF:Q4_K_M",
        "llama3:latest",
        "localhost:5000/x/y:z",
        "user/m:7b-q4",
    ]
    assert "registry.ollama.ai/library/llama3:latest" in {item.full for item in listed}


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("llama3", 0),
        ("llama3:latest", 0),
        ("LLaMA3", 0),
        ("library/llama3", 0),
        ("registry.ollama.ai/library/llama3:latest", 0),
        ("https://registry.ollama.ai/library/llama3", 0),
        ("user/m:7b-q4", 1),
        ("hf.co/org/repo-GGUF:Q4_K_M", 2),
        ("hf.co/org/repo-gguf:q4_k_m", 2),
        ("localhost:5000/x/y:z", 3),
    ],
)
def test_case_b52_names_are_resolved(fake: FakeStore, name: str, found: int) -> None:
    _, entry = find_model(name, stores(fake))
    assert entry.path == fake.manifest_path(NAMES[found])


def test_case_b52_unknown_tag_lists_the_near_ones(fake: FakeStore) -> None:
    error = error_of("user/m:13b", fake)
    assert (error.error_id, error.exit_code) == ("ollama-model-unknown", 4)
    assert "user/m:7b-q4" in error.why
    assert "llama3" in error_of("lama3", fake).why


@pytest.mark.parametrize(
    "name",
    [
        "..",
        "../x",
        "a/../b",
        "../../../etc/passwd",
        "a/b/..:x",
        "m:..",
        "m:../../x",
        "",
        " ",
        "/abs/x",
        "a//b",
        "a/b/c/d",
        "x\0y",
        "-m",
        ".hidden",
        "a\\b",
        "m:",
        "a:b:c",
        "host:port/a/b",
        "n" * 300,
    ],
)
def test_case_b52_names_that_leave_the_store_are_refused(fake: FakeStore, name: str) -> None:
    error = error_of(name, fake)
    assert (error.error_id, error.exit_code) == ("ollama-name-malformed", 2)


@given(st.text(alphabet=string.printable + "\0é\u2215", max_size=60))
def test_any_text_is_a_safe_name_or_refused(text: str) -> None:
    try:
        reference = Reference.parse(text)
    except OpencotiError:
        return
    parts = (reference.host, reference.namespace, reference.model, reference.tag)
    assert not any(part in ("", ".", "..") or "/" in part or "\0" in part for part in parts)
    assert Reference.parse(str(reference)) == reference
    assert Reference.parse(reference.full) == reference


def test_case_b52_variable_may_hold_blanks_and_a_slash_at_its_end(tmp_path: Path) -> None:
    fake = FakeStore(tmp_path / "with blank")
    fake.add(NAMES[0])
    environ = {"OLLAMA_MODELS": f"{fake.root}/", "HOME": str(tmp_path / "home")}
    found = open_stores(known_stores(environ, root=tmp_path / "root"))
    assert [store.root for store in found] == [fake.root]


def test_user_and_service_are_looked_at_after_the_variable(tmp_path: Path) -> None:
    environ = {"OLLAMA_MODELS": "/srv/m", "HOME": "/home/u"}
    text = '[Service]\nEnvironment="OLLAMA_MODELS=/srv/by service" OTHER=x\n# OLLAMA_MODELS=/no\n'
    places = store_places(environ, "linux", service_texts=[text, "Environment=OLLAMA_MODELS=/srv/plain"])
    assert [(str(place.path), place.reason) for place in places][:4] == [
        ("/srv/m", "OLLAMA_MODELS"),
        ("/home/u/.ollama/models", "this user's folder"),
        ("/srv/by service", "the service's configuration"),
        ("/srv/plain", "the service's configuration"),
    ]
    assert "/usr/share/ollama/.ollama/models" in [str(place.path) for place in places]


def test_other_systems_have_their_own_folders() -> None:
    mac = store_places({"HOME": "/Users/u"}, "macos")
    assert [str(place.path) for place in mac] == ["/Users/u/.ollama/models"]
    windows = store_places({"USERPROFILE": r"C:\Users\u", "OLLAMA_MODELS": "D:\\m m\\"}, "windows")
    assert [str(place.path) for place in windows] == [r"D:\m m", r"C:\Users\u\.ollama\models"]
    home = store_places({"HOME": "/h", "OLLAMA_MODELS": "~/models"}, "linux")
    assert str(home[0].path) == "/h/models"


def test_one_folder_is_looked_at_once() -> None:
    places = store_places({"HOME": "/h", "OLLAMA_MODELS": "/h/.ollama/models/"}, "linux")
    assert [str(place.path) for place in places].count("/h/.ollama/models") == 1
    assert places[0].reason == "OLLAMA_MODELS"


def test_drop_ins_of_the_service_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "etc/systemd/system/ollama.service.d"
    folder.mkdir(parents=True)
    (folder / "override.conf").write_text('[Service]\nEnvironment="OLLAMA_MODELS=/data/ollama"\n')
    (folder.parent / "ollama.service").write_text("[Service]\nUser=ollama\n")
    assert len(service_texts(tmp_path)) == 2
    fake = FakeStore(tmp_path / "data/ollama")
    fake.add(NAMES[0])
    found = open_stores(known_stores({"HOME": "/nowhere"}, root=tmp_path))
    assert [(store.root, store.reason) for store in found] == [(fake.root, "the service's configuration")]


def test_no_store_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(OpencotiError) as caught:
        open_stores(known_stores({"HOME": str(tmp_path)}, root=tmp_path))
    assert (caught.value.error_id, caught.value.exit_code) == ("ollama-store-missing", 4)
    assert str(tmp_path / ".ollama/models") in caught.value.why


def test_case_b52_forbidden_folder_is_a_matter_of_rights_and_not_absent(tmp_path: Path) -> None:
    error = unreadable(tmp_path / "manifests", PermissionError(13, "denied"))
    assert isinstance(error, StorageError)
    assert (error.error_id, error.exit_code) == ("ollama-store-unreadable", 8)
    assert "usermod -aG ollama" in error.hint


def test_links_that_lead_in_circles_end(tmp_path: Path) -> None:
    fake = FakeStore(tmp_path / "models")
    fake.add(NAMES[0])
    os.symlink("..", fake.root / "manifests" / "registry.ollama.ai" / "loop")
    os.symlink("nowhere", fake.root / "manifests" / "registry.ollama.ai" / "library" / "llama3" / "gone")
    names = {str(entry.reference) for entry in stores(fake)[0].entries()}
    assert "llama3:latest" in names
    assert "llama3:gone" not in names


DIGEST = "ab" * 32
LAYER = f'{{"mediaType":"application/vnd.ollama.image.model","digest":"sha256:{DIGEST}","size":5}}'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is empty"),
        ("\n \n", "it is empty"),
        ('{"schemaVersion":2,"layers":[{"mediaTy', "line 1"),
        ("{}", "it has no layers"),
        ('{"layers":[]}', "it lists no layers"),
        ('{"layers":{}}', "it lists no layers"),
        ('{"layers":[5]}', ""),
        ('{"layers":[{"digest":"sha256:../../x","size":1,"mediaType":"m"}]}', "a layer has the digest"),
        (f'{{"layers":[{{"digest":"md5:{DIGEST}","size":1,"mediaType":"m"}}]}}', "a layer has the digest"),
        (f'{{"layers":[{LAYER.replace("5}", "-1}")}]}}', "a layer has the size"),
        (f'{{"layers":[{LAYER.replace("5}", "true}")}]}}', "a layer has the size"),
        (f'{{"layers":[{LAYER.replace("5}", "null}")}]}}', "a layer has the size"),
        ('{"layers":[{"size":1}]}', "it has no digest"),
        ("[]", ""),
        ("null", ""),
    ],
)
def test_case_b54_manifests_that_are_none_are_refused(text: str, why: str) -> None:
    with pytest.raises(OpencotiError) as caught:
        parse_manifest(text.encode(), "a manifest")
    assert (caught.value.error_id, caught.value.exit_code) == ("ollama-manifest-malformed", 3)
    assert why in caught.value.why


def test_kinds_of_layers_are_told_apart() -> None:
    layers = ",".join(LAYER.replace("model", kind) for kind in ("model", "projector", "new"))
    manifest = parse_manifest(f'{{"layers":[{layers}]}}'.encode(), "a manifest")
    assert [layer.kind for layer in manifest.layers] == ["model", "projector", "other"]
    assert manifest.size_bytes == 15


@given(st.binary(max_size=300))
def test_any_bytes_are_a_manifest_or_refused(data: bytes) -> None:
    with pytest.raises(OpencotiError):
        parse_manifest(data, "a manifest")


@given(st.data())
def test_damaged_manifests_are_read_or_refused_and_nothing_else(data: st.DataObject) -> None:
    content = bytearray(f'{{"schemaVersion":2,"config":{{"size":1}},"layers":[{LAYER},{LAYER}]}}'.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        manifest = parse_manifest(bytes(content), "a manifest")
    except OpencotiError as error:
        outcome = error.error_id
    else:
        outcome = "read"
        assert all(len(layer.sha256) == 64 and "/" not in layer.sha256 for layer in manifest.layers)
    assert outcome in ("read", "ollama-manifest-malformed")
