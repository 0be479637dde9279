"""CUDA on this machine: one resolved root of one version, or an error before anything is compiled."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.paths import Layout
from ci.stages.gpu import gpu_stage
from ci.stages.model import Stage, Step
from ci.toolchains.host import WheelToolchain, find_toolchain
from ci.toolchains.machine import Machine, read_macros
from ci.toolchains.probed import ProbedToolchain
from ci.toolchains.setups import find_setup
from ci.toolchains.table import Backend, load_table
from ci.toolchains.toolkit_cuda import read_cuda
from opencoti.errors import MissingError, OpencotiError, UsageError
from tests.conftest import ROOT
from tests.fakes.toolkits import (
    CUDA_12_ARCHS,
    CUDA_13_ARCHS,
    compiler,
    cuda_headers,
    cuda_toolkit,
    write_file,
    write_program,
)

TABLE = load_table(ROOT / "containers" / "toolchains.toml")


@pytest.fixture
def checkout(tmp_path: Path) -> Layout:
    """This checkout's recipes with an empty cache."""
    return Layout(root=ROOT, cache=tmp_path / "cache")


def machine(tmp_path: Path, *, glibc: tuple[int, ...] = (2, 31), **environ: str) -> Machine:
    tools = tmp_path / "tools"
    if not tools.exists():
        compiler(tools, "12.2.0")
    return Machine(environ={"PATH": str(tools), **environ}, prefix=tmp_path, glibc=glibc)


def cuda(name: str) -> Backend:
    return TABLE.backend(name)


def stage_for(*targets: str) -> Stage:
    return gpu_stage(
        cuda("cuda12"), arch="x86_64", targets=targets, has_flash_attention=True, source_tree="0"
    )


def refusal(layout: Layout, backend: str, computer: Machine) -> OpencotiError:
    with pytest.raises(OpencotiError) as caught:
        find_setup(cuda(backend), layout, computer)
    assert caught.value.exit_code == 4
    return caught.value


def test_one_resolved_root_with_its_versions_is_printed(tmp_path: Path, checkout: Layout) -> None:
    """Case B14: the toolkit lies behind a link."""
    real = cuda_toolkit(tmp_path / "cuda-12.8", "12.8.93", cublas="12.8.4")
    (tmp_path / "cuda").symlink_to(real)
    setup = find_setup(cuda("cuda12"), checkout, machine(tmp_path, OPENCOTI_CUDA_PATH=str(tmp_path / "cuda")))
    assert setup.description.startswith(
        f"CUDA 12.8.93, headers 12.8, cuBLAS header 12.8.4 in {real.resolve()}, gcc 12.2.0"
    )
    assert str(tmp_path) not in "".join(setup.record.values())


def test_a_path_with_a_space_stays_one_word(tmp_path: Path, checkout: Layout) -> None:
    """Case B14: 13.0 in a path with a space."""
    root = cuda_toolkit(tmp_path / "cuda 13.0", "13.0.88", newest_gcc=15, archs=CUDA_13_ARCHS)
    setup = find_setup(cuda("cuda13"), checkout, machine(tmp_path, OPENCOTI_CUDA_PATH=str(root)))
    script = setup.scripts(Path("/a cache/x"))["nvcc"]
    assert script.endswith(f"exec $launcher '{root}/bin/nvcc' -ccbin '/a cache/x/bin/c++' \"$@\"\n")
    assert "13.0" in setup.notices[0]
    assert cuda("cuda13").toolkit in setup.notices[0]


@pytest.mark.parametrize(
    ("headers", "cublas", "part"),
    [
        ("13.0", "", "cuda.h is 13.0"),
        ("12.6", "", "cuda.h is 12.6"),
        ("", "13.1.0", "cuBLAS's header is 13"),
    ],
)
def test_headers_of_another_version_are_refused(
    headers: str, cublas: str, part: str, tmp_path: Path, checkout: Layout
) -> None:
    """Case B14."""
    root = cuda_toolkit(tmp_path / "usr/local/cuda-12.6", "12.8.93", headers=headers, cublas=cublas)
    error = refusal(checkout, "cuda12", machine(tmp_path))
    assert error.error_id == "cuda-toolkit-mixed"
    assert f"{root}/bin/nvcc is 12.8.93" in error.why
    assert part in error.why


def test_headers_that_nvcc_takes_from_elsewhere_count_too(tmp_path: Path) -> None:
    """Case B14: nvcc's profile leads to the distribution's headers."""
    elsewhere = tmp_path / "debian"
    cuda_headers(elsewhere / "include", "12.4")
    root = cuda_toolkit(tmp_path / "cuda", "12.8.93", top=elsewhere)
    with pytest.raises(MissingError) as caught:
        read_cuda(root, machine(tmp_path))
    assert f"{elsewhere}/include/cuda.h is 12.4" in caught.value.why


