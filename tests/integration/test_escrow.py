"""Exporting and importing a toolchain image with a real container engine, and what is refused on the way."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ci.engines.client import EngineClient
from ci.engines.endpoint import find_endpoint, probe
from ci.engines.escrow import export_image, import_image
from ci.engines.image import ToolchainImage
from ci.paths import Layout
from ci.toolchains.recipe import Recipe
from opencoti.console import Console
from opencoti.errors import ConfigError, MissingError, NetworkError, OpencotiError, VerificationError
from tests.conftest import IN_CI, require
from tests.integration.second_daemon import copy_image, second_daemon


@pytest.fixture(scope="module")
def image(docker_daemon: None, real_layout: Layout) -> ToolchainImage:
    made = ToolchainImage(Recipe.load(real_layout.containers / "zig"), real_layout)
    here = EngineClient(probe(find_endpoint()))
    try:
        made.ensure(here, Console(quiet=True))
    except NetworkError as error:
        if IN_CI:
            raise
        pytest.skip(str(error))
    finally:
        here.close()
    return made


@pytest.fixture(scope="module")
def client(image: ToolchainImage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineClient]:
    """A daemon of these tests' own with the image: other tests use that of everybody's meanwhile."""
    require(os.geteuid() == 0, "starting a second dockerd needs root")
    with second_daemon(tmp_path_factory.mktemp("hidden")) as daemon:
        here, there = EngineClient(probe(find_endpoint())), EngineClient(daemon.daemon)
        copy_image(here, there, image.tag)
        here.close()
        yield there
        there.close()


@pytest.fixture(scope="module")
def exported(client: EngineClient, image: ToolchainImage, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("escrow")
    assert export_image(client, image, folder, Console(quiet=True)).is_file()
    return folder


def files(folder: Path) -> tuple[Path, Path]:
    return next(folder.glob("*.tar")), next(folder.glob("*.image.json"))


def test_an_exported_image_comes_back_with_the_same_id(
    client: EngineClient, image: ToolchainImage, exported: Path
) -> None:
    """case B12"""
    before = image.find(client)
    assert before is not None
    client.api.remove_image(image.tag, force=True)
    assert image.find(client) is None
    after = import_image(client, image, exported, Console(quiet=True))
    assert after == before
    assert json.loads(files(exported)[1].read_bytes())["imageId"] == before.id


@pytest.mark.parametrize(
    ("damage", "error_id", "kind"),
    [
        ("gone", "escrow-missing", MissingError),
        ("cut", "escrow-hash-mismatch", VerificationError),
        ("not json", "json-malformed", ConfigError),
        ("other recipe", "escrow-malformed", ConfigError),
        ("other id", "escrow-other-image", VerificationError),
    ],
)
def test_a_damaged_escrow_is_refused_and_the_image_stays(
    damage: str,
    error_id: str,
    kind: type[OpencotiError],
    client: EngineClient,
    image: ToolchainImage,
    exported: Path,
    tmp_path: Path,
) -> None:
    archive, description = files(exported)
    shutil.copy(description, tmp_path)
    copy = tmp_path / description.name
    if damage != "cut":
        (tmp_path / archive.name).hardlink_to(archive)
    record = json.loads(copy.read_bytes())
    if damage == "gone":
        copy.unlink()
    elif damage == "cut":
        (tmp_path / archive.name).write_bytes(b"cut")
    elif damage == "not json":
        copy.write_text("{")
    elif damage == "other recipe":
        copy.write_text(json.dumps(record | {"recipe": "0" * 64}))
    else:
        copy.write_text(json.dumps(record | {"imageId": f"sha256:{'0' * 64}"}))
    with pytest.raises(kind) as caught:
        import_image(client, image, tmp_path, Console(quiet=True))
    assert caught.value.error_id == error_id
    assert image.find(client) is not None
