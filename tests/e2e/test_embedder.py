"""The artifact with a model in it: one file that starts by itself and answers with vectors."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from ci.paths import Layout
from ci.smoke.model import cached_model
from ci.verify.features_command import inspect_features, inspect_process
from opencoti.manifest import load_manifest
from tests.conftest import ROOT
from tests.e2e.conftest import EngineArtifact

pytestmark = pytest.mark.engine
_LISTENING: Final = re.compile(r"listening on http://127\.0\.0\.1:(\d+)")


@dataclass(frozen=True, kw_only=True)
class Embedder:
    """The packaged files."""

    artifact: Path
    manifest: Path
    model: Path


@pytest.fixture(scope="module")
def embedder(
    artifact: EngineArtifact, real_layout: Layout, tmp_path_factory: pytest.TempPathFactory
) -> Embedder:
    vocabulary = real_layout.build / "src" / "elf" / "models" / "ggml-vocab-qwen2.gguf"
    model = cached_model(real_layout, vocabulary)
    out = tmp_path_factory.mktemp("out")
    # The engine that built the artifact: another one would compile everything again.
    words = [
        "--engine",
        artifact.manifest.toolchains[0].engine,
        "--with-model",
        str(model),
        "--out",
        str(out),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "ci", "package", "--json", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)["embedder"]
    return Embedder(artifact=Path(made["artifact"]), manifest=Path(made["manifest"]), model=model)


@pytest.fixture
def server(embedder: Embedder, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    child = subprocess.Popen(
        [str(embedder.artifact), "--host", "127.0.0.1", "--port", "0"],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stderr is not None
        lines = []
        for line in child.stderr:
            lines.append(line)
            if found := _LISTENING.search(line):
                break
        else:
            pytest.fail("the server ended: " + "".join(lines[-20:]))
        yield child, int(found[1])
        child.kill()


def test_it_needs_no_argument_to_embed(
    embedder: Embedder, server: tuple[subprocess.Popen[str], int], real_layout: Layout
) -> None:
    child, port = server
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/embeddings",
        data=json.dumps({"input": ["hello", "world"]}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        vectors = [item["embedding"] for item in json.load(answer)["data"]]
    assert len(vectors) == 2
    assert len(vectors[0]) == len(vectors[1]) > 0
    assert vectors[0] != vectors[1]
    report = inspect_process(child.pid, real_layout, manifest=embedder.manifest)
    assert (report.verdict, report.is_ok) == ("full", True), report.text()
    assert any(Path(label).name.startswith("libggml-cpu-") for label in report.files)


def test_the_model_stays_in_the_artifact(
    embedder: Embedder, server: tuple[subprocess.Popen[str], int], tmp_path: Path
) -> None:
    """Nothing of it is unpacked: it is mapped from the file that was started."""
    child, _ = server
    assert not list(tmp_path.rglob("*.gguf"))
    maps = Path(f"/proc/{child.pid}/maps").read_text().splitlines()
    assert any(" r--s " in line and line.endswith(f" {embedder.artifact}") for line in maps)


def test_the_model_is_a_member_of_the_manifest_and_every_patch_can_be_seen(
    embedder: Embedder, real_layout: Layout
) -> None:
    manifest = load_manifest(embedder.manifest.read_bytes())
    member = manifest.member(embedder.model.name)
    assert member is not None
    assert member.size == embedder.model.stat().st_size
    report = inspect_features(embedder.artifact, real_layout)
    assert (report.verdict, report.identities) == ("full", (manifest.version_string,))