@pytest.mark.parametrize("library", ["libcudart.so.13", "libcudart.so.12.6.77", "libcublas.so.13"])
def test_libraries_of_another_version_are_refused(library: str, tmp_path: Path) -> None:
    """Case B14."""
    root = cuda_toolkit(tmp_path / "cuda", "12.8.93")
    write_file(root / "targets" / "x86_64-linux" / "lib" / library)
    with pytest.raises(MissingError) as caught:
        read_cuda(root, machine(tmp_path))
    assert caught.value.error_id == "cuda-toolkit-mixed"
    assert library in caught.value.why


def test_another_patch_of_the_runtime_and_of_cublas_is_no_mix(tmp_path: Path) -> None:
    root = cuda_toolkit(tmp_path / "cuda", "12.8.93", cublas="12.9.1")
    write_file(root / "lib64" / "libcudart.so.12.8.90")
    write_file(root / "lib64" / "libcublas.so.12.9.1.4")
    assert read_cuda(root, machine(tmp_path)).version == (12, 8, 93)


@pytest.mark.parametrize(
    ("gone", "named"),
    [
        ("include/cublas_v2.h", "cublas_v2.h"),
        ("include/cuda.h", "cuda.h"),
        ("lib64/libcudart.so.12.8.93", "libcudart"),
    ],
)
def test_a_part_that_lacks_is_named(gone: str, named: str, tmp_path: Path) -> None:
    root = cuda_toolkit(tmp_path / "cuda", "12.8.93")
    (root / gone).unlink()
    with pytest.raises(MissingError) as caught:
        read_cuda(root, machine(tmp_path))
    assert caught.value.error_id == "cuda-part-missing"
    assert named in caught.value.what


def test_a_toolkit_of_another_generation_is_refused(tmp_path: Path, checkout: Layout) -> None:
    root = cuda_toolkit(tmp_path / "cuda", "13.0.88", archs=CUDA_13_ARCHS)
    error = refusal(checkout, "cuda12", machine(tmp_path, OPENCOTI_CUDA_PATH=str(root)))
    assert error.error_id == "cuda-generation-other"
    assert "libcudart.so.12" in error.why
    assert "OPENCOTI_CUDA_PATH" in error.hint


def test_a_toolkit_that_is_too_old_is_refused(tmp_path: Path, checkout: Layout) -> None:
    root = cuda_toolkit(tmp_path / "cuda", "12.3.107")
    error = refusal(checkout, "cuda12", machine(tmp_path, OPENCOTI_CUDA_PATH=str(root)))
    assert (error.error_id, error.why) == ("cuda-toolkit-old", "12.4 is the oldest that it is built with")


@pytest.mark.parametrize("variable", ["", "cuda-11"])
def test_a_missing_toolkit_names_those_that_are_there(
    variable: str, tmp_path: Path, checkout: Layout
) -> None:
    there = cuda_toolkit(tmp_path / "usr/local/cuda-12.8", "12.8.93")
    named = str(tmp_path / variable) if variable else ""
    error = refusal(checkout, "cuda12", machine(tmp_path, OPENCOTI_CUDA_PATH=named))
    assert error.error_id == "cuda-toolkit-missing"
    assert str(there) in error.why
    assert f"{tmp_path}/usr/local/cuda-12.6" in error.hint


def test_cuda13_falls_back_to_the_wheels_and_says_so(tmp_path: Path, checkout: Layout) -> None:
    root = cuda_toolkit(tmp_path / "cuda", "12.8.93")
    setup = find_setup(cuda("cuda13"), checkout, machine(tmp_path, OPENCOTI_CUDA_PATH=str(root)))
    assert f"CUDA {cuda('cuda13').toolkit}." in setup.description
    assert "NVIDIA's wheels" in setup.description
    assert "12.8.93" in setup.notices[0]
    assert find_setup(cuda("cuda13"), checkout, machine(tmp_path)).notices == ()


def test_a_broken_toolkit_that_is_named_is_never_replaced_in_silence(
    tmp_path: Path, checkout: Layout
) -> None:
    root = cuda_toolkit(tmp_path / "cuda", "13.0.88", headers="12.8")
    error = refusal(checkout, "cuda13", machine(tmp_path, OPENCOTI_CUDA_PATH=str(root)))
    assert error.error_id == "cuda-toolkit-mixed"


def test_a_glibc_newer_than_the_table_allows_is_told_before_the_build(
    tmp_path: Path, checkout: Layout
) -> None:
    setup = find_setup(cuda("cuda13"), checkout, machine(tmp_path, glibc=(2, 36)))
    assert "glibc 2.36" in setup.notices[0]


