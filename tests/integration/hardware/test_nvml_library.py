"""NVML through a real shared library, as the dynamic linker and the C calling convention have it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

SOURCE = Path(__file__).with_name("nvml_stub.c")


@pytest.fixture(scope="module")
def driver(zig: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the stand-in under the driver's name."""
    folder = tmp_path_factory.mktemp("driver")
    library = folder / "libnvidia-ml.so.1"
    caches = dict.fromkeys(("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"), str(folder / "zig"))
    argv: list[str | Path] = [zig, "cc", "-shared", "-fPIC", "-nostdlib", "-O1", "-fno-sanitize=undefined"]
    subprocess.run(
        [*argv, "-o", library, SOURCE],
        check=True,
        env={**os.environ, **caches},
    )
    return folder


def run(driver: Path, *argv: str) -> str:
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "LD_LIBRARY_PATH": str(driver)}
    done = subprocess.run([sys.executable, *argv], env=environ, capture_output=True, text=True, check=True)
    return done.stdout


def test_card_is_read_with_a_handle_of_64_bits(driver: Path) -> None:
    code = (
        "import json\nfrom opencoti.hardware.nvidia import ask_nvml\n"
        "print(json.dumps([vars(gpu) for gpu in ask_nvml().gpus]))"
    )
    (card,) = json.loads(run(driver, "-c", code))
    assert (card["name"], card["driver"], card["architecture"]) == ("Stand-in H200", "575.57.08", "9.0")
    assert (card["total_bytes"], card["free_bytes"]) == (150_754_820_096, 150_000_000_000)


def test_recommendation_follows_the_card(driver: Path) -> None:
    found = json.loads(run(driver, "-m", "opencoti.models", "recommend", "--json", "--context", "131072"))
    assert (found["quant"], found["where"]) == ("Q8_0", "gpu")
    assert found["largest_context"] == 262_144
