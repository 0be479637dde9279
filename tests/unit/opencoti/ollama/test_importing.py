"""From a name to checked files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from opencoti.errors import OpencotiError
from opencoti.ollama.importing import Imported, import_model
from opencoti.ollama.store import Store
from tests.conftest import RecordedConsole
from tests.fakes.ollama_store import PREFIX, FakeStore, tiny_gguf

NAME = "registry.ollama.ai/library/llama3/latest"


@pytest.fixture
def fake(tmp_path: Path) -> FakeStore:
    return FakeStore(tmp_path / "models")


def run(fake: FakeStore, *, is_fast: bool = False, name: str = "llama3") -> Imported:
    return import_model(
        name, (Store(root=fake.root, reason="test"),), RecordedConsole().console, is_fast=is_fast
    )


def error_of(fake: FakeStore, *, is_fast: bool = False) -> OpencotiError:
    with pytest.raises(OpencotiError) as caught:
        run(fake, is_fast=is_fast)
    return caught.value


def test_everything_that_belongs_to_a_model_is_handed_over_where_it_lies(fake: FakeStore) -> None:
    params = {"num_ctx": 4096, "temperature": 0.6, "top_k": 40, "stop": ["<end>"], "flag": True}
    digest = fake.add(
        NAME,
        projector=tiny_gguf("clip"),
        adapters=[tiny_gguf("llama", rank=8)],
        template="{{ .Prompt }}",
        params=params,
    )
    before = sorted(path.name for path in (fake.root / "blobs").iterdir())
    done = run(fake)
    assert done.model.path == fake.path_of(digest)
    assert done.model.is_verified
    assert done.header.text("general.architecture") == "llama"
    assert (done.template, done.parameters) == ("{{ .Prompt }}", params)
    words = done.engine_arguments()
    assert words[:4] == ("--mmproj", str(done.projectors[0].path), "--lora", str(done.adapters[0].path))
    assert words[4:] == ("--ctx-size", "4096", "--temp", "0.6", "--top-k", "40")
    assert sorted(path.name for path in (fake.root / "blobs").iterdir()) == before


def test_case_b54_zeroed_blob_is_a_mismatch_with_path_and_name(fake: FakeStore) -> None:
    digest = fake.add(NAME)
    path = fake.path_of(digest)
    path.write_bytes(bytes(path.stat().st_size))
    error = error_of(fake)
    assert (error.error_id, error.exit_code) == ("ollama-blob-damaged", 6)
    assert str(path) in error.what
    assert "llama3:latest" in error.what
    assert "SHA-256" in error.why


def test_case_b54_wrong_size_is_found_before_anything_is_hashed(fake: FakeStore) -> None:
    path = fake.path_of(fake.add(NAME))
    os.truncate(path, path.stat().st_size + (1 << 34))  # hashing 16 GiB would take a minute
    error = error_of(fake)
    assert error.error_id == "ollama-blob-damaged"
    assert "its manifest says" in error.why


@pytest.mark.parametrize("suffix", ["-partial", "-partial-0"])
def test_case_b54_unfinished_pull_is_told(fake: FakeStore, suffix: str) -> None:
    path = fake.path_of(fake.add(NAME))
    path.rename(path.with_name(path.name + suffix))
    error = error_of(fake)
    assert (error.error_id, error.exit_code) == ("ollama-pull-unfinished", 4)
    assert "ollama pull llama3:latest" in error.hint


def test_case_b54_missing_blob_is_named_by_its_digest(fake: FakeStore) -> None:
    digest = fake.add(NAME)
    fake.path_of(digest).unlink()
    error = error_of(fake)
    assert error.error_id == "ollama-blob-missing"
    assert digest in error.why


def test_case_b54_link_to_another_disk_is_followed_and_hashed(fake: FakeStore, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere.bin"
    elsewhere.write_bytes(tiny_gguf())
    digest = fake.add_linked(NAME, elsewhere)
    assert run(fake).model.path == fake.path_of(digest)
    elsewhere.write_bytes(bytes(elsewhere.stat().st_size))
    assert error_of(fake).error_id == "ollama-blob-damaged"
    elsewhere.unlink()
    assert error_of(fake).error_id == "ollama-blob-missing"


def test_case_b54_fast_skips_the_hash_and_says_so(fake: FakeStore) -> None:
    path = fake.path_of(fake.add(NAME))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert error_of(fake).error_id == "ollama-blob-damaged"
    assert not run(fake, is_fast=True).model.is_verified
    path.write_bytes(bytes(len(data)))
    assert error_of(fake, is_fast=True).error_id == "gguf-malformed"


def test_right_bytes_that_are_no_model_are_refused(fake: FakeStore) -> None:
    fake.add(NAME, b"not a model at all")
    assert error_of(fake).error_id == "gguf-malformed"


def test_damaged_template_is_found_even_when_fast(fake: FakeStore) -> None:
    fake.add(NAME, template="hello")
    for path in (fake.root / "blobs").iterdir():
        if path.read_bytes() == b"hello":
            path.write_bytes(b"jello")
    assert error_of(fake, is_fast=True).error_id == "ollama-blob-damaged"


def test_models_of_other_kinds_say_why_they_cannot_be_loaded(fake: FakeStore) -> None:
    layer = {"mediaType": f"{PREFIX}tensor", "digest": f"sha256:{fake.blob(b'x')}", "size": 1}
    fake.write_manifest(NAME, [layer])
    error = error_of(fake)
    assert (error.error_id, error.exit_code) == ("ollama-not-a-gguf", 3)
    model = {"mediaType": f"{PREFIX}model", "digest": f"sha256:{fake.blob(tiny_gguf())}", "size": 1}
    fake.write_manifest(NAME, [model, model])
    assert "2 model files" in error_of(fake).why


def test_names_of_blobs_of_older_versions_are_known(fake: FakeStore) -> None:
    path = fake.path_of(fake.add(NAME))
    old = path.rename(path.with_name(path.name.replace("sha256-", "sha256:")))
    assert run(fake).model.path == old


def test_second_store_is_asked_where_the_first_lacks_it(fake: FakeStore, tmp_path: Path) -> None:
    fake.add(NAME)
    first = FakeStore(tmp_path / "first")
    first.add("registry.ollama.ai/library/other/latest")
    both = tuple(Store(root=item.root, reason="test") for item in (first, fake))
    assert import_model("llama3", both, RecordedConsole().console).store == fake.root
