"""What upstream's scripts print: which lines tell of an error, and what is counted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ci.ape.script_log import check_script
from ci.toolchains.table import Kind
from opencoti.errors import BuildError

CUDA = """Compiling 3 files with 8 parallel jobs...
[1/3] Compiling: tinyblas.cu
[2/3] Compiling: ggml-cuda.cu
[3/3] Compiling: mmq-instance-q4_0.cu
Compiling core GGML sources...
  Compiling: ggml.c
  Compiling: ggml-backend.cpp

Linking...
  Linking 5 object files...
Successfully built: /out/ggml-cuda.so
"""
VULKAN = """Phase 3: Compiling shaders...
  Found 2 shader files
  [1/2] Compiling: add.comp
  [2/2] Compiling: mul.comp
  Found 2 shader C++ files
  [1/2] Compiling: add.comp
  [2/2] Compiling: mul.comp
  Compiling ggml-vulkan.cpp...
Compiling core GGML sources...
  Compiling: ggml.c
  Linking 4 object files...
"""


@pytest.fixture
def judge(tmp_path: Path):  # type: ignore[no-untyped-def]
    def check(kind: Kind, text: str, *, objects: int = 5):  # type: ignore[no-untyped-def]
        folder = tmp_path / "home" / ".cache" / "llamafile-x-build" / "inner"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for number in range(objects):
            (folder / f"{number}.o").touch()
        (tmp_path / "log").write_text(text)
        return check_script(kind, tmp_path / "log", tmp_path / "home")

    return check


def fails(judge, kind: Kind, text: str, *, objects: int = 5) -> BuildError:  # type: ignore[no-untyped-def]
    with pytest.raises(BuildError) as caught:
        judge(kind, text, objects=objects)
    return caught.value


def test_all_sources_are_in_the_library(judge) -> None:  # type: ignore[no-untyped-def]
    count = judge("cuda", CUDA)
    assert (count.announced, count.core, count.linked, count.found) == (3, 2, 5, 5)
    count = judge("vulkan", VULKAN, objects=4)
    assert (count.announced, count.core, count.linked) == (3, 1, 4)


@pytest.mark.parametrize(
    "line",
    [
        "ggml-cuda.cu(7): error: expected a ;",
        "x.c:3:1: fatal error: ggml.h: No such file or directory",
        "ptxas error   : Entry function uses too much shared data",
        "ggml.cpp(9): error C2065: undeclared",
        "Error: nvcc not found at /usr/local/cuda/bin/nvcc",
        "nvcc fatal error: unsupported",
        "cuda.sh: line 60: 4711 Segmentation fault: Killed",
    ],
)
def test_lines_that_tell_of_an_error(judge, line: str) -> None:  # type: ignore[no-untyped-def]
    error = fails(judge, "cuda", CUDA + line + "\n")
    assert (error.error_id, line[:20] in error.why) == ("ape-script-errors", True)


@pytest.mark.parametrize(
    "line",
    [
        "0 errors",
        "x.cu(7): warning #177-D: variable error was declared but never referenced",
        "  Compiling: error-handling.c.txt",
        "-Werror=return-type",
        "ggml_cuda_error(): noted",
    ],
)
def test_lines_that_only_name_errors(judge, line: str) -> None:  # type: ignore[no-untyped-def]
    assert judge("cuda", CUDA + line + "\n").linked == 5


def test_object_of_an_earlier_run_is_refused(judge) -> None:  # type: ignore[no-untyped-def]
    text = CUDA.replace("[2/3] Compiling: ggml-cuda.cu", "[2/3] Skipping: ggml-cuda.cu (up to date)")
    assert fails(judge, "cuda", text).error_id == "ape-script-stale"


@pytest.mark.parametrize(
    ("kind", "text", "objects"),
    [
        ("cuda", CUDA.replace("Linking 5", "Linking 4"), 5),
        ("cuda", CUDA, 4),
        ("cuda", CUDA, 6),
        ("cuda", CUDA.replace("Compiling 3 files", "Compiling 4 files"), 5),
        ("cuda", CUDA.replace("  Compiling: ggml.c\n", ""), 5),
        (
            "vulkan",
            VULKAN.replace("Found 2 shader C++", "Found 1 shader C++").replace("g 4 obj", "g 3 obj"),
            3,
        ),
    ],
)
def test_numbers_that_disagree_are_refused(judge, kind: Kind, text: str, objects: int) -> None:  # type: ignore[no-untyped-def]
    assert fails(judge, kind, text, objects=objects).error_id == "ape-script-objects"


@pytest.mark.parametrize("gone", ["Compiling 3 files with", "Linking 5 object", "Compiling core GGML"])
def test_output_of_another_form_is_no_proof(judge, gone: str) -> None:  # type: ignore[no-untyped-def]
    error = fails(judge, "cuda", CUDA.replace(gone, "other words"))
    assert error.error_id == "ape-script-unreadable"


def test_a_log_that_is_gone_is_an_error_of_the_disk(tmp_path: Path) -> None:
    from opencoti.errors import StorageError

    with pytest.raises(StorageError):
        check_script("cuda", tmp_path / "none", tmp_path)
