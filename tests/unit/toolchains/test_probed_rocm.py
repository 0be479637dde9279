"""ROCm on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.paths import Layout
from ci.stages.gpu import gpu_stage
from ci.toolchains.machine import Machine
from ci.toolchains.probed import ProbedToolchain
from ci.toolchains.setups import find_setup
from ci.toolchains.table import load_table
from opencoti.errors import MissingError
from tests.conftest import ROOT
from tests.fakes.toolkits import rocm_toolkit

BACKEND = load_table(ROOT / "containers" / "toolchains.toml").backend("rocm")


@pytest.fixture
def checkout(tmp_path: Path) -> Layout:
    return Layout(root=ROOT, cache=tmp_path / "cache")


def machine(tmp_path: Path, **environ: str) -> Machine:
    return Machine(environ={"PATH": str(tmp_path / "none"), **environ}, prefix=tmp_path, glibc=(2, 31))


def refusal(layout: Layout, computer: Machine) -> MissingError:
    with pytest.raises(MissingError) as caught:
        find_setup(BACKEND, layout, computer)
    return caught.value


@pytest.mark.parametrize("variable", ["OPENCOTI_ROCM_PATH", "ROCM_PATH"])
def test_the_folder_of_a_version_is_respected(variable: str, tmp_path: Path, checkout: Layout) -> None:
    """Case B16: ROCm only as /opt/rocm-6.3.3, without the link."""
    root = rocm_toolkit(tmp_path / "opt/rocm-6.3.3", "6.3.3")
    setup = find_setup(BACKEND, checkout, machine(tmp_path, **{variable: str(root)}))
    scripts = setup.scripts(Path("/x"))
    assert f"HIP 6.3.3, AMD clang version 18.0.0git (roc-6.3.3 25012) in {root}" in setup.description
    assert f"export ROCM_PATH={root} " in scripts["cmake"]
    assert f"{root}/llvm/bin/clang++ --rocm-path={root} " in scripts["hip-clang"]


def test_ours_wins_over_the_vendors_variable(tmp_path: Path, checkout: Layout) -> None:
    ours = rocm_toolkit(tmp_path / "a", "6.3.3")
    vendors = rocm_toolkit(tmp_path / "b", "6.2.0")
    setup = find_setup(
        BACKEND, checkout, machine(tmp_path, OPENCOTI_ROCM_PATH=str(ours), ROCM_PATH=str(vendors))
    )
    assert "6.3.3" in setup.description


def test_a_missing_link_lists_what_is_there(tmp_path: Path, checkout: Layout) -> None:
    """Case B16."""
    root = rocm_toolkit(tmp_path / "opt/rocm-6.3.3", "6.3.3")
    error = refusal(checkout, machine(tmp_path))
    assert error.error_id == "rocm-missing"
    assert error.why == f"found in {tmp_path}/opt: {root}"
    assert "OPENCOTI_ROCM_PATH" in error.hint


def test_a_path_with_a_space_stays_one_word(tmp_path: Path, checkout: Layout) -> None:
    root = rocm_toolkit(tmp_path / "rocm 6", "6.3.3")
    scripts = find_setup(BACKEND, checkout, machine(tmp_path, ROCM_PATH=str(root))).scripts(Path("/x"))
    assert f"'--rocm-path={root}'" in scripts["hip-clang"]
    assert f"ROCM_PATH='{root}'" in scripts["cmake"]


@pytest.mark.parametrize(
    ("version", "clang", "runtime", "error_id"),
    [
        ("6.0.2", "", None, "rocm-old"),
        ("6.3.3", "6.2.0", None, "rocm-mixed"),
        ("6.3.3", "", 5, "rocm-mixed"),
        ("7.0.2", "", None, "rocm-generation-other"),
    ],
)
def test_what_does_not_fit_is_refused(
    version: str, clang: str, runtime: int | None, error_id: str, tmp_path: Path, checkout: Layout
) -> None:
    """Case B14."""
    rocm_toolkit(tmp_path / "opt/rocm", version, clang=clang, runtime=runtime)
    assert refusal(checkout, machine(tmp_path)).error_id == error_id


@pytest.mark.parametrize("gone", ["include/hipblas/hipblas.h", "llvm/bin/clang", "lib/libamdhip64.so.6"])
def test_a_part_that_lacks_is_named(gone: str, tmp_path: Path, checkout: Layout) -> None:
    (rocm_toolkit(tmp_path / "opt/rocm", "6.3.3") / gone).unlink()
    error = refusal(checkout, machine(tmp_path))
    assert error.error_id == "rocm-part-missing"
    assert Path(gone).name.split(".")[0] in error.what


def test_devices_that_its_clang_does_not_know_stop_before_cmake(tmp_path: Path, checkout: Layout) -> None:
    rocm_toolkit(tmp_path / "opt/rocm", "6.3.3", devices=("gfx906", "gfx1100"))
    toolchain = ProbedToolchain(BACKEND, checkout, machine=machine(tmp_path))

    def check(*targets: str) -> None:
        toolchain.check(
            gpu_stage(BACKEND, arch="x86_64", targets=targets, has_flash_attention=True, source_tree="0")
        )

    check("gfx906")
    with pytest.raises(MissingError) as caught:
        check("gfx1100", "gfx1201")
    assert caught.value.error_id == "rocm-arch-unknown"
    assert caught.value.what.endswith("for gfx1201")
