"""A pipeline killed at any moment: the next run needs no help and gives the same bytes."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ci.paths import Layout
from opencoti.hashing import sha256_file
from tests.conftest import ROOT
from tests.e2e.conftest import EngineArtifact

pytestmark = pytest.mark.engine
KILLS = 4


def _generated(folder: str, names: list[str]) -> list[str]:
    """Names in a folder of the checkout that its commands have made, and that may go while one copies."""
    if Path(folder).name == "__pycache__":
        return names
    if Path(folder) == ROOT / "vendors" / "sources":
        return [name for name in names if name != ".gitkeep"]
    made = {"build", "dist", ".nox", ".bootstrap", ".mypy_cache", ".ruff_cache", ".pytest_cache"}
    return [name for name in names if Path(folder) == ROOT and name in made]


def start(root: Path, cache: Path, user: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "ci", "quickstart", "--engine", "host", "--quiet"],
        cwd=root,
        env={**os.environ, "OPENCOTI_BUILD_CACHE": str(cache), "OPENCOTI_CACHE_DIR": str(user)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_next_run_after_a_kill_gives_the_same_artifact(
    artifact: EngineArtifact, real_layout: Layout, tmp_path: Path, sig: signal.Signals
) -> None:
    root = tmp_path / "checkout"
    # The stage comes from the cache; everything else is done, and interrupted, in a checkout of its own.
    shutil.copytree(ROOT, root, ignore=_generated, symlinks=True)
    chance = random.Random(int(sig))
    for _ in range(KILLS):
        process = start(root, real_layout.cache, tmp_path / "user")
        # The moment of the kill, not a wait for something to be ready.
        time.sleep(chance.uniform(0.0, 4.0))
        process.send_signal(sig)
        process.communicate(timeout=60)
        assert process.returncode in (0, 128 + sig, -sig)
    last = start(root, real_layout.cache, tmp_path / "user")
    out, err = last.communicate(timeout=300)
    assert last.returncode == 0, err
    assert sha256_file(Path(out.strip())) == artifact.manifest.sha256
