"""The real engine: what `./noxw -s quickstart` left in this checkout."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from ci.paths import Layout
from opencoti.fetch.trial import suits_this_host
from opencoti.manifest import MANIFEST_SUFFIX, Manifest, load_manifest
from tests.conftest import require


@dataclass(frozen=True, kw_only=True)
class EngineArtifact:
    """An artifact on disk and what its manifest says."""

    path: Path
    manifest_path: Path
    manifest: Manifest


def _is_ours(path: Path) -> bool:
    return suits_this_host(path.name)


@pytest.fixture(scope="session")
def artifact(real_layout: Layout) -> EngineArtifact:
    found = sorted(
        filter(_is_ours, (real_layout.dist / "llamafile").glob("opencoti-llamafile-*.llamafile")),
        key=lambda path: path.stat().st_mtime_ns,
    )
    require(bool(found), "no artifact in dist/llamafile: run ./noxw -s quickstart")
    path = found[-1]
    manifest_path = path.with_name(path.name + MANIFEST_SUFFIX)
    return EngineArtifact(
        path=path, manifest_path=manifest_path, manifest=load_manifest(manifest_path.read_bytes())
    )
