"""glslc and the Vulkan headers of this machine."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ci.paths import Layout
from ci.toolchains.machine import Machine
from ci.toolchains.setups import find_setup
from ci.toolchains.table import load_table
from opencoti.errors import MissingError
from tests.conftest import ROOT
from tests.fakes.toolkits import vulkan_sdk, write_program

BACKEND = load_table(ROOT / "containers" / "toolchains.toml").backend("vulkan")


@pytest.fixture
def checkout(tmp_path: Path) -> Layout:
    return Layout(root=ROOT, cache=tmp_path / "cache")


def machine(tmp_path: Path, *, path: Path | None = None, **environ: str) -> Machine:
    return Machine(environ={"PATH": str(path or tmp_path / "none"), **environ}, prefix=tmp_path)


def refusal(layout: Layout, computer: Machine) -> MissingError:
    with pytest.raises(MissingError) as caught:
        find_setup(BACKEND, layout, computer)
    return caught.value


def test_a_missing_shader_compiler_names_package_variable_and_image(tmp_path: Path, checkout: Layout) -> None:
    """Case B16."""
    error = refusal(checkout, machine(tmp_path))
    assert (error.error_id, error.exit_code) == ("glslc-missing", 4)
    for word in ("apt-get install glslc", "OPENCOTI_VULKAN_SDK", "--engine docker", "image `vulkan`"):
        assert word in error.hint


def test_an_sdk_that_is_named_is_not_replaced_by_what_path_has(tmp_path: Path, checkout: Layout) -> None:
    other = vulkan_sdk(tmp_path / "other")
    computer = machine(tmp_path, path=other / "bin", OPENCOTI_VULKAN_SDK=str(tmp_path / "gone"))
    error = refusal(checkout, computer)
    assert error.error_id == "glslc-missing"
    assert str(tmp_path / "gone") in error.what


@pytest.mark.parametrize("below", ["", "x86_64"])
def test_the_sdk_is_found_at_both_of_its_roots(below: str, tmp_path: Path, checkout: Layout) -> None:
    sdk = vulkan_sdk(tmp_path / "my sdk" / below, version="2024.3")
    setup = find_setup(BACKEND, checkout, machine(tmp_path, OPENCOTI_VULKAN_SDK=str(tmp_path / "my sdk")))
    assert setup.record["toolkit"] == "glslc 2024.3, Vulkan headers 1.4.309"
    assert setup.scripts(Path("/x"))["glslc"] == f"#!/bin/sh\nexec '{sdk}/bin/glslc' \"$@\"\n"
    assert setup.links["vulkan/usr/include/vulkan"] == sdk / "include" / "vulkan"


def test_headers_of_the_system_are_linked_one_by_one(tmp_path: Path, checkout: Layout) -> None:
    vulkan_sdk(tmp_path / "usr")
    shutil.copytree(tmp_path / "usr" / "bin", tmp_path / "tools")
    setup = find_setup(BACKEND, checkout, machine(tmp_path, path=tmp_path / "tools"))
    assert {name: str(path) for name, path in setup.links.items()} == {
        f"vulkan/usr/include/{name}": f"{tmp_path}/usr/include/{name}"
        for name in ("vulkan", "vk_video", "spirv")
    }


@pytest.mark.parametrize("gone", ["vulkan/vulkan.hpp", "spirv/unified1/spirv.hpp"])
def test_missing_headers_are_named(gone: str, tmp_path: Path, checkout: Layout) -> None:
    sdk = vulkan_sdk(tmp_path / "sdk")
    (sdk / "include" / gone).unlink()
    error = refusal(checkout, machine(tmp_path, OPENCOTI_VULKAN_SDK=str(sdk)))
    assert error.error_id == "vulkan-headers-missing"
    assert gone in error.what


def test_headers_that_ggml_does_not_compile_with_are_refused(tmp_path: Path, checkout: Layout) -> None:
    sdk = vulkan_sdk(tmp_path / "sdk", is_old=True)
    error = refusal(checkout, machine(tmp_path, OPENCOTI_VULKAN_SDK=str(sdk)))
    assert error.error_id == "vulkan-headers-old"
    assert "VkLayerSettingEXT" in error.why


def test_the_features_are_measured_with_the_probes_of_the_images(tmp_path: Path, checkout: Layout) -> None:
    sdk = vulkan_sdk(tmp_path / "sdk", version="2023.2", unknown="GL_NV_cooperative_matrix2")
    setup = find_setup(BACKEND, checkout, machine(tmp_path, OPENCOTI_VULKAN_SDK=str(sdk)))
    measured = setup.record["features"].split(",")
    assert "GL_KHR_cooperative_matrix" in measured
    assert "GL_NV_cooperative_matrix2" not in measured
    assert "lacks GL_NV_cooperative_matrix2" in setup.notices[0]


def test_a_compiler_that_cannot_do_the_least_is_refused(tmp_path: Path, checkout: Layout) -> None:
    sdk = vulkan_sdk(tmp_path / "sdk", unknown="probe.comp")
    error = refusal(checkout, machine(tmp_path, OPENCOTI_VULKAN_SDK=str(sdk)))
    assert error.error_id == "glslc-unfit"


def test_a_glslc_without_a_version_is_refused(tmp_path: Path, checkout: Layout) -> None:
    sdk = vulkan_sdk(tmp_path / "sdk")
    write_program(sdk / "bin" / "glslc", "echo hello\n")
    error = refusal(checkout, machine(tmp_path, OPENCOTI_VULKAN_SDK=str(sdk)))
    assert error.error_id == "glslc-version-unreadable"
