"""What the engine lists and logs; the logs are those of llama-server 0.5.0-g0c1e570, shortened."""

from __future__ import annotations

import pytest

from ci.smoke.mapped import Loaded
from ci.smoke.target import CPU, Target, check_offload, listed_devices, require_library
from opencoti.errors import VerificationError
from opencoti.evidence import Accelerator, MappedFile

LISTING = """opencoti: notice: unpacking 76 MB to /tmp/home/.llamafile/v/opencoti-0.5.0-g0c1e570-c1-f52a
Available devices:
  Vulkan0: llvmpipe (LLVM 19.1.7, 256 bits) (2048 MiB, 2048 MiB free)
  Vulkan1: AMD Radeon RX 7900 XTX (RADV NAVI31) (24560 MiB, 24000 MiB free)
"""
ON_DEVICE = """0.05.835.350 D load_tensors: layer   0 assigned to device Vulkan0, is_swa = 0
0.05.893.862 D load_tensors: layer   1 assigned to device Vulkan0, is_swa = 0
0.05.893.874 D load_tensors: layer   2 assigned to device Vulkan0, is_swa = 0
0.05.894.699 D done_getting_tensors: tensor 'token_embd.weight' (q8_0) (and 0 others) cannot be used with \
preferred buffer type Vulkan_Host, using CPU instead
0.05.941.847 I load_tensors: offloaded 3/3 layers to GPU
0.05.986.193 I llama_kv_cache:    Vulkan0 KV buffer size =     0.12 MiB
0.06.050.168 I sched_reserve: graph: nodes = 77, splits = 2, input objects = 5, input tensors = 7
"""
# Started with `--device none --n-gpu-layers all`: it says "offloaded" all the same.
ON_CPU = """0.04.660.724 I load_tensors: offloading output layer to GPU
0.04.675.849 I load_tensors: offloading 1 repeating layers to GPU
0.04.675.860 I load_tensors: offloaded 3/3 layers to GPU
0.04.675.881 I load_tensors:   CPU_Mapped model buffer size =     9.93 MiB
0.04.686.470 I llama_kv_cache:        CPU KV buffer size =     0.12 MiB
0.04.687.080 I sched_reserve:        CPU compute buffer size =   297.39 MiB
0.04.687.090 I sched_reserve: graph: nodes = 77, splits = 1, input objects = 5, input tensors = 7
"""
LLVMPIPE = Accelerator(name="llvmpipe (LLVM 19.1.7, 256 bits)", is_software=True, driver="Mesa 25.0.7")


def vulkan(*accelerators: Accelerator) -> Target:
    return Target(kind="vulkan", library="libggml-vulkan.so", accelerators=accelerators)


def test_devices_are_listed_with_their_names() -> None:
    assert [(item.id, item.name) for item in listed_devices(LISTING)] == [
        ("Vulkan0", "llvmpipe (LLVM 19.1.7, 256 bits)"),
        ("Vulkan1", "AMD Radeon RX 7900 XTX (RADV NAVI31)"),
    ]


def test_the_first_device_of_the_kind_is_used_under_the_name_that_the_engine_gives() -> None:
    chosen = vulkan(LLVMPIPE).choose(LISTING)
    assert chosen.device == "Vulkan0"
    assert chosen.accelerators == (LLVMPIPE,)
    assert "Vulkan0" in chosen.arguments


def test_a_device_that_the_system_calls_otherwise_keeps_driver_and_kind() -> None:
    known = Accelerator(name="NVIDIA CUDA 13", is_software=False, driver="580.65.06")
    target = Target(kind="cuda", library="libggml-cuda.so", accelerators=(known,))
    chosen = target.choose("Available devices:\n  CUDA0: NVIDIA H200 (143771 MiB, 142000 MiB free)\n")
    assert chosen.accelerators == (known.model_copy(update={"name": "NVIDIA H200"}),)


@pytest.mark.parametrize(
    "listing",
    [
        "Available devices:\n  (none)\n",
        "",
        "Available devices:\n  CUDA0: NVIDIA H200 (143771 MiB, 142000 MiB free)\n",
    ],
)
def test_a_device_that_the_engine_does_not_show_is_an_error(listing: str) -> None:
    with pytest.raises(VerificationError) as caught:
        vulkan(LLVMPIPE).choose(listing)
    assert caught.value.error_id == "smoke-no-backend-device"
    assert "llvmpipe" in caught.value.why


def test_software_is_said_to_be_no_gpu() -> None:
    real = Accelerator(name="AMD Radeon", is_software=False)
    assert any("software" in text for text in vulkan(LLVMPIPE).not_tested)
    assert not any("software" in text for text in vulkan(real).not_tested)
    assert "GPU offload" in CPU.not_tested
    assert "GPU offload" not in vulkan(real).not_tested


def test_every_layer_on_the_device_is_recorded() -> None:
    offload = check_offload(ON_DEVICE, "Vulkan0", layers=2)
    assert (offload.device, offload.layers, offload.splits) == ("Vulkan0", 3, 2)


def test_the_word_offloaded_is_no_proof() -> None:
    with pytest.raises(VerificationError) as caught:
        check_offload(ON_CPU, "Vulkan0", layers=2)
    assert caught.value.error_id == "smoke-not-offloaded"


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("layer   1 assigned to device Vulkan0", "layer   1 assigned to device CPU", "1: CPU"),
        ("layer   2 assigned to device Vulkan0", "layer   2 assigned to device Vulkan1", "2: Vulkan1"),
        ("layer   2 assigned", "layer   9 assigned", "2: not mentioned"),
        ("preferred buffer type Vulkan_Host", "preferred buffer type Vulkan0", "token_embd.weight"),
        ("Vulkan0 KV buffer", "CPU KV buffer", "the cache is on CPU"),
        ("splits = 2,", "splits = 3,", "fell into 3 parts"),
        (
            "graph: nodes = 77, splits = 2,",
            "graph (pp bs=512, tg bs=1): nodes = 77, splits = 2 / 4,",
            "4 parts",
        ),
        ("sched_reserve: graph", "sched_reserve: none", "fell into 0 parts"),
    ],
)
def test_whatever_falls_back_to_the_cpu_is_found(old: str, new: str, why: str) -> None:
    assert old in ON_DEVICE
    with pytest.raises(VerificationError) as caught:
        check_offload(ON_DEVICE.replace(old, new), "Vulkan0", layers=2)
    assert caught.value.error_id == "smoke-not-offloaded"
    assert why in caught.value.why


def test_a_backend_library_that_is_not_mapped_is_an_error() -> None:
    own = MappedFile(path="~/.llamafile/v/x/libggml-vulkan.so", inode=1, sha256="0" * 64)
    require_library(Loaded(files=(own,), cpu_variant=None), "libggml-vulkan.so")
    with pytest.raises(VerificationError) as caught:
        require_library(Loaded(files=(own,), cpu_variant=None), "libggml-cuda.so")
    assert caught.value.error_id == "smoke-backend-not-loaded"
