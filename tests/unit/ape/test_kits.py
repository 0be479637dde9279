"""What upstream's scripts are given on a machine: the right programs under the names that they call."""

from __future__ import annotations

import io
import subprocess
from pathlib import Path

import pytest

from ci.ape.toolchain import ScriptToolchain, find_kit, require_programs, require_runnable
from ci.paths import Layout
from ci.toolchains.machine import Machine
from ci.toolchains.table import Backend, load_table
from opencoti.console import Console
from opencoti.errors import MissingError
from tests.conftest import ROOT
from tests.fakes import toolkits


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    toolkits.compiler(tmp_path / "usr" / "bin", "12.2.0", names=("c++", "cc"))
    return Machine(
        environ={"PATH": f"{tmp_path / 'usr' / 'bin'}:/usr/bin:/bin"}, prefix=tmp_path, glibc=(2, 36)
    )


def backend(name: str) -> Backend:
    return load_table(ROOT / "containers" / "toolchains.toml").backend(name)


def named(machine: Machine, variable: str, value: Path) -> Machine:
    return Machine(
        environ={**machine.environ, variable: str(value)}, prefix=machine.prefix, glibc=machine.glibc
    )


def test_cuda_script_gets_the_toolkit_and_a_compiler_that_it_takes(tmp_path: Path, machine: Machine) -> None:
    root = toolkits.cuda_toolkit(tmp_path / "cuda", "13.5.1", archs=toolkits.CUDA_13_ARCHS)
    kit = find_kit(backend("cuda13"), named(machine, "OPENCOTI_CUDA_PATH", root))
    assert kit.programs == {
        "gcc": (str(tmp_path / "usr" / "bin" / "cc"),),
        "g++": (str(tmp_path / "usr" / "bin" / "c++"),),
        "nvcc": (str(root / "bin" / "nvcc"),),
    }
    assert kit.record["host_compiler"] == "gcc 12.2.0"


def test_cuda_of_another_generation_is_refused(tmp_path: Path, machine: Machine) -> None:
    root = toolkits.cuda_toolkit(tmp_path / "cuda", "12.6.0")
    with pytest.raises(MissingError) as caught:
        find_kit(backend("cuda13"), named(machine, "OPENCOTI_CUDA_PATH", root))
    assert caught.value.error_id == "cuda-generation-other"


def test_a_mixed_toolkit_is_refused(tmp_path: Path, machine: Machine) -> None:
    root = toolkits.cuda_toolkit(tmp_path / "cuda", "13.5.1", headers="12.6")
    with pytest.raises(MissingError) as caught:
        find_kit(backend("cuda13"), named(machine, "OPENCOTI_CUDA_PATH", root))
    assert caught.value.error_id == "cuda-toolkit-mixed"


@pytest.mark.parametrize(
    ("name", "error_id"),
    [("cuda13", "cuda-toolkit-missing"), ("rocm", "rocm-missing"), ("vulkan", "glslc-missing")],
)
def test_what_is_not_there_is_named_with_its_variable(tmp_path: Path, name: str, error_id: str) -> None:
    bare = Machine(environ={"PATH": str(tmp_path)}, prefix=tmp_path, glibc=(2, 36))
    with pytest.raises(MissingError) as caught:
        find_kit(backend(name), bare)
    assert (caught.value.error_id, "OPENCOTI_" in caught.value.hint) == (error_id, True)


def test_rocm_and_vulkan_scripts_get_theirs(tmp_path: Path, machine: Machine) -> None:
    rocm = toolkits.rocm_toolkit(tmp_path / "rocm", "6.3.1")
    kit = find_kit(backend("rocm"), named(machine, "OPENCOTI_ROCM_PATH", rocm))
    assert kit.programs["hipcc"] == (str(rocm / "llvm" / "bin" / "clang++"), "-x", "hip")
    toolkits.write_program(rocm / "bin" / "hipcc", "")
    kit = find_kit(backend("rocm"), named(machine, "OPENCOTI_ROCM_PATH", rocm))
    assert kit.programs["hipcc"] == (str(rocm / "bin" / "hipcc"),)
    sdk = toolkits.vulkan_sdk(tmp_path / "sdk")
    kit = find_kit(backend("vulkan"), named(machine, "OPENCOTI_VULKAN_SDK", sdk))
    assert kit.programs["glslc"] == (str((sdk / "bin" / "glslc").resolve()),)
    assert str(sdk / "include") in kit.variables["CPLUS_INCLUDE_PATH"]


def test_programs_lie_in_one_folder_and_pass_their_words_on(
    layout: Layout, tmp_path: Path, machine: Machine
) -> None:
    root = toolkits.cuda_toolkit(tmp_path / "cuda", "13.5.1", archs=toolkits.CUDA_13_ARCHS)
    toolchain = ScriptToolchain(backend("cuda13"), layout, machine=named(machine, "OPENCOTI_CUDA_PATH", root))
    tools = toolchain.prepare(Console(quiet=True, stderr=io.StringIO()))
    assert sorted(path.name for path in tools.iterdir()) == ["g++", "gcc", "nvcc"]
    (tmp_path / "usr" / "bin" / "c++").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    said = subprocess.run(
        [tools / "g++", "-c", "a b.c"],
        env={"OPENCOTI_SRC": "/place/src", "OPENCOTI_OUT": "/place/out"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    assert said == [
        "-ffile-prefix-map=/place/src=.",
        "-ffile-prefix-map=/place/out=./build",
        "-c",
        "a b.c",
    ]
    assert f"-ccbin {tools / 'g++'}" in (tools / "nvcc").read_text()


def test_missing_small_tools_are_named_together() -> None:
    with pytest.raises(MissingError) as caught:
        require_programs(("sh", "no-such-tool", "nor-this"), "upstream's makefiles")
    assert "upstream's makefiles need no-such-tool, nor-this" in str(caught.value)


def test_a_portable_executable_that_starts_is_no_news(tmp_path: Path) -> None:
    toolkits.write_program(tmp_path / "make", "exit 0\n")
    require_runnable(tmp_path)


@pytest.mark.parametrize("content", [b"MZqFpD='\n\0\0", b"#!/bin/sh\nexit 127\n"])
def test_one_that_does_not_start_says_what_to_register(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "make").write_bytes(content)
    (tmp_path / "make").chmod(0o755)
    with pytest.raises(MissingError) as caught:
        require_runnable(tmp_path)
    assert (caught.value.error_id, caught.value.exit_code) == ("cosmocc-not-runnable", 4)
