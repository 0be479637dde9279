"""The small static program at the front of every elf-lane artifact, and how it is compiled.

The C sources beside this file are the loader; `docs/reference/loader.md` says what it does. This module owns
the compiler call and nothing else: it does not choose or fetch the compiler, and does not pack artifacts.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Final

from ci import process
from opencoti.errors import BuildError, UsageError, storage_error

SIZE_MAX_BYTES: Final = 200_000
ARCHS: Final = ("x86_64", "aarch64")
_SOURCES: Final = Path(__file__).resolve().parent
_WARNINGS: Final = ("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror")
# No debug information, no build id, no comment: the bytes depend on sources, flags and compiler only.
_FLAGS: Final = ("-static", "-std=c11", "-Os", "-s", "-g0", "-fno-ident", "-Wl,--build-id=none", *_WARNINGS)


def loader_source_hash() -> str:
    """Return the SHA-256 over all that decides the loader's bytes, except compiler and architecture."""
    digest = hashlib.sha256("\0".join(_FLAGS).encode())
    for path in sorted(_SOURCES.glob("*.[ch]")):
        data = path.read_bytes()
        digest.update(f"\0{path.name}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


def build_loader(zig: Path, out: Path, *, arch: str, cache: Path | None = None) -> Path:
    """Compile the loader for Linux on `arch` and put it at `out`; return `out`.

    The result is a static executable with the same bytes for every checkout path, user and cache.

    Args:
        zig: the zig compiler.
        out: file to write, replaced in one step; its folder is made if it is missing.
        arch: `x86_64` or `aarch64`.
        cache: folder of zig's caches, worth keeping: musl is compiled into it once, about a minute; without
            it, a folder `.zig-cache` beside `out`.

    Raises:
        UsageError: `loader-arch-unknown`.
        MissingError: `program-missing`, zig is not there.
        BuildError: `loader-compile-failed` with the compiler's first lines, or `loader-too-large`.
        StorageError: `out` cannot be written.
    """
    if arch not in ARCHS:
        raise UsageError(
            "loader-arch-unknown",
            f"cannot compile the loader for {arch!r}",
            why=f"known architectures are {' and '.join(ARCHS)}",
        )
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=".loader-") as scratch:
            compiled = Path(scratch) / "loader"
            _compile(zig, compiled, arch=arch, cache=cache or out.parent / ".zig-cache")
            compiled.chmod(0o755)
            compiled.replace(out)
    except OSError as exc:
        raise storage_error(exc, f"cannot write the loader to {out}") from exc
    return out


def _compile(zig: Path, out: Path, *, arch: str, cache: Path) -> None:
    sources = sorted(path.name for path in _SOURCES.glob("*.c"))
    # Names relative to the source folder and an environment of our own: neither paths nor CPATH get in.
    cache_path = str(cache.absolute())
    done = process.run(
        [zig.absolute(), "cc", "-target", f"{arch}-linux-musl", *_FLAGS, "-o", out.absolute(), *sources],
        cwd=_SOURCES,
        env={
            "PATH": os.environ.get("PATH", os.defpath),
            "ZIG_GLOBAL_CACHE_DIR": cache_path,
            "ZIG_LOCAL_CACHE_DIR": cache_path,
        },
    )
    if not done.is_ok:
        raise BuildError(
            "loader-compile-failed",
            f"compiling the loader for {arch} failed with exit code {done.code}",
            why="\n".join(done.error_text.splitlines()[:12]),
            hint="`nox -s doctor` tells whether the pinned compiler is in order",
        )
    size = out.stat().st_size
    if size >= SIZE_MAX_BYTES:
        raise BuildError(
            "loader-too-large",
            f"the loader for {arch} has {size} bytes",
            why=f"it must stay below {SIZE_MAX_BYTES}, since every artifact carries it",
        )
