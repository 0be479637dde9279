"""The loader's SHA-256, portable and with the processor's instructions, against Python's."""

from __future__ import annotations

import hashlib
import random
import subprocess
from pathlib import Path

import pytest

from tests.integration.loader.artifacts import LOADER_SOURCES, CompileC

SIZES = (*range(260), 1000, 4095, 4096, 4097, 65_535, 1_048_577)


@pytest.fixture(scope="module")
def driver(compile_c: CompileC) -> Path:
    sources = (LOADER_SOURCES / "sha256.c", LOADER_SOURCES / "sha256_hardware.c")
    return compile_c("sha256_driver.c", f"-I{LOADER_SOURCES}", *sources)


@pytest.mark.parametrize("implementation", ["portable", "hardware"])
@pytest.mark.parametrize("step", [1, 63, 64, 65, 1 << 20])
def test_equals_hashlib(driver: Path, implementation: str, step: int) -> None:
    data = random.Random(1).randbytes(max(SIZES))
    for size in SIZES if step != 1 else SIZES[:140:7]:
        done = subprocess.run(
            [driver, implementation, str(step)], input=data[:size], capture_output=True, check=False
        )
        if done.returncode == 4:
            pytest.skip("this processor has no SHA instructions")
        assert done.stdout.decode().strip() == hashlib.sha256(data[:size]).hexdigest(), size
