"""The command `inspect`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from ci.context import Context
from ci.dso import cli
from ci.paths import Layout
from opencoti.console import Console
from opencoti.errors import ConfigError, UsageError
from tests.conftest import RecordedConsole
from tests.fakes.gpu_files import PTX, SASS, FatEntry, elf_file, fat_binary


def _run(layout: Layout, console: Console, *words: str) -> int:
    parser = argparse.ArgumentParser()
    cli.register(parser.add_subparsers(), argparse.ArgumentParser(add_help=False))
    args = parser.parse_args(["inspect", *words])
    return int(args.command(args, Context(layout=layout, console=console)))


def test_text_shows_floor_and_entry_points(
    backend: Path, base: Path, layout: Layout, recorded: RecordedConsole
) -> None:
    code = _run(layout, recorded.console, str(backend), str(base))
    text = recorded.out.getvalue()
    assert "GLIBC 2.29 (pow)" in text
    assert "ggml_backend_init ggml_backend_score" in text
    # The name says that it is a CPU variant, and those must run on glibc 2.28.
    assert "version-too-new" in text
    assert code == 6


def test_json_lists_every_file(base: Path, layout: Layout, recorded: RecordedConsole) -> None:
    console = Console(as_json=True, stdout=recorded.out, stderr=recorded.err)
    assert _run(layout, console, str(base)) == 0
    [entry] = json.loads(recorded.out.getvalue())
    assert (entry["soname"], entry["problems"]) == ("libggml-base.so.0", [])


def test_a_file_that_is_no_elf_stops_it(tmp_path: Path, layout: Layout, recorded: RecordedConsole) -> None:
    path = tmp_path / "libggml-cpu-x64.so"
    path.write_text("not one")
    with pytest.raises(ConfigError):
        _run(layout, recorded.console, str(path))


ROW = """
[cuda13]
title = "NVIDIA CUDA 13"
kind = "cuda"
toolchain = "cuda13"
toolkit = "13.5"
library = "libggml-cuda.so"
hosts = ["x86_64"]
targets.x86_64 = ["75", "90+ptx"]
needed = ["libcublas.so.13"]
glibc = "2.31"
probe = "probe.cu"
"""


@pytest.fixture
def cuda_file(tmp_path: Path, layout: Layout) -> Path:
    """A library with code for one GPU too few, and one instruction that not every processor has."""
    layout.containers.mkdir()
    (layout.containers / "toolchains.toml").write_text(ROW)
    entries = [FatEntry(kind=SASS, arch="75"), FatEntry(kind=PTX, arch="90")]
    path = tmp_path / "libggml-cuda.so"
    code = bytes.fromhex("90 62 f1 74 48 58 c2")
    path.write_bytes(elf_file({".nv_fatbin": fat_binary(*entries), ".text": code}))
    return path


def test_a_gpu_library_is_compared_with_its_row(
    cuda_file: Path, layout: Layout, recorded: RecordedConsole
) -> None:
    assert _run(layout, recorded.console, str(cuda_file), "--backend", "cuda13") == 6
    text = recorded.out.getvalue()
    assert "code for     sm_75 compute_90" in text
    assert "processor    x86-64 AVX512" in text
    assert "it holds no code for sm_90 [target-missing]" in text
    assert "1 instructions need AVX512: 0x1001 [instructions-leaked]" in text


def test_without_a_row_the_list_of_gpus_is_left_open(
    cuda_file: Path, layout: Layout, recorded: RecordedConsole
) -> None:
    console = Console(as_json=True, stdout=recorded.out, stderr=recorded.err)
    _run(layout, console, str(cuda_file))
    [entry] = json.loads(recorded.out.getvalue())
    assert entry["cuda"] == {"sass": ["75"], "ptx": ["90"], "other": []}
    assert entry["hip"] is None
    assert entry["instructions"]["uses"] == {"AVX512": {"count": 1, "functions": ["0x1001"]}}
    assert not [item for item in entry["problems"] if item["id"].startswith("target-")]


def test_a_row_that_is_not_in_the_table_is_refused(
    cuda_file: Path, layout: Layout, recorded: RecordedConsole
) -> None:
    with pytest.raises(UsageError) as caught:
        _run(layout, recorded.console, str(cuda_file), "--backend", "cuda31")
    assert caught.value.error_id == "backend-not-in-table"
