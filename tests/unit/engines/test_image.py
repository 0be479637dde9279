"""When an image gets its name, what is taken for it, and what is left when it is not what it should be."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ci.engines.client import EngineClient
from ci.engines.endpoint import Daemon, Endpoint
from ci.engines.escrow import EscrowRecord, import_image
from ci.engines.image import ToolchainImage
from ci.paths import Layout
from ci.toolchains.recipe import Recipe
from opencoti.console import Console
from opencoti.document import render_document
from opencoti.errors import MissingError, VerificationError
from opencoti.hashing import sha256_bytes, sha256_file

LABEL = "org.opencoti."
DAEMON = Daemon(
    endpoint=Endpoint(url="unix:///s", origin="default"), kind="docker", version="20.10", api="1.41"
)


@dataclass
class FakeDaemon:
    """What the SDK offers of a daemon's images, kept in a dictionary of names."""

    names: dict[str, dict[str, Any]] = field(default_factory=dict)
    arriving: dict[str, dict[str, Any]] = field(default_factory=dict)
    daemon: Any = None

    @property
    def api(self) -> FakeDaemon:
        return self

    @property
    def stream(self) -> FakeDaemon:
        return self

    def image(self, tag: str) -> dict[str, Any] | None:
        return self.names.get(tag)

    def remove_image(self, tag: str) -> None:
        self.names.pop(tag, None)

    def tag(self, image: str, repository: str, tag: str) -> None:
        found = [data for name, data in self.names.items() if image in (name, data["Id"])]
        self.names[f"{repository}:{tag}"] = found[0]

    def load_image(self, file: object) -> Iterator[bytes]:
        self.names |= self.arriving
        yield b"{}"

    def images(self, filters: object) -> list[dict[str, Any]]:
        return []

    def info(self) -> dict[str, Any]:
        return {}


class Image(ToolchainImage):
    """The real one, but for what needs a network, a compiler or a container."""

    def __init__(self, layout: Layout, *, is_strict: bool = False) -> None:
        super().__init__(Recipe.load(layout.containers / "tiny"), layout, is_strict=is_strict)
        self.proved: list[str] = []
        self.failure: BaseException | None = None

    def _check_space(self, client: EngineClient) -> None:
        return None

    def _send(self, client: Any, context: Path, candidate: str, debs: str) -> None:
        assert context.is_file()
        client.names[candidate] = image_data("new", self.recipe_id, debs)

    def _prove(self, client: EngineClient, tag: str, console: Console) -> None:
        self.proved.append(tag)
        if self.failure is not None:
            raise self.failure


def image_data(name: str, recipe: str, debs: str = "locked") -> dict[str, Any]:
    image_id = f"sha256:{sha256_bytes(name.encode())}"
    return {"Id": image_id, "Config": {"Labels": {f"{LABEL}recipe": recipe, f"{LABEL}debs": debs}}}


@pytest.fixture
def client() -> Any:
    return FakeDaemon(daemon=DAEMON)


@pytest.fixture
def image(tmp_path: Path) -> Image:
    layout = Layout(root=tmp_path, cache=tmp_path / "cache")
    folder = layout.containers / "tiny"
    folder.mkdir(parents=True)
    layout.cache.mkdir()
    (folder / "recipe.toml").write_text('name = "tiny"\ndescription = "nothing"\n')
    (folder / "Dockerfile").write_text("FROM scratch\n")
    return Image(layout)


UNPROVED = VerificationError("image-unproved", "it does less")
LOST = MissingError("docker-lost", "went away")
QUIET = Console(quiet=True)


def test_an_image_gets_its_name_when_it_is_proved(client: Any, image: Image, tmp_path: Path) -> None:
    left = tmp_path / "cache" / ".image-tiny-killed"
    left.mkdir()
    made = image.ensure(client, QUIET)
    (proved,) = image.proved
    assert proved.startswith(f"{image.tag}-")
    assert (made.tag, made.is_locked) == (image.tag, True)
    assert list(client.names) == [image.tag]
    assert not left.exists()
    assert image.ensure(client, QUIET) == made
    assert len(image.proved) == 1


@pytest.mark.parametrize("failure", [UNPROVED, LOST, KeyboardInterrupt()])
def test_an_image_that_is_not_proved_is_never_found(
    failure: BaseException, client: Any, image: Image
) -> None:
    """case B10"""
    image.failure = failure
    with pytest.raises(type(failure)):
        image.ensure(client, QUIET)
    assert client.names == {}
    image.failure = None
    assert image.ensure(client, QUIET).tag == image.tag


