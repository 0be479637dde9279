"""The bill of materials: valid, the same every time, and nothing of the manifest lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from opencoti.errors import ConfigError
from opencoti.manifest import Manifest, load_manifest
from release.cli import main
from release.sbom import render_sbom
from tests.conftest import ROOT

GOLDEN = ROOT / "tests" / "unit" / "package" / "golden.MANIFEST.json"


@pytest.fixture
def manifest() -> Manifest:
    return load_manifest(GOLDEN.read_bytes())


def document(manifest: Manifest) -> Any:
    return json.loads(render_sbom(manifest))


def test_the_document_is_valid(manifest: Manifest) -> None:
    text = render_sbom(manifest).decode()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None


def test_the_same_manifest_gives_the_same_bytes(manifest: Manifest) -> None:
    assert render_sbom(manifest) == render_sbom(load_manifest(GOLDEN.read_bytes()))
    assert "timestamp" not in document(manifest)["metadata"]
    other = manifest.model_copy(update={"sha256": "0" * 64})
    assert document(other)["serialNumber"] != document(manifest)["serialNumber"]


def test_every_member_and_source_is_a_component_of_the_artifact(manifest: Manifest) -> None:
    found = document(manifest)
    root = found["metadata"]["component"]
    assert (root["name"], root["version"]) == (manifest.name, manifest.version_string)
    assert root["hashes"] == [{"alg": "SHA-256", "content": manifest.sha256}]
    hashes = {
        item["name"]: item["hashes"][0]["content"] for item in found["components"] if item["type"] == "file"
    }
    assert hashes == {member.name: member.sha256 for member in manifest.members}
    depends = {item["ref"]: item.get("dependsOn", []) for item in found["dependencies"]}
    assert len(depends[manifest.name]) == len(manifest.members) + len(manifest.sources)


def test_a_source_has_its_commit_and_its_patches(manifest: Manifest) -> None:
    source = next(item for item in document(manifest)["components"] if item["type"] == "library")
    pedigree = source["pedigree"]
    assert pedigree["commits"] == [{"uid": manifest.sources[0].commit}]
    assert manifest.patches[0].sha256 in pedigree["patches"][0]["diff"]["text"]["content"]


def test_the_command_writes_beside_the_manifest(
    manifest: Manifest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"{manifest.name}.MANIFEST.json"
    path.write_bytes(GOLDEN.read_bytes())
    with pytest.raises(SystemExit) as ended:
        main(["sbom", str(path)])
    assert ended.value.code == 0
    out = tmp_path / f"{manifest.name}.cdx.json"
    assert capsys.readouterr().out == f"{out}\n"
    assert out.read_bytes() == render_sbom(manifest)


def test_a_file_that_is_no_manifest_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"{}")
    with pytest.raises(SystemExit) as ended:
        main(["sbom", str(tmp_path / "x")])
    assert ended.value.code == ConfigError.exit_code
