"""GPUs as three ways of asking tell them. NVML is stood in for; Vulkan's probe is a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from opencoti.hardware import Answer, Gpu, Hardware, Memory, detect, machine_memory
from opencoti.hardware.amd import ask_sysfs
from opencoti.hardware.nvidia import ask_nvml
from opencoti.hardware.vulkan import ask_vulkan

GIB = 1 << 30


class FakeNvml:
    """What `ctypes.CDLL` gives of a driver with two cards; `broken` names the calls that fail."""

    def __init__(self, broken: tuple[str, ...] = (), lacks: tuple[str, ...] = ()) -> None:
        self.broken = broken
        self.lacks = lacks
        self.is_open = False

    def __getattr__(self, name: str) -> Any:
        if name in self.lacks:
            raise AttributeError(name)
        return lambda *words: 999 if name in self.broken else getattr(self, f"call_{name}")(*words)

    def call_nvmlInit_v2(self) -> int:  # noqa: N802
        self.is_open = True
        return 0

    def call_nvmlShutdown(self) -> int:  # noqa: N802
        self.is_open = False
        return 0

    def call_nvmlSystemGetDriverVersion(self, buffer: Any, size: Any) -> int:  # noqa: N802
        buffer.value = b"570.86"
        return 0

    def call_nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        count._obj.value = 2
        return 0

    def call_nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:  # noqa: N802
        handle._obj.value = index.value + 1
        return 0

    def call_nvmlDeviceGetName(self, handle: Any, buffer: Any, size: Any) -> int:  # noqa: N802
        buffer.value = f"Card {handle.value}".encode()
        return 0

    def call_nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:  # noqa: N802
        memory._obj.total, memory._obj.free = 24 * GIB, handle.value * GIB
        return 0

    def call_nvmlDeviceGetCudaComputeCapability(self, handle: Any, major: Any, minor: Any) -> int:  # noqa: N802
        major._obj.value, minor._obj.value = 9, 0
        return 0


def test_nvidia_cards_are_read_and_the_library_is_closed() -> None:
    library = FakeNvml()
    answer = ask_nvml(lambda name: library)
    assert [(gpu.name, gpu.free_bytes) for gpu in answer.gpus] == [("Card 1", GIB), ("Card 2", 2 * GIB)]
    first = answer.gpus[0]
    assert (first.total_bytes, first.architecture, first.driver) == (24 * GIB, "9.0", "570.86")
    assert not library.is_open


def test_a_missing_driver_is_a_note() -> None:
    def absent(name: str) -> Any:
        raise OSError(name)

    answer = ask_nvml(absent)
    assert (answer.gpus, "libnvidia-ml.so.1" in answer.notes[0]) == ((), True)


@pytest.mark.parametrize("call", ["nvmlInit_v2", "nvmlDeviceGetCount_v2", "nvmlDeviceGetName"])
def test_a_driver_that_refuses_is_a_note(call: str) -> None:
    for library in (FakeNvml(broken=(call,)), FakeNvml(lacks=(call,))):
        answer = ask_nvml(lambda name, library=library: library)  # type: ignore[misc]
        assert (answer.gpus, call in answer.notes[0]) == ((), True)


def test_a_card_that_shares_the_memory_of_the_machine_has_none_of_its_own() -> None:
    answer = ask_nvml(lambda name: FakeNvml(broken=("nvmlDeviceGetMemoryInfo",)))
    assert answer.gpus[0].is_integrated
    assert (
        Hardware(gpus=answer.gpus, memory=Memory(total_bytes=0, available_bytes=0), notes=()).vram_bytes == 0
    )


def amd_card(root: Path, number: int, **files: str) -> None:
    device = root / "class/drm" / f"card{number}" / "device"
    (device / "drm" / f"renderD{128 + number}").mkdir(parents=True)
    for name, text in {"vendor": "0x1002", "device": "0x744c", **files}.items():
        (device / name).write_text(text + "\n")
    node = root / "class/kfd/kfd/topology/nodes" / str(number)
    node.mkdir(parents=True)
    version = "110000" if number == 0 else "90402"
    (node / "properties").write_text(f"gfx_target_version {version}\ndrm_render_minor {128 + number}\n")


def test_amd_cards_are_read_from_sysfs(tmp_path: Path) -> None:
    amd_card(tmp_path, 0, mem_info_vram_total=str(24 * GIB), mem_info_vram_used=str(GIB), product_name="RX")
    amd_card(tmp_path, 1, mem_info_vram_total=str(GIB), mem_info_gtt_total=str(16 * GIB))
    (tmp_path / "class/drm/card0-HDMI-A-1").mkdir()
    answer = ask_sysfs(tmp_path)
    assert [(gpu.name, gpu.architecture, gpu.is_integrated) for gpu in answer.gpus] == [
        ("RX", "gfx1100", False),
        ("AMD 0x744c", "gfx942", True),
    ]
    assert answer.gpus[0].free_bytes == 23 * GIB


def test_other_vendors_and_nonsense_in_sysfs_are_passed_over(tmp_path: Path) -> None:
    amd_card(tmp_path, 0, vendor="0x8086")
    amd_card(tmp_path, 1, mem_info_vram_total="lots")
    answer = ask_sysfs(tmp_path)
    assert [gpu.total_bytes for gpu in answer.gpus] == [0]
    assert ask_sysfs(tmp_path / "absent").notes


def probe(code: str) -> Answer:
    return ask_vulkan((sys.executable, "-c", code))


def test_vulkan_devices_are_parsed() -> None:
    line = '{"vendor": 32902, "kind": 2, "name": "Arc", "bytes": 17179869184}'
    answer = probe(f"print('{line}')")
    assert [(gpu.vendor, gpu.name, gpu.total_bytes) for gpu in answer.gpus] == [("intel", "Arc", 16 * GIB)]
    assert probe(f"print('{line.replace('2,', '1,', 2)}')").gpus[0].is_integrated


@pytest.mark.parametrize(
    ("code", "note"),
    [
        ("import sys; sys.exit(3)", "no loader"),
        ("import sys; sys.exit(4)", "no driver"),
        ("import os; os.abort()", "crashed"),
        ("print('[]')", "makes no sense"),
        ("print('{}')", "makes no sense"),
        ("print('\\x00')", "makes no sense"),
        ("pass", "no GPU"),
    ],
)
def test_a_vulkan_driver_that_fails_is_a_note(code: str, note: str) -> None:
    answer = probe(code)
    assert (answer.gpus, note in answer.notes[0]) == ((), True)


def test_the_real_probe_runs_on_this_machine() -> None:
    answer = ask_vulkan()
    assert answer.gpus or answer.notes
    assert not any("crashed" in note for note in answer.notes)


def gpu(vendor: str, gib: int, **words: Any) -> Gpu:
    return Gpu(
        vendor=vendor,  # type: ignore[arg-type]
        name=vendor,
        total_bytes=gib * GIB,
        free_bytes=words.pop("free", None),
        architecture="",
        driver="",
        seen_by=words.pop("seen_by", "nvml"),
        **words,
    )


def test_what_two_ways_see_is_listed_once_and_one_vendor_is_used() -> None:
    found = detect(
        (
            lambda: Answer(gpus=(gpu("nvidia", 24, free=20 * GIB), gpu("nvidia", 24, free=24 * GIB))),
            lambda: Answer(gpus=(gpu("amd", 16),), notes=("a note",)),
            lambda: Answer(gpus=(gpu("nvidia", 24, seen_by="vulkan"), gpu("intel", 1, is_integrated=True))),
        )
    )
    assert [item.vendor for item in found.gpus] == ["nvidia", "nvidia", "amd", "intel"]
    assert (found.vram_bytes, found.free_vram_bytes) == (48 * GIB, 44 * GIB)
    assert found.notes == ("a note",)


def test_memory_of_the_machine_is_read(tmp_path: Path) -> None:
    path = tmp_path / "meminfo"
    path.write_text("MemTotal:       1024 kB\nMemFree: 1 kB\nMemAvailable:   512 kB\n")
    assert machine_memory(str(path)) == Memory(total_bytes=1 << 20, available_bytes=1 << 19)
    path.write_text("nothing")
    assert machine_memory(str(path)).total_bytes > 0
