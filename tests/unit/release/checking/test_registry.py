"""Pinned images in a registry: each piece is there, under the digest that was pinned."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from opencoti.errors import OpencotiError
from opencoti.jsonio import render_json
from release.checking.images import ImageEntry, load_images
from release.checking.registry import Registry
from tests.fakes.registry import FakeRegistry, digest, serving_registry


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with serving_registry() as made:
        yield made


def entry(registry: FakeRegistry, name: str) -> ImageEntry:
    return ImageEntry(name="zig", reference=registry.reference, digest=name)


def refused(registry: FakeRegistry, name: str) -> tuple[str, int]:
    with Registry(timeout_s=30) as client, pytest.raises(OpencotiError) as caught:
        client.look(entry(registry, name))
    return caught.value.error_id, caught.value.exit_code


def test_image_of_two_platforms_is_looked_through_without_pulling(registry: FakeRegistry) -> None:
    name = registry.push_index(registry.push(b"a" * 1000, b"shared"), registry.push(b"b" * 500, b"shared"))
    with Registry() as client:
        found = client.look(entry(registry, name))
    assert (found.blob_count, found.size) == (4, 2 + 1000 + 500 + 6)
    assert [line for line in registry.seen if line.startswith("GET") and "/blobs/" in line] == []


@pytest.mark.parametrize("switch", ["needs_token", "redirects"])
def test_tokens_and_redirects_are_followed(registry: FakeRegistry, switch: str) -> None:
    name = registry.push(b"layer")
    setattr(registry, switch, True)
    with Registry() as client:
        assert client.look(entry(registry, name)).blob_count == 2
    assert sum("/token?service=x&scope=pull" in line for line in registry.seen) == (switch == "needs_token")


def _lose_manifest(registry: FakeRegistry, name: str) -> None:
    del registry.manifests[name]


def _lose_blob(registry: FakeRegistry, name: str) -> None:
    del registry.blobs[digest(b"layer")]


def _replace_manifest(registry: FakeRegistry, name: str) -> None:
    registry.manifests[name] = registry.manifests[name].replace(b"layers", b"levels")


def _cut_blob(registry: FakeRegistry, name: str) -> None:
    registry.blobs[digest(b"layer")] = b"lay"


def _fail(registry: FakeRegistry, name: str) -> None:
    registry.status = 503


def _forbid(registry: FakeRegistry, name: str) -> None:
    registry.status = 403


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (_lose_manifest, ("image-gone", 4)),
        (_lose_blob, ("image-gone", 4)),
        (_replace_manifest, ("image-differs", 6)),
        (_cut_blob, ("image-differs", 6)),
        (_fail, ("registry-refused", 7)),
        (_forbid, ("registry-refused", 7)),
    ],
)
def test_image_that_cannot_be_pulled_is_told(
    registry: FakeRegistry, change: Callable[[FakeRegistry, str], None], expected: tuple[str, int]
) -> None:
    """Case B12, seen before a build needs it."""
    name = registry.push(b"layer")
    change(registry, name)
    assert refused(registry, name) == expected


def test_registry_that_does_not_answer_is_told(registry: FakeRegistry) -> None:
    gone = ImageEntry(name="zig", reference="127.0.0.1:1/owner/zig", digest="sha256:" + "0" * 64)
    with Registry(timeout_s=30) as client, pytest.raises(OpencotiError) as caught:
        client.look(gone)
    assert (caught.value.error_id, caught.value.exit_code) == ("registry-failed", 7)


@pytest.mark.parametrize("document", [b'{"layers": 1}', b"[]", b'{"layers": [{"digest": "x"}]}'])
def test_manifest_that_is_none_is_refused(registry: FakeRegistry, document: bytes) -> None:
    registry.manifests[digest(document)] = document
    assert refused(registry, digest(document)) == ("image-differs", 6)


@pytest.mark.parametrize(
    "change",
    [
        {"digest": "latest"},
        {"digest": "sha256:" + "0" * 63},
        {"reference": "zig"},
        {"reference": "owner/zig"},
        {"reference": "registry.example/owner/zig:latest"},
        {"reference": "https://registry.example/zig"},
        {"reference": "registry.example/../zig"},
    ],
)
def test_image_that_is_not_pinned_by_digest_is_refused(change: dict[str, str]) -> None:
    good = {"name": "zig", "reference": "registry.example/owner/zig", "digest": "sha256:" + "0" * 64}
    record = {"schema": "opencoti.images/1", "images": [good]}
    assert load_images(render_json(record), "x").images[0].address.base_url == (
        "https://registry.example/v2/owner/zig"
    )
    with pytest.raises(OpencotiError) as caught:
        load_images(render_json(record | {"images": [good | change]}), "x")
    assert caught.value.error_id == "images-record-malformed"
