"""Which backends the GPUs of a machine can run, by the makers' rules."""

from __future__ import annotations

import pytest

from opencoti.fetch.devices import Use, uses_of
from opencoti.hardware import Gpu, Hardware, Memory, Vendor
from opencoti.index import BackendRequirement


def gpu(vendor: Vendor, architecture: str, *, driver: str = "580.1", name: str = "G") -> Gpu:
    return Gpu(
        vendor=vendor,
        name=name,
        total_bytes=1,
        free_bytes=None,
        architecture=architecture,
        driver=driver,
        seen_by="vulkan",
    )


def use(need: BackendRequirement, *gpus: Gpu) -> Use:
    memory = Memory(total_bytes=1, available_bytes=1)
    (found,) = uses_of([need], Hardware(gpus=gpus, memory=memory, notes=("some library is not there",)))
    return found


@pytest.mark.parametrize(
    ("code", "architecture", "runs"),
    [
        ("sm_80", "8.0", True),
        ("sm_80", "8.9", True),
        ("sm_86", "8.0", False),
        ("sm_80", "9.0", False),
        ("compute_80", "12.0", True),
        ("compute_90", "8.9", False),
        ("sm_90a", "9.0", True),
        ("compute_90a", "10.0", False),
        ("sm_120", "12.1", True),
        ("sm_120f", "12.1", True),
        ("sm_120f", "13.0", False),
        ("compute_120f", "13.0", False),
    ],
)
def test_code_for_nvidia(code: str, architecture: str, runs: bool) -> None:
    need = BackendRequirement(backend="cuda12", archs=(code,))
    found = use(need, gpu("nvidia", architecture))
    assert found.rank == (2 if runs else 0)
    assert found.reason == ("for G" if runs else f"it has no code for G ({architecture})")


@pytest.mark.parametrize(("architecture", "runs"), [("gfx1100", True), ("gfx1101", False), ("", True)])
def test_code_for_amd(architecture: str, runs: bool) -> None:
    need = BackendRequirement(backend="rocm", archs=("gfx1030", "gfx1100"))
    assert use(need, gpu("amd", architecture)).rank == (2 if runs else 0)


@pytest.mark.parametrize(
    ("driver", "rank"), [("580.65.06", 2), ("580", 0), ("575.1", 0), ("unknown", 2), ("", 2)]
)
def test_driver_must_be_new_enough_where_it_is_known(driver: str, rank: int) -> None:
    need = BackendRequirement(backend="cuda13", min_driver="580.65")
    assert use(need, gpu("nvidia", "9.0", driver=driver)).rank == rank


def test_one_gpu_that_can_is_enough_and_is_named() -> None:
    need = BackendRequirement(backend="cuda12", archs=("sm_75",))
    found = use(need, gpu("nvidia", "6.1", name="old"), gpu("nvidia", "7.5", name="new"))
    assert (found.rank, found.reason) == (2, "for new")


@pytest.mark.parametrize(
    ("backend", "reason"),
    [("cuda13", "no NVIDIA GPU found"), ("rocm", "no AMD GPU found"), ("vulkan", "no GPU found")],
)
def test_no_gpu_is_a_fact(backend: str, reason: str) -> None:
    assert use(BackendRequirement(backend=backend)) == Use(backend=backend, rank=0, reason=reason)


def test_vulkan_takes_any_gpu_and_ranks_below_the_makers_own() -> None:
    assert use(BackendRequirement(backend="vulkan"), gpu("intel", "")).rank == 1
    assert use(BackendRequirement(backend="rocm"), gpu("intel", "")).rank == 0


def test_processor_is_no_question() -> None:
    hardware = Hardware(gpus=(), memory=Memory(total_bytes=1, available_bytes=1), notes=())
    assert uses_of([BackendRequirement(backend="cpu")], hardware) == ()