@pytest.mark.parametrize("text", ["exit 3\n", "echo 'no version here'\n", "echo 'release x, Vy'\n"])
def test_an_nvcc_that_does_not_tell_its_version_is_refused(text: str, tmp_path: Path) -> None:
    write_program(tmp_path / "cuda" / "bin" / "nvcc", text)
    with pytest.raises(MissingError) as caught:
        read_cuda(tmp_path / "cuda", machine(tmp_path))
    assert caught.value.error_id == "cuda-version-unreadable"


def test_an_nvcc_for_another_machine_is_an_error_of_ours(tmp_path: Path) -> None:
    nvcc = write_file(tmp_path / "cuda" / "bin" / "nvcc", "\x7fELF not for here")
    nvcc.chmod(0o755)
    with pytest.raises(MissingError) as caught:
        read_cuda(tmp_path / "cuda", machine(tmp_path))
    assert caught.value.error_id == "toolkit-program-unusable"


@pytest.mark.parametrize(
    ("version", "archs", "target", "is_known"),
    [
        ("12.4.131", CUDA_12_ARCHS, "120a", False),
        ("13.0.88", CUDA_13_ARCHS, "61", False),
        ("12.8.93", (*CUDA_12_ARCHS, 120), "120f", False),
        ("12.9.41", (*CUDA_12_ARCHS, 120), "120f", True),
        ("12.4.131", CUDA_12_ARCHS, "90+ptx", True),
    ],
)
def test_an_arch_that_nvcc_does_not_list_stops_before_cmake(
    version: str, archs: tuple[int, ...], target: str, is_known: bool, tmp_path: Path, checkout: Layout
) -> None:
    """Case B13."""
    root = cuda_toolkit(tmp_path / "cuda", version, archs=archs, newest_gcc=15)
    backend = cuda(f"cuda{version[:2]}")
    toolchain = ProbedToolchain(backend, checkout, machine=machine(tmp_path, OPENCOTI_CUDA_PATH=str(root)))
    if is_known:
        toolchain.check(stage_for("75" if 75 in archs else "80", target))
        return
    with pytest.raises(MissingError) as caught:
        toolchain.check(stage_for("80", target))
    assert caught.value.error_id == "cuda-arch-unknown"
    assert target in caught.value.what
    assert "80" not in caught.value.what.split("for ", 1)[1]


@pytest.mark.parametrize("word", ["native", "No CUDA devices found.", "", "75 80", "75;", "7"])
def test_what_is_no_number_of_an_arch_never_reaches_cmake(
    word: str, tmp_path: Path, checkout: Layout
) -> None:
    """Case B13."""
    root = cuda_toolkit(tmp_path / "cuda", "12.8.93")
    toolchain = ProbedToolchain(
        cuda("cuda12"), checkout, machine=machine(tmp_path, OPENCOTI_CUDA_PATH=str(root))
    )
    step = Step(title="configure", argv=("cmake", f"-DCMAKE_CUDA_ARCHITECTURES={word}"))
    stage = Stage(name="x", toolchain="cuda12", steps=(step,), env={}, source_tree="0", inputs={}, outputs=())
    with pytest.raises(UsageError) as caught:
        toolchain.check(stage)
    assert caught.value.error_id == "cuda-arch-malformed"


def test_the_id_follows_versions_and_places(tmp_path: Path, checkout: Layout) -> None:
    def made(folder: str, version: str) -> str:
        root = cuda_toolkit(tmp_path / folder, version)
        computer = machine(tmp_path, OPENCOTI_CUDA_PATH=str(root))
        return ProbedToolchain(cuda("cuda12"), checkout, machine=computer).id

    first = made("a", "12.8.93")
    assert made("a", "12.8.93") == first
    assert len({first, made("b", "12.8.93"), made("a", "12.8.61")}) == 3


def test_gpu_toolchains_are_probed_and_the_others_are_wheels(checkout: Layout) -> None:
    for backend in TABLE.gpu:
        assert isinstance(find_toolchain(backend.toolchain, checkout), ProbedToolchain)
    assert isinstance(find_toolchain("zig", checkout), WheelToolchain)


def test_only_numbers_count_as_values_of_a_header(tmp_path: Path) -> None:
    header = write_file(
        tmp_path / "x.h",
        "#define A 1\n  # define B (2) /* two */\n#define C A + 1\n// #define D 4\n#define E 5x\n",
    )
    assert read_macros(header) == {"A": 1, "B": 2}
    assert read_macros(tmp_path / "none.h") == {}
