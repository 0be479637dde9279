"""Targets of CUDA code, read from imitated fat binaries; the probe of the images has real ones."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from ci.dso.cuobjdump import parse_cuobjdump_listing
from ci.dso.fatbin import CudaTargets, read_cuda_targets
from opencoti.errors import ConfigError
from tests.fakes.gpu_files import NVVM, PTX, SASS, FatEntry, elf_file, fat_binary, fat_group, padded

WRAPPER = struct.pack("<IIQQ", 0x466243B1, 1, 0, 0)


def _sass(*archs: str) -> list[FatEntry]:
    return [FatEntry(kind=SASS, arch=arch) for arch in archs]


def _read(tmp_path: Path, sections: dict[str, bytes]) -> CudaTargets:
    path = tmp_path / "libggml-cuda.so"
    path.write_bytes(elf_file(sections))
    return read_cuda_targets(path)


def _error(tmp_path: Path, data: bytes) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        _read(tmp_path, {".nv_fatbin": data})
    return caught.value


def test_every_container_and_entry_counts(tmp_path: Path) -> None:
    first = fat_binary(*_sass("75", "120f"), FatEntry(kind=PTX, arch="90", is_compressed=True))
    second = fat_binary(*_sass("86", "90a", "75"), FatEntry(kind=PTX, arch="120f", options=b"-g\0\0\0\0\0\0"))
    targets = _read(tmp_path, {".nv_fatbin": padded(first, second), ".nvFatBinSegment": WRAPPER * 2})
    assert targets == CudaTargets(sass=("75", "86", "90a", "120f"), ptx=("90", "120f"))
    assert targets.names == ("sm_75", "sm_86", "sm_90a", "sm_120f", "compute_90", "compute_120f")


def test_a_suffix_makes_another_target(tmp_path: Path) -> None:
    """sm_120, sm_120a and sm_120f run on different sets of devices (case B13)."""
    assert _read(tmp_path, {".nv_fatbin": fat_binary(*_sass("120f", "120", "120a"))}).sass == (
        "120",
        "120a",
        "120f",
    )


def test_wide_gaps_of_a_linker_are_skipped(tmp_path: Path) -> None:
    data = padded(fat_binary(*_sass("75")), fat_binary(*_sass("80")), alignment=4096)
    assert _read(tmp_path, {".nv_fatbin": data}).sass == ("75", "80")


def test_entries_of_a_group_are_found(tmp_path: Path) -> None:
    group = fat_group(_sass("75", "80", "86"))
    targets = _read(
        tmp_path, {".nv_fatbin": fat_binary(FatEntry(kind=PTX, arch="75"), group, *_sass("120f"))}
    )
    assert targets == CudaTargets(sass=("75", "80", "86", "120f"), ptx=("75",))


def test_code_for_a_device_linker_counts_only_where_nothing_is_linked(tmp_path: Path) -> None:
    unlinked = fat_binary(FatEntry(kind=NVVM, arch="80"), FatEntry(kind=PTX, arch="80"))
    assert _read(tmp_path, {"__nv_relfatbin": unlinked}) == CudaTargets(ptx=("80",), other=("lto_80",))
    linked = fat_binary(*_sass("80"))
    assert _read(tmp_path, {".nv_fatbin": linked, "__nv_relfatbin": unlinked}) == CudaTargets(sass=("80",))


def test_an_unknown_kind_is_named_not_dropped(tmp_path: Path) -> None:
    targets = _read(tmp_path, {".nv_fatbin": fat_binary(FatEntry(kind=32, arch="110"))})
    assert targets == CudaTargets(other=("kind32_110",))


def test_a_file_without_cuda_has_no_targets(tmp_path: Path) -> None:
    assert _read(tmp_path, {".text": b"\x90"}) == CudaTargets()


def test_fat_binaries_that_are_registered_must_be_there(tmp_path: Path) -> None:
    """`strip --remove-section` leaves a library that loads and then finds no kernel."""
    for sections in ({}, {".nv_fatbin": fat_binary(*_sass("75"))}):
        with pytest.raises(ConfigError) as caught:
            _read(tmp_path, {**sections, ".nvFatBinSegment": WRAPPER * 2})
        assert caught.value.error_id == "fatbin-malformed"
        assert "registers 2" in caught.value.why


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x50\xed\x55\xba", "cut off"),
        (b"garbage" * 9, "no fat binary"),
        (struct.pack("<IHHQ", 0xBA55ED50, 2, 16, 0), "no fat binary"),
        (struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 1 << 63), "outside its section"),
        (struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 8) + b"\1" * 8, "cut off"),
        (struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 64) + bytes(64), "outside its fat binary"),
        (fat_binary(FatEntry(kind=SASS, arch="7")), "no GPU that there is"),
        (fat_binary(fat_group(_sass("75"), count=1 << 31)), "does not fit"),
    ],
)
def test_damage_is_one_clear_error(tmp_path: Path, data: bytes, why: str) -> None:
    error = _error(tmp_path, data)
    assert error.error_id == "fatbin-malformed"
    assert why in error.why


def test_every_cut_is_refused_or_ends_between_containers(tmp_path: Path) -> None:
    parts = [fat_binary(*_sass("75")), fat_binary(*_sass("80"), fat_group(_sass("86")))]
    data = b"".join(parts)
    for size in [*range(1, len(data), 3), len(parts[0])]:
        if size == len(parts[0]):
            assert _read(tmp_path, {".nv_fatbin": data[:size]}).sass == ("75",)
        else:
            assert _error(tmp_path, data[:size]).error_id == "fatbin-malformed"


@pytest.mark.parametrize("seed", range(4))
def test_changed_bytes_give_targets_or_one_error(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    entries = [*_sass("75", "90a"), fat_group(_sass("86", "120f")), FatEntry(kind=PTX, arch="90")]
    original = padded(fat_binary(*entries), fat_binary(*entries[:2]))
    for _ in range(250):
        data = bytearray(original)
        for _ in range(chance.choice((1, 2, 6))):
            data[chance.randrange(len(data))] = chance.choice((0, 1, 2, 0x7F, 0xFF, chance.randrange(256)))
        assert _outcome(tmp_path, bytes(data)) in ("targets", "fatbin-malformed")


def _outcome(tmp_path: Path, data: bytes) -> str:
    try:
        targets = _read(tmp_path, {".nv_fatbin": data})
    except ConfigError as error:
        return error.error_id
    return "targets" if len(targets.names) <= 8 else "too many"


# What cuobjdump 13.5 prints about a library with SASS for 75 and 120f, PTX for 90a, and an LTO entry.
SUMMARY = """
Fatbin elf code:
================
arch = sm_75
code version = [1,8]
host = linux
compile_size = 64bit

