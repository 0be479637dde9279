"""Small ELF files, compiled once per run with zig (its glibc stubs give exact symbol versions)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ci.paths import Layout

CompileElf = Callable[..., Path]

BACKEND = """
#include <math.h>
extern int ggml_from_base(int);
double power(double x, double y) { return pow(x, y); }
int ggml_backend_init(void) { return ggml_from_base(1); }
int ggml_backend_score(void) { return 1; }
"""
BASE = "int ggml_from_base(int x) { return x + 1; }"
PROGRAM = '#include <stdio.h>\nint main(void) { return puts("hello") < 0; }'


@pytest.fixture(scope="session")
def compile_elf(zig: Path, tmp_path_factory: pytest.TempPathFactory) -> CompileElf:
    """Compile C text: `compile_elf("lib.so", text, *words, target=…, shared=True)`."""
    cache = str(Layout.find().cache / "tool-cache" / "dso")

    def compile_one(
        name: str, text: str, *words: str, target: str = "x86_64-linux-gnu.2.28", shared: bool = True
    ) -> Path:
        folder = tmp_path_factory.mktemp("elf")
        (folder / "source.c").write_text(text)
        line = [str(zig), "cc", "-target", target, *(("-shared", "-fPIC") if shared else ())]
        subprocess.run(
            [*line, "-o", name, "source.c", *words],
            cwd=folder,
            env={
                "PATH": os.environ.get("PATH", os.defpath),
                "ZIG_GLOBAL_CACHE_DIR": cache,
                "ZIG_LOCAL_CACHE_DIR": cache,
            },
            check=True,
            capture_output=True,
        )
        return folder / name

    return compile_one


@pytest.fixture(scope="session")
def backend(compile_elf: CompileElf) -> Path:
    """A stripped CPU variant that needs pow of glibc and one symbol of its base."""
    words = ("-lm", "-O2", "-g0", "-s", "-Wl,--allow-shlib-undefined")
    return compile_elf("libggml-cpu-tiny.so", BACKEND, *words, target="x86_64-linux-gnu.2.29")


@pytest.fixture(scope="session")
def base(compile_elf: CompileElf) -> Path:
    return compile_elf("libggml-base.so", BASE, "-O2", "-g0", "-s", "-Wl,-soname,libggml-base.so.0")