def test_an_image_that_fails_later_is_built_anew(client: Any, image: Image) -> None:
    image.ensure(client, QUIET)
    image.failure = LOST
    with pytest.raises(MissingError):
        image.prove(client, QUIET)
    assert image.find(client) is not None
    image.failure = UNPROVED
    with pytest.raises(VerificationError):
        image.prove(client, QUIET)
    assert image.find(client) is None


@pytest.mark.parametrize(
    ("data", "is_strict", "is_found"),
    [
        ({"recipe": None}, False, False),
        ({"recipe": "f" * 64}, False, False),
        ({"debs": "libc6=1@00"}, False, True),
        ({"debs": "libc6=1@00"}, True, False),
        ({}, True, True),
    ],
)
def test_only_labels_of_this_recipe_make_it_the_image(
    data: dict[str, str | None], is_strict: bool, is_found: bool, client: Any, image: Image, tmp_path: Path
) -> None:
    """case B12"""
    labels = {"recipe": image.recipe_id, "debs": "locked"} | data
    config = {"Labels": {f"{LABEL}{key}": value for key, value in labels.items() if value}}
    client.names[image.tag] = {"Id": "sha256:0", "Config": config}
    asked = Image(Layout(root=tmp_path, cache=tmp_path / "cache"), is_strict=is_strict)
    assert (asked.find(client) is not None) == is_found


def exported(folder: Path, image: Image, name: str, *, listing: Any = None) -> dict[str, Any]:
    """Put an exported image into `folder`; return what the daemon makes of it."""
    data = image_data(name, image.recipe_id)
    stem = folder / f"tiny-{image.recipe_id[:12]}"
    archive = Path(f"{stem}.tar")
    with tarfile.open(archive, "w") as tar:
        text = json.dumps(listing or [{"Config": "c.json", "RepoTags": [image.tag]}]).encode()
        header = tarfile.TarInfo("manifest.json")
        header.size = len(text)
        tar.addfile(header, io.BytesIO(text))
    record = EscrowRecord(
        name="tiny", tag=image.tag, recipe=image.recipe_id, image_id=data["Id"], platform=image.platform,
        debs="locked", sha256=sha256_file(archive), size=archive.stat().st_size,
    )  # fmt: skip
    Path(f"{stem}.image.json").write_bytes(render_document(record))
    return data


@pytest.mark.parametrize("failure", [UNPROVED, LOST, KeyboardInterrupt()])
@pytest.mark.parametrize("before", [None, "old"])
def test_an_import_that_fails_leaves_the_name_where_it_was(
    failure: BaseException, before: str | None, client: Any, image: Image, tmp_path: Path
) -> None:
    """case B12"""
    if before:
        client.names[image.tag] = client.names["kept"] = image_data(before, image.recipe_id)
    names = dict(client.names)
    client.arriving = {image.tag: exported(tmp_path, image, "new")}
    image.failure = failure
    with pytest.raises(type(failure)):
        import_image(client, image, tmp_path, QUIET)
    assert client.names == names
    image.failure = None
    assert import_image(client, image, tmp_path, QUIET).id == client.arriving[image.tag]["Id"]


def test_another_image_than_described_is_not_taken(client: Any, image: Image, tmp_path: Path) -> None:
    exported(tmp_path, image, "new")
    client.arriving = {image.tag: image_data("other", image.recipe_id)}
    with pytest.raises(VerificationError) as caught:
        import_image(client, image, tmp_path, QUIET)
    assert caught.value.error_id == "escrow-other-image"
    assert client.names == {}
    assert image.proved == []


@pytest.mark.parametrize(
    ("listing", "error_id"),
    [
        ([{"RepoTags": ["opencoti-toolchain-cuda13:0123"]}], "escrow-other-image"),
        ([{"RepoTags": ["TAG"]}, {"RepoTags": ["debian:12"]}], "escrow-other-image"),
        ([{"RepoTags": None}], "escrow-other-image"),
        ([{}], "escrow-unreadable"),
        ({"a": 1}, "escrow-unreadable"),
    ],
)
def test_an_archive_that_would_take_another_name_is_not_loaded(
    listing: Any, error_id: str, client: Any, image: Image, tmp_path: Path
) -> None:
    """case B12"""
    filled = json.loads(json.dumps(listing).replace("TAG", image.tag))
    client.arriving = {image.tag: exported(tmp_path, image, "new", listing=filled)}
    with pytest.raises(VerificationError) as caught:
        import_image(client, image, tmp_path, QUIET)
    assert caught.value.error_id == error_id
    assert client.names == {}


def test_a_name_of_podman_is_that_of_docker(client: Any, image: Image, tmp_path: Path) -> None:
    listing = [{"RepoTags": [f"localhost/{image.tag}"]}]
    client.arriving = {image.tag: exported(tmp_path, image, "new", listing=listing)}
    assert import_image(client, image, tmp_path, QUIET).tag == image.tag
