"""The Vulkan backend on a device in software, in the pinned container: the real engine, the real library."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ci.context import Context
from ci.paths import Layout
from ci.smoke.command import make_plan
from ci.smoke.contained import open_container_place
from ci.smoke.gpu_command import GpuOptions, prove_gpu, software_target
from ci.smoke.model import SMALL_VOCABULARY, cached_model
from ci.smoke.run import smoke
from ci.toolchains.table import Backend, load_table
from opencoti.console import Console
from opencoti.errors import VerificationError
from opencoti.hashing import sha256_file
from tests.conftest import RecordedConsole, require
from tests.fakes.gpu_artifact import vulkan_artifact, vulkan_library

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("docker_daemon")]


@pytest.fixture(scope="module")
def row(real_layout: Layout) -> Backend:
    return load_table(real_layout.table).backend("vulkan")


@pytest.fixture(scope="module")
def library(real_layout: Layout) -> Path:
    return vulkan_library(real_layout)


@pytest.fixture(scope="module")
def model(real_layout: Layout) -> Path:
    vocabulary = real_layout.sources / "llama.cpp" / SMALL_VOCABULARY
    require(vocabulary.is_file(), "the pinned source is not unpacked: run ./noxw -s vendor")
    return cached_model(real_layout, vocabulary)


@pytest.fixture(scope="module")
def artifact(real_layout: Layout, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vulkan_artifact(real_layout, tmp_path_factory.mktemp("vulkan"))


@pytest.fixture
def context(real_layout: Layout, tmp_path: Path, recorded: RecordedConsole) -> Context:
    """The real recipes and build cache, and results in a folder of the test."""
    root = tmp_path / "checkout"
    root.mkdir()
    (root / "containers").symlink_to(real_layout.containers)
    (root / "vendors").symlink_to(real_layout.sources.parent)
    return Context(layout=Layout(root=root, cache=real_layout.cache), console=recorded.console)


def test_all_layers_compute_on_the_device_and_the_tokens_are_those_of_the_cpu(
    artifact: Path, library: Path, model: Path, context: Context
) -> None:
    proof = prove_gpu(context, artifact, "vulkan", GpuOptions(engine="docker", model=model))
    evidence = proof.evidence
    result = evidence.result
    assert result is not None
    assert result.offload is not None
    assert (result.offload.layers, result.offload.splits) == (3, 2)
    assert result.comparison is not None
    assert result.comparison.tokens == 16
    assert result.comparison.equal >= 8
    assert 0 < result.comparison.max_difference < result.comparison.limit
    [device] = evidence.device.accelerators
    assert device.is_software
    assert device.name.startswith("llvmpipe (LLVM ")
    assert "mesa-vulkan-drivers" in (device.driver or "")
    [own] = [file for file in result.dsos if file.path.endswith("/libggml-vulkan.so")]
    assert own.path.startswith("~/.llamafile/v/")
    assert own.sha256 == sha256_file(library)
    assert any(file.path.endswith("/libvulkan_lvp.so") for file in result.drivers)
    assert any("software" in text for text in evidence.not_tested)
    assert proof.path.name == f"{artifact.name}.smoke-vulkan.json"


def test_an_engine_that_skips_the_device_does_not_pass_on_the_cpu(
    artifact: Path, model: Path, context: Context, row: Backend
) -> None:
    """Without its number the engine ignores a device in software, says nothing, and would use the CPU."""
    plan = make_plan(context.layout, artifact, backend="vulkan", model=model)
    target = replace(software_target(context, row), variables={})
    with (
        open_container_place(context.layout, Console(quiet=True), files=(plan.model,)) as place,
        pytest.raises(VerificationError) as caught,
    ):
        smoke(replace(plan, target=target, place=place), context.console)
    assert caught.value.error_id == "smoke-no-backend-device"
