"""The CPU stage of each architecture: what is configured, built and expected."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ci.build import BuildOptions, backend_folder, host_arch, target_arch
from ci.paths import Layout
from ci.stages.elf import CPU_VARIANTS, EngineIdentity, cpu_stage, product_names, variant_names
from ci.stages.model import Stage
from opencoti.errors import UsageError
from tests.conftest import require

IDENTITY = EngineIdentity(version_string="opencoti-1-c1", patch_set="0" * 64, upstream_commit="1" * 40)


def stage(arch: str) -> Stage:
    return cpu_stage(arch=arch, toolchain="zig", source_tree="2" * 40, identity=IDENTITY)


def test_a_foreign_target_is_told_to_the_compilers_and_to_cmake() -> None:
    arm = stage("aarch64")
    assert arm.env == {"OPENCOTI_TARGET": "aarch64-linux-gnu.2.28"}
    assert {"-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64"} <= set(arm.steps[0].argv)
    assert arm.name == "cpu-aarch64"


def test_the_target_that_the_compilers_assume_needs_no_words() -> None:
    intel = stage("x86_64")
    assert intel.env == {}
    assert not [word for word in intel.steps[0].argv if word.startswith("-DCMAKE_SYSTEM_")]


@pytest.mark.parametrize("arch", CPU_VARIANTS)
def test_every_variant_is_a_target_and_a_product(arch: str) -> None:
    described = stage(arch)
    for variant in CPU_VARIANTS[arch]:
        assert f"ggml-cpu-{variant}" in described.steps[1].argv
        assert f"bin/libggml-cpu-{variant}.so" in described.outputs
    assert len(described.outputs) == len(set(product_names(arch))) == len(variant_names(arch)) + 3


@pytest.mark.parametrize(
    ("arch", "begin", "end"),
    [("x86_64", r'STREQUAL "x86"', r'STREQUAL "ARM"'), ("aarch64", 'MATCHES "Linux"', 'MATCHES "Android"')],
)
def test_the_variants_are_those_of_the_pinned_source(
    real_layout: Layout, arch: str, begin: str, end: str
) -> None:
    file = real_layout.sources / "llama.cpp" / "ggml" / "src" / "CMakeLists.txt"
    require(file.is_file(), "the pinned source is not unpacked: run ./noxw -s vendor")
    text = file.read_text().split("\nif (GGML_CPU_ALL_VARIANTS)", 1)[1]
    part = text.split(begin, 1)[1].split(end, 1)[0]
    listed = re.findall(r"ggml_add_cpu_backend_variant\((\S+?)[\s)]", part)
    assert sorted(listed) == sorted(CPU_VARIANTS[arch])


def test_products_for_other_machines_lie_apart(layout: Layout) -> None:
    other = next(arch for arch in CPU_VARIANTS if arch != host_arch())
    cpu = layout.dist / "backends" / "cpu"
    assert backend_folder(layout, "cpu", "0.5.0", arch=host_arch()) == cpu / "0.5.0"
    assert backend_folder(layout, "cpu", "0.5.0", arch=other) == Path(f"{cpu}/0.5.0-{other}")


def test_the_compilers_of_this_machine_build_for_no_other() -> None:
    """Case B13: refused before anything is compiled."""
    other = next(arch for arch in CPU_VARIANTS if arch != host_arch())
    options = BuildOptions(engine="host", toolchain="zig", jobs=1, arch=other)
    assert target_arch(options) == other
    with pytest.raises(UsageError) as caught:
        target_arch(BuildOptions(engine="host", toolchain="system", jobs=1, arch=other))
    assert caught.value.error_id == "system-toolchain-foreign"


def test_a_tree_without_our_list_of_paths_is_configured_without_it() -> None:
    def words(has_plain_paths: bool) -> list[str]:
        stage = cpu_stage(
            arch="x86_64",
            toolchain="zig",
            source_tree="2" * 40,
            identity=IDENTITY,
            has_plain_paths=has_plain_paths,
        )
        return [word for word in stage.steps[0].argv if word.startswith("-DCMAKE_PROJECT_INCLUDE=")]

    assert words(True) == ["-DCMAKE_PROJECT_INCLUDE={src}/cmake/opencoti/plain-paths.cmake"]
    assert words(False) == []
