"""The folder that the host engine gets: build programs from wheels, the machine's toolkit behind scripts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ci import process
from ci.engines.host import HostEngine
from ci.paths import Layout
from ci.stages.model import Stage, Step
from ci.toolchains.host import HostToolchain, WheelToolchain
from ci.toolchains.machine import Machine
from ci.toolchains.probed import ProbedToolchain
from ci.toolchains.recipe import Recipe
from ci.toolchains.table import load_table
from opencoti.console import Console
from opencoti.errors import MissingError
from tests.conftest import ROOT, RecordedConsole
from tests.fakes.toolkits import compiler, cuda_toolkit, vulkan_sdk, write_program

TABLE = load_table(ROOT / "containers" / "toolchains.toml")


@pytest.fixture
def checkout(tmp_path: Path, real_layout: Layout) -> Layout:
    """A cache of its own in a path with a space; what is unpacked of wheels is that of this user."""
    toolchains = tmp_path / "a cache" / "toolchains"
    toolchains.mkdir(parents=True)
    for name in ("base", "zig"):
        recipe = Recipe.load(real_layout.containers / name)
        unpacked = WheelToolchain(recipe, real_layout).prepare(Console(quiet=True)).parent
        (toolchains / unpacked.name).symlink_to(unpacked)
    return Layout(root=ROOT, cache=tmp_path / "a cache")


@pytest.fixture
def cuda12(tmp_path: Path, checkout: Layout) -> ProbedToolchain:
    root = cuda_toolkit(tmp_path / "cuda 12.8", "12.8.93")
    tools = tmp_path / "tools"
    compiler(tools, "12.2.0")
    # What the scripts call shows its own words.
    write_program(root / "bin" / "cuobjdump", 'printf "[%s]" cuobjdump "$@"\n')
    computer = Machine(
        environ={"PATH": str(tools), "OPENCOTI_CUDA_PATH": str(root)}, prefix=tmp_path, glibc=(2, 31)
    )
    return ProbedToolchain(TABLE.backend("cuda12"), checkout, machine=computer)


def stage(*argv: str) -> Stage:
    return Stage(
        name="trial",
        toolchain="cuda12",
        steps=(Step(title="trial", argv=argv),),
        env={},
        source_tree="0",
        inputs={},
        outputs=(),
    )


def run(toolchain: HostToolchain, trial: Stage, layout: Layout, place: Path, console: RecordedConsole) -> str:
    out, tool_cache = place / "out dir", place / "tool cache"
    for folder in (out, tool_cache):
        folder.mkdir()
    log = place / "log"
    HostEngine(layout, find=lambda name, where: toolchain).run(
        trial, source=place, out=out, tool_cache=tool_cache, jobs=1, log=log, console=console.console
    )
    return log.read_text()


def test_the_folder_is_laid_out_as_an_image_and_its_programs_run(
    cuda12: ProbedToolchain, checkout: Layout, tmp_path: Path, recorded: RecordedConsole
) -> None:
    tools = cuda12.prepare(recorded.console)
    assert {"cmake", "ninja", "cc", "c++", "ar", "ranlib", "nvcc", "cuobjdump"} <= {
        path.name for path in tools.iterdir()
    }
    assert (tools.parent / "stubs" / "libcublas.so.12.c").is_file()
    assert (tools.parent / "cmake" / "backend" / "CMakeLists.txt").is_file()
    said = run(cuda12, stage("{tools}/cuobjdump", "{out}"), checkout, tmp_path, recorded)
    assert f"[cuobjdump][{tmp_path}/out dir]" in said
    assert process.run([tools / "cmake", "--version"]).text.startswith("cmake version ")
    assert process.run([tools / "nvcc", "--version"]).text == ""  # -ccbin comes first


def test_a_second_preparation_changes_nothing_and_mends_what_was_damaged(
    cuda12: ProbedToolchain, recorded: RecordedConsole
) -> None:
    tools = cuda12.prepare(recorded.console)
    before = (tools / "nvcc").stat().st_ino
    assert cuda12.prepare(recorded.console) == tools
    assert (tools / "nvcc").stat().st_ino == before
    text = (tools / "nvcc").read_text()
    (tools / "nvcc").write_text("")
    cuda12.prepare(recorded.console)
    assert (tools / "nvcc").read_text() == text


def test_an_unknown_arch_stops_the_engine_before_its_first_step(
    cuda12: ProbedToolchain, checkout: Layout, tmp_path: Path, recorded: RecordedConsole
) -> None:
    """Case B13."""
    trial = stage("/bin/touch", "{out}/ran", "-DCMAKE_CUDA_ARCHITECTURES=75-real;120a-real")
    with pytest.raises(MissingError) as caught:
        run(cuda12, trial, checkout, tmp_path, recorded)
    assert caught.value.error_id == "cuda-arch-unknown"
    assert not (tmp_path / "out dir" / "ran").exists()


def test_zig_and_the_headers_of_an_sdk_compile_together(
    checkout: Layout, tmp_path: Path, recorded: RecordedConsole
) -> None:
    sdk = vulkan_sdk(tmp_path / "my sdk")
    (sdk / "include" / "vulkan" / "vulkan.hpp").write_text("constexpr int answer = 42;\n")
    # Beside it lies what would break the C library's headers if the whole folder were searched.
    (sdk / "include" / "stdio.h").write_text("#error of another C library\n")
    computer = Machine(environ={"PATH": "", "OPENCOTI_VULKAN_SDK": str(sdk)}, prefix=tmp_path)
    toolchain = ProbedToolchain(TABLE.backend("vulkan"), checkout, machine=computer)
    tools = toolchain.prepare(recorded.console)
    source = tmp_path / "trial.cpp"
    source.write_text("#include <vulkan/vulkan.hpp>\n#include <stdio.h>\nstatic_assert(answer == 42);\n")
    words = ("-c", "-o", "{out}/trial.o", "-I{tools}/../vulkan/usr/include", str(source))
    run(toolchain, stage("{tools}/c++", *words), checkout, tmp_path, recorded)
    assert process.run([tools / "glslc", "--version"]).text.startswith("shaderc ")


def test_doctor_tells_of_every_backend_and_of_stray_libraries(tmp_path: Path, real_layout: Layout) -> None:
    home, own = tmp_path / "home", tmp_path / "home/.llamafile/v/opencoti-1-c1-0123456789ab"
    own.mkdir(parents=True)
    (own / "libggml-cuda.so").touch()
    stray = home / "ggml-cuda.so"
    stray.write_bytes(b"old")
    rocm = tmp_path / "no-rocm"
    environ = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(home),
        "OPENCOTI_BUILD_CACHE": str(real_layout.cache),
        "OPENCOTI_ROCM_PATH": str(rocm),
        "PYTHONPATH": str(ROOT),
    }
    done = process.run([sys.executable, "-m", "ci", "doctor", "--json"], cwd=tmp_path, env=environ)
    findings = {item["name"]: item for item in json.loads(done.stdout)["findings"]}
    assert {f"host {name}" for name in TABLE.names} <= findings.keys()
    assert findings["host cpu"]["is_ok"]
    assert not findings["host rocm"]["is_ok"]
    assert str(rocm) in findings["host rocm"]["found"]
    assert "OPENCOTI_ROCM_PATH" in findings["host rocm"]["advice"]
    assert findings["libraries"]["found"].startswith(f"{stray} (3 bytes")
    assert str(own) not in findings["libraries"]["found"]