Fatbin concatenated entry code:
===============================
code version = [0,1]

\tFatbin elf code:
\t================
\tarch = sm_120f
\tcode version = [1,8]

Fatbin ptx code:
================
arch = sm_90a
code version = [9,5]
compressed
ptxasOptions =

Fatbin nvvm code:
=================
arch = sm_80
"""
LISTING = """ELF file    1: libggml-cuda.1.sm_75.cubin
ELF file    2: libggml-cuda.2.sm_90a.cubin
PTX file    1: k.sm_75.cu.1.sm_90.ptx
"""


def test_the_summary_of_cuobjdump_is_understood() -> None:
    assert parse_cuobjdump_listing(SUMMARY) == CudaTargets(
        sass=("75", "120f"), ptx=("90a",), other=("lto_80",)
    )


def test_the_listing_of_cuobjdump_is_understood() -> None:
    assert parse_cuobjdump_listing(LISTING) == CudaTargets(sass=("75", "90a"), ptx=("90",))


@pytest.mark.parametrize("text", ["", "\ncuobjdump info    : File 'ls' does not contain device code\n"])
def test_a_file_without_device_code_has_an_empty_listing(text: str) -> None:
    assert parse_cuobjdump_listing(text) == CudaTargets()


def test_what_cuobjdump_never_prints_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_cuobjdump_listing("cuobjdump fatal   : Support for 'sm_35' has been removed.")
    assert caught.value.error_id == "cuobjdump-unreadable"
