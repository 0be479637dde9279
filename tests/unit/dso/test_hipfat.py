"""Targets of ROCm code, read from imitated offload bundles."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from ci.dso.hipfat import read_hip_targets
from opencoti.errors import ConfigError
from tests.fakes.gpu_files import bundle, compressed_bundle, elf_file, padded

WRAPPER = struct.pack("<IIQQ", 0x48495046, 1, 0, 0)


def _read(tmp_path: Path, data: bytes, *, wrappers: int = 0, is_object: bool = False) -> tuple[str, ...]:
    path = tmp_path / "libggml-hip.so"
    sections = {".hip_fatbin": data} if data else {}
    if wrappers:
        sections[".hipFatBinSegment"] = WRAPPER * wrappers
    path.write_bytes(elf_file(sections, is_object=is_object))
    return read_hip_targets(path)


def test_targets_of_every_bundle_with_their_features(tmp_path: Path) -> None:
    data = padded(
        bundle("gfx1100", "gfx90a:xnack+"), bundle("gfx90a:xnack-", "gfx1100"), alignment=4096
    ) + bundle("gfx942:sramecc+:xnack-", "gfx11-generic")
    assert _read(tmp_path, data, wrappers=3) == (
        "gfx11-generic",
        "gfx1100",
        "gfx90a:xnack+",
        "gfx90a:xnack-",
        "gfx942:sramecc+:xnack-",
    )


@pytest.mark.parametrize("kind", ["hip-amdgcn-amd-amdhsa--", "hipv4-amdgcn-amd-amdhsa-unknown-"])
def test_other_spellings_of_the_triple(tmp_path: Path, kind: str) -> None:
    assert _read(tmp_path, bundle("gfx906", kind=kind)) == ("gfx906",)


def test_an_unknown_id_is_named_not_dropped(tmp_path: Path) -> None:
    assert _read(tmp_path, bundle("gfx906", kind="openmp-amdgcn-")) == ("openmp-amdgcn-gfx906",)


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("method", [0, 1])
def test_compressed_bundles(tmp_path: Path, version: int, method: int) -> None:
    parts = [
        compressed_bundle(bundle(*targets), version=version, method=method)
        for targets in (("gfx906", "gfx1100"), ("gfx1201",))
    ]
    data = padded(*parts, bundle("gfx90a"), alignment=4096)
    assert _read(tmp_path, data, wrappers=3) == ("gfx1100", "gfx1201", "gfx906", "gfx90a")


def test_a_file_without_rocm_has_no_targets(tmp_path: Path) -> None:
    assert _read(tmp_path, b"") == ()


def test_bundles_that_are_registered_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        _read(tmp_path, bundle("gfx906"), wrappers=2)
    assert caught.value.error_id == "hip-bundle-malformed"
    # Code for a device linker is in sections of another name.
    assert _read(tmp_path, b"", wrappers=1, is_object=True) == ()


def _with_count(count: int) -> bytes:
    return b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", count) + bytes(64)


def _compressed(*, version: int = 2, method: int = 1, size: int = 40, body: bytes = b"x" * 16) -> bytes:
    return struct.pack("<4sHHIIQ", b"CCOB", version, method, size, 4096, 0) + body


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"garbage", "no bundle where"),
        (b"__CLANG_OFFLOAD_BUNDLE__\1", "cut off"),
        (_with_count(1 << 60), "entries"),
        (_with_count(3), "is no text"),
        (_with_count(1)[:40], "cut off"),
        (bundle("gfx\x1b[2J"), "is no text"),
        (bundle("gfx906")[:4100], "outside its section"),
        (_compressed(version=9), "version 9"),
        (_compressed(method=7), "method 7"),
        (_compressed(size=1 << 31), "outside its section"),
        (_compressed(size=3), "outside its section"),
        (_compressed(), "damaged"),
        (_compressed(method=0), "damaged"),
        (compressed_bundle(b"something else" * 20), "inside a compressed one"),
        (compressed_bundle(bundle("gfx906")[:40]), "cut off"),
    ],
)
def test_damage_is_one_clear_error(tmp_path: Path, data: bytes, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _read(tmp_path, data)
    assert caught.value.error_id == "hip-bundle-malformed"
    assert why in caught.value.why


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    """The table of a bundle is at its beginning: 64 MiB of zeros behind it are never made."""
    data = compressed_bundle(bundle("gfx906") + bytes(64 << 20))
    assert len(data) < 1 << 16
    assert _read(tmp_path, data) == ("gfx906",)


@pytest.mark.parametrize("seed", range(4))
def test_changed_bytes_give_targets_or_one_error(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    original = padded(bundle("gfx906", "gfx90a:xnack+"), compressed_bundle(bundle("gfx1100")), alignment=4096)
    places = [*range(300), *range(8192, 8192 + 120)]
    for _ in range(250):
        data = bytearray(original)
        for _ in range(chance.choice((1, 2, 6))):
            data[chance.choice(places)] = chance.choice((0, 1, 2, 0x7F, 0xFF, chance.randrange(256)))
        assert _outcome(tmp_path, bytes(data)) in ("targets", "hip-bundle-malformed")


def _outcome(tmp_path: Path, data: bytes) -> str:
    try:
        targets = _read(tmp_path, data)
    except ConfigError as error:
        return error.error_id
    return "targets" if all(name.isprintable() for name in targets) else "a name that is no text"
