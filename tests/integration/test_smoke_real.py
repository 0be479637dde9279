"""The smoke test on the real engine, that was packaged: `OPENCOTI_TEST_ARTIFACT`, else the newest one."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from ci.artifacts import newest_artifact
from ci.context import Context
from ci.dso.elf import inspect_elf
from ci.dso.rules import check_elf, role_of, rules_for
from ci.paths import Layout
from ci.smoke.bench_command import measure
from ci.smoke.command import prove
from ci.smoke.gpu_command import GpuOptions
from ci.smoke.model import VOCABULARY, cached_model
from tests.conftest import RecordedConsole, require

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def artifact(real_layout: Layout) -> Path:
    configured = os.environ.get("OPENCOTI_TEST_ARTIFACT")
    if configured:
        return Path(configured)
    require(
        any((real_layout.dist / "llamafile").glob(f"*-{platform.machine()}.llamafile")),
        "no artifact: run ./noxw -s quickstart",
    )
    return newest_artifact(real_layout)


@pytest.fixture(scope="module")
def model(real_layout: Layout) -> Path:
    vocabulary = real_layout.sources / "llama.cpp" / VOCABULARY
    require(vocabulary.is_file(), "the pinned source is not unpacked: run ./noxw -s vendor")
    return cached_model(real_layout, vocabulary)


def test_the_packaged_engine_passes(
    artifact: Path, model: Path, layout: Layout, recorded: RecordedConsole
) -> None:
    proof = prove(Context(layout=layout, console=recorded.console), artifact, model=model)
    result = proof.evidence.result
    assert result is not None
    assert result.identity is not None
    assert result.exit_code == 0
    assert all(file.path.startswith("~/.llamafile/v/") for file in result.dsos)


def test_the_packaged_engine_is_measured(
    artifact: Path, model: Path, layout: Layout, recorded: RecordedConsole
) -> None:
    context = Context(layout=layout, console=recorded.console)
    evidence = measure(context, artifact, "cpu", GpuOptions(model=model)).evidence
    result = evidence.measured
    assert result is not None
    assert (result.prompt_tokens, result.completion_tokens, result.cached_tokens) == (512, 64, 0)
    assert len({sample.prompt_s for sample in result.samples}) > 1  # measured, each by itself
    assert all(sample.prompt_s + sample.completion_s <= sample.wall_s for sample in result.samples)
    assert any(file.path.endswith(f"libggml-cpu-{result.cpu_variant}.so") for file in result.dsos)
    assert evidence.is_of_a_device


def test_its_members_keep_the_rules(artifact: Path, tmp_path: Path) -> None:
    import zipfile

    checked = 0
    with zipfile.ZipFile(artifact) as archive:
        for name in archive.namelist():
            role = role_of(Path(name).name)
            if role is not None:
                archive.extract(name, tmp_path)
                assert check_elf(inspect_elf(tmp_path / name), rules_for(role)) == []
                checked += 1
    assert checked > 0
