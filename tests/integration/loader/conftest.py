"""The compiled loader and stand-in engine, made once per run."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ci.package.loader import build_loader
from ci.paths import Layout
from tests.integration.loader.artifacts import Bench, CompileC, is_root

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="session")
def zig_cache() -> Path:
    """Caches of the compiler, kept between runs."""
    return Layout.find().cache / "tool-cache" / "loader"


@pytest.fixture(scope="session")
def compile_c(zig: Path, zig_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> CompileC:
    def compile_one(source: str, *words: str | Path, arch: str = "x86_64") -> Path:
        out = tmp_path_factory.mktemp("compiled") / source.removesuffix(".c")
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "ZIG_GLOBAL_CACHE_DIR": str(zig_cache),
            "ZIG_LOCAL_CACHE_DIR": str(zig_cache),
        }
        flags = ("-target", f"{arch}-linux-musl", "-static", "-Os", "-s", "-g0")
        subprocess.run(
            [zig, "cc", *flags, "-o", out, HERE / source, *words],
            env=environment,
            check=True,
            capture_output=True,
        )
        return out

    return compile_one


@pytest.fixture(scope="session")
def loader_path(zig: Path, zig_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_loader(zig, tmp_path_factory.mktemp("loader") / "loader", arch="x86_64", cache=zig_cache)


@pytest.fixture(scope="session")
def loader(loader_path: Path) -> bytes:
    return loader_path.read_bytes()


@pytest.fixture(scope="session")
def engine(compile_c: CompileC) -> bytes:
    return compile_c("entry.c").read_bytes()


@pytest.fixture
def bench(loader: bytes, engine: bytes, tmp_path: Path) -> Bench:
    (tmp_path / "home").mkdir()
    return Bench(loader=loader, engine=engine, root=tmp_path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    yield from _mounted(tmp_path / "disk", "size=2m,mode=0700")


@pytest.fixture
def noexec_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system from which nothing can be started."""
    yield from _mounted(tmp_path / "disk", "noexec,mode=0700")


@pytest.fixture
def cloning_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system where two files can share blocks."""
    mkfs = shutil.which("mkfs.xfs", path=f"{os.environ.get('PATH', os.defpath)}:/sbin:/usr/sbin")
    if mkfs is None:
        pytest.skip("no mkfs.xfs")
    image = tmp_path / "image"
    with open(image, "wb") as file:
        file.truncate(512 << 20)
    subprocess.run([mkfs, "-q", "-m", "reflink=1", image], check=True)
    yield from _mounted(tmp_path / "disk", "loop", kind="xfs", source=image)


def _mounted(path: Path, options: str, *, kind: str = "tmpfs", source: str | Path = "none") -> Iterator[Path]:
    if not is_root():
        pytest.skip("mounting needs root")
    path.mkdir()
    mount = subprocess.run(
        ["mount", "-t", kind, "-o", options, source, path], capture_output=True, check=False
    )
    if mount.returncode != 0:
        pytest.skip(f"mounting is not allowed here: {mount.stderr.decode().strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", path], check=True)
