"""Which device of a machine is taken, from what the loader of Vulkan and the kernel say."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.smoke.devices import VISIBLE, VulkanDevice, find_target, vulkan_target
from ci.toolchains.table import load_table
from tests.conftest import ROOT

LLVMPIPE = VulkanDevice(name="llvmpipe (LLVM 19.1.7, 256 bits)", kind=4, driver="llvmpipe Mesa 25.0.7")
RADEON = VulkanDevice(name="AMD Radeon RX 7900 XTX", kind=1, driver="radv Mesa 25.0.7")
TABLE = load_table(ROOT / "containers" / "toolchains.toml")
NVIDIA = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:10:13 UTC 2025\nGCC version:\n"
)


def test_a_real_device_is_left_to_the_engine() -> None:
    target = vulkan_target((LLVMPIPE, RADEON), "libggml-vulkan.so", {"VK_DRIVER_FILES": "/x"})
    assert target is not None
    assert dict(target.variables) == {"VK_DRIVER_FILES": "/x"}
    assert [item.name for item in target.accelerators] == [RADEON.name]
    assert not target.accelerators[0].is_software


def test_software_is_named_by_number_because_the_engine_skips_it() -> None:
    target = vulkan_target((LLVMPIPE,), "libggml-vulkan.so", {})
    assert target is not None
    assert target.variables[VISIBLE] == "0"
    assert target.accelerators[0].is_software


def test_without_a_device_there_is_no_target() -> None:
    assert vulkan_target((), "libggml-vulkan.so", {}) is None


@pytest.mark.parametrize(
    ("backend", "node", "version", "text", "driver"),
    [
        ("cuda13", "dev/nvidiactl", "proc/driver/nvidia/version", NVIDIA, "580.65.06"),
        ("cuda12", "dev/dxg", "", "", None),
        ("rocm", "dev/kfd", "sys/module/amdgpu/version", "6.10.5\n", "6.10.5"),
    ],
)
def test_the_kernel_says_whether_there_is_a_device(
    tmp_path: Path, backend: str, node: str, version: str, text: str, driver: str | None
) -> None:
    row = TABLE.backend(backend)
    assert find_target(row, {}, root=tmp_path) is None
    for name, content in ((node, ""), (version, text)):
        if name:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(content)
    target = find_target(row, {"LD_LIBRARY_PATH": "/opt/lib", "SECRET": "x"}, root=tmp_path)
    assert target is not None
    assert target.library == row.library
    assert dict(target.variables) == {"LD_LIBRARY_PATH": "/opt/lib"}
    assert target.accelerators[0].driver == driver
