"""Small inputs of an artifact: real files with made-up content, and facts that fit them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ci.package.artifact import PackageInputs
from opencoti.hashing import sha256_bytes
from opencoti.manifest import Dso, HostBinary, Patch, SkippedBackend, Source, Toolchain

LOADER = b"\x7fELF" + b"loader" * 100
ENGINE = b"\x7fELF" + b"engine" * 20_000
LIBRARY = b"\x7fELF" + b"cpu-haswell" * 9_000
LICENCE = b"MIT\n"
ARGS = b"--host\n127.0.0.1\n...\n"
UPSTREAM = "0c1e57098bba43ac29e6e3b677cdceebdd22334f"


def make_inputs(folder: Path, **changes: Any) -> PackageInputs:
    """Write the files into `folder` and return the inputs, with `changes` applied."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in (("loader", LOADER), ("llama-server", ENGINE), ("libggml-cpu-haswell.so", LIBRARY)):
        (folder / name).write_bytes(data)
    inputs = PackageInputs(
        loader=folder / "loader",
        entry=folder / "llama-server",
        libraries=(folder / "libggml-cpu-haswell.so",),
        licences={"LICENSE.llama.cpp": LICENCE},
        args=ARGS,
        version_string="opencoti-0.5.0-g0c1e570-c1",
        tag="c1",
        arch="x86_64",
        git_commit="1" * 40,
        git_dirty=False,
        sources=(
            Source(
                name="llama.cpp",
                origin="sdist:llama-cpp-python==0.3.36#vendor/llama.cpp",
                commit=UPSTREAM,
                tag="0.5.0",
                tree="2" * 40,
                patched_tree="3" * 40,
            ),
        ),
        patches=(
            Patch(
                series="llama.cpp",
                name="0001-build-identity.patch",
                sha256="4" * 64,
                title="Report what was built",
                tree="3" * 40,
            ),
        ),
        patch_set_hash="5" * 64,
        toolchains=(Toolchain(name="zig", engine="host", id="sha256:" + "6" * 64),),
        host_binary=HostBinary(name="llama-server", needed=("libc.so.6",), glibc_floor="2.28"),
        cpu_variants=("haswell",),
        dsos=(
            Dso(
                name="libggml-cpu-haswell.so",
                backend="cpu",
                sha256=sha256_bytes(LIBRARY),
                needed=("libc.so.6",),
                glibc_floor="2.28",
            ),
        ),
        skipped_backends=(SkippedBackend(backend="cuda13", reason="no nvcc was found"),),
        is_cpu_only=True,
    )
    return replace(inputs, **changes)
