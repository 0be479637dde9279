"""Compiling the loader: static, small, and the same bytes wherever it is done."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

import ci.package.loader as loader_package
from ci import process
from ci.package.loader import SIZE_MAX_BYTES, build_loader, loader_source_hash
from opencoti.errors import BuildError, MissingError, UsageError
from tests.integration.loader.artifacts import LOADER_SOURCES

ROOT = LOADER_SOURCES.parents[2]


@pytest.mark.parametrize(("arch", "machine"), [("x86_64", "EM_X86_64"), ("aarch64", "EM_AARCH64")])
def test_is_a_small_static_executable(
    zig: Path, zig_cache: Path, tmp_path: Path, arch: str, machine: str
) -> None:
    out = build_loader(zig, tmp_path / "new" / "loader", arch=arch, cache=zig_cache)

    assert out.stat().st_size < SIZE_MAX_BYTES
    assert out.stat().st_mode & 0o777 == 0o755
    with open(out, "rb") as file:
        elf = ELFFile(file)
        kinds = [segment["p_type"] for segment in elf.iter_segments()]
        assert elf["e_machine"] == machine
        assert "PT_INTERP" not in kinds
        assert "PT_DYNAMIC" not in kinds
        stack = next(segment for segment in elf.iter_segments() if segment["p_type"] == "PT_GNU_STACK")
        assert stack["p_flags"] & 1 == 0


def test_bytes_do_not_depend_on_the_checkout_path(
    zig: Path, zig_cache: Path, loader_path: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "another" / "checkout"
    for package in ("ci", "opencoti"):
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    code = (
        "import sys; from pathlib import Path; from ci.package.loader import build_loader;"
        "build_loader(Path(sys.argv[1]), Path(sys.argv[2]), arch='x86_64', cache=Path(sys.argv[3]))"
    )

    done = process.run(
        [sys.executable, "-c", code, zig.absolute(), tmp_path / "loader", zig_cache],
        cwd=copy,
        env={
            "PYTHONPATH": str(copy),
            "PATH": "/usr/bin:/bin",
            "CPATH": "/nonexistent",
            "SOURCE_DATE_EPOCH": "1",
        },
    )

    assert done.is_ok, done.error_text
    assert (tmp_path / "loader").read_bytes() == loader_path.read_bytes()
    assert str(copy).encode() not in loader_path.read_bytes()


def test_unknown_architecture(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        build_loader(Path("zig"), tmp_path / "loader", arch="riscv64")
    assert caught.value.error_id == "loader-arch-unknown"


def test_missing_compiler(tmp_path: Path) -> None:
    with pytest.raises(MissingError):
        build_loader(tmp_path / "zig", tmp_path / "loader", arch="x86_64")
    assert list(tmp_path.iterdir()) == []


def test_failing_compiler_is_quoted_and_leaves_nothing(tmp_path: Path) -> None:
    failing = tmp_path / "zig"
    failing.write_text("#!/bin/sh\necho 'main.c:1:1: error: broken' >&2\nexit 1\n")
    failing.chmod(0o755)
    with pytest.raises(BuildError) as caught:
        build_loader(failing, tmp_path / "out" / "loader", arch="x86_64")
    assert caught.value.error_id == "loader-compile-failed"
    assert caught.value.why == "main.c:1:1: error: broken"
    assert list((tmp_path / "out").iterdir()) == []


def test_source_hash_follows_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = loader_source_hash()
    copy = tmp_path / "sources"
    shutil.copytree(LOADER_SOURCES, copy)
    monkeypatch.setattr(loader_package, "_SOURCES", copy)
    assert loader_source_hash() == before
    (copy / "main.c").write_text((copy / "main.c").read_text() + "\n")
    assert loader_source_hash() != before
