"""case B16: what was not found and is used fails the stage, what is optional does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.stages.checks import check_found, is_not_found_line
from opencoti.errors import BuildError
from tests.fakes.stages import STAGE

# From a successful configuration of llama.cpp with zig and without ccache.
OPTIONAL = """
CMAKE_C_COMPILER:STRING=/tools/cc
CMAKE_C_COMPILER_AR:FILEPATH=CMAKE_C_COMPILER_AR-NOTFOUND
CMAKE_CXX_COMPILER_CLANG_SCAN_DEPS:FILEPATH=CMAKE_CXX_COMPILER_CLANG_SCAN_DEPS-NOTFOUND
CMAKE_TAPI:FILEPATH=CMAKE_TAPI-NOTFOUND
GGML_CCACHE_FOUND:FILEPATH=GGML_CCACHE_FOUND-NOTFOUND
"""


def why(out: Path) -> str:
    with pytest.raises(BuildError) as caught:
        check_found(STAGE, out, log=Path("/logs/cpu.log"))
    assert caught.value.error_id == "stage-value-not-found"
    assert "/logs/cpu.log" in caught.value.hint
    return caught.value.why


def test_optional_programs_may_be_absent(tmp_path: Path) -> None:
    (tmp_path / "CMakeCache.txt").write_text(OPTIONAL)
    (tmp_path / "build.ninja").write_text("build a.o: CC a.c\n")
    check_found(STAGE, tmp_path, log=tmp_path)


def test_a_folder_that_cmake_does_not_know_passes(tmp_path: Path) -> None:
    check_found(STAGE, tmp_path, log=tmp_path)


def test_an_absent_shader_compiler_is_named_although_cmake_ended_well(tmp_path: Path) -> None:
    line = "Vulkan_GLSLC_EXECUTABLE:FILEPATH=Vulkan_GLSLC_EXECUTABLE-NOTFOUND\n"
    (tmp_path / "CMakeCache.txt").write_text(OPTIONAL + line)
    assert why(tmp_path) == "Vulkan_GLSLC_EXECUTABLE=Vulkan_GLSLC_EXECUTABLE-NOTFOUND"


@pytest.mark.parametrize("name", ["build.ninja", "CMakeFiles/rules.ninja"])
def test_a_command_that_calls_something_not_found_is_shown(name: str, tmp_path: Path) -> None:
    (tmp_path / "CMakeFiles").mkdir()
    (tmp_path / name).write_text("rule x\n  command = GLSLC-NOTFOUND --target-env=vulkan1.3 a.comp\n")
    assert why(tmp_path) == "command = GLSLC-NOTFOUND --target-env=vulkan1.3 a.comp"


def test_status_lines_tell_of_optional_things_and_others_of_use() -> None:
    assert not is_not_found_line("-- Looking for ccache: GGML_CCACHE_FOUND-NOTFOUND")
    assert not is_not_found_line("/bin/sh: GLSLC: not found")
    assert is_not_found_line("/bin/sh: 1: Vulkan_GLSLC_EXECUTABLE-NOTFOUND: not found")


def test_a_project_that_the_build_configures_for_itself_is_looked_at_too(tmp_path: Path) -> None:
    (tmp_path / "CMakeCache.txt").write_text(OPTIONAL)
    inner = tmp_path / "ggml/shaders-gen-build"
    inner.mkdir(parents=True)
    (inner / "CMakeCache.txt").write_text("CMAKE_CXX_COMPILER:STRING=CMAKE_CXX_COMPILER-NOTFOUND\n")
    assert "CMAKE_CXX_COMPILER-NOTFOUND" in why(tmp_path)
