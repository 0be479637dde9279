"""Facts against rules, on facts made by hand (case B17)."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from ci.dso.code_rules import VARIANT_FEATURES
from ci.dso.elf import ElfFacts, VersionNeed, inspect_elf
from ci.dso.fatbin import CudaTargets
from ci.dso.instructions import FeatureUse, InstructionFacts
from ci.dso.rules import (
    GpuRole,
    Role,
    Rules,
    check_elf,
    gpu_rules,
    role_of,
    rules_for,
    rules_for_file,
    unresolved,
)
from ci.stages.elf import CPU_VARIANTS

GOOD = ElfFacts(
    path=Path("libggml-cpu-haswell.so"),
    kind="dso",
    is_static=False,
    arch="x86_64",
    needed=("libc.so.6", "libggml-base.so.0", "libm.so.6"),
    rpath=(),
    runpath=("$ORIGIN",),
    soname=None,
    version_needs=(VersionNeed(family="GLIBC", version="2.27", library="libm.so.6", symbol="expf"),),
    private_versions=(),
    exports=frozenset({"ggml_backend_init", "ggml_backend_score"}),
    undefined=(),
    has_executable_stack=False,
    has_writable_code=False,
    has_debug_info=False,
    build_paths=(),
)
CUDA12 = Rules(
    kinds=frozenset({"dso"}),
    allowed_needed=frozenset({"libc.so.6", "libcublas.so.12"}),
    required_exports=frozenset({"ggml_backend_init"}),
)


def _need(family: str, version: str, symbol: str = "f") -> tuple[VersionNeed, ...]:
    return (VersionNeed(family=family, version=version, library="libx.so", symbol=symbol),)


def test_a_good_variant_has_no_problems() -> None:
    assert check_elf(GOOD, rules_for("cpu-variant")) == []


@pytest.mark.parametrize("major", ["11", "13"])
def test_another_cuda_major_is_refused_case_b17(major: str) -> None:
    facts = dataclasses.replace(
        GOOD, needed=("libc.so.6", f"libcublas.so.{major}"), path=Path("libggml-cuda.so")
    )
    [problem] = check_elf(facts, CUDA12)
    assert (problem.problem_id, problem.file) == ("needed-not-allowed", "libggml-cuda.so")
    assert f"libcublas.so.{major}" in problem.detail


@pytest.mark.parametrize(
    ("family", "version", "glibc", "libstdcxx", "is_refused"),
    [
        ("GLIBC", "2.28", "2.28", None, False),
        ("GLIBC", "2.9", "2.28", None, False),
        ("GLIBC", "2.38", "2.28", None, True),
        ("GLIBC", "2.28.1", "2.28", None, True),
        ("GLIBCXX", "3.4.30", "2.28", "3.4.30", False),
        ("GLIBCXX", "3.4.31", "2.28", "3.4.30", True),
        ("GLIBCXX", "3.4", "2.28", None, True),
        ("ZLIB", "99.0", "2.28", None, False),
    ],
)
def test_version_ceilings_case_b17(
    family: str, version: str, glibc: str, libstdcxx: str | None, is_refused: bool
) -> None:
    facts = dataclasses.replace(GOOD, version_needs=_need(family, version, "__isoc23_strtol"))
    rules = dataclasses.replace(rules_for("cpu-variant"), glibc_ceiling=glibc, libstdcxx_ceiling=libstdcxx)
    problems = check_elf(facts, rules)
    assert [item.problem_id for item in problems] == (["version-too-new"] if is_refused else [])
    if is_refused:
        assert "__isoc23_strtol" in problems[0].detail
        assert str(problems[0]).startswith("libggml-cpu-haswell.so: ")


@pytest.mark.parametrize(
    ("change", "problem_id"),
    [
        ({"kind": "pie"}, "wrong-kind"),
        ({"arch": "aarch64"}, "wrong-arch"),
        ({"runpath": ("$ORIGIN", "/home/ann/build")}, "search-path"),
        ({"rpath": ("",)}, "search-path"),
        ({"private_versions": ("GLIBC_PRIVATE",)}, "version-private"),
        ({"exports": frozenset({"ggml_backend_init"})}, "export-missing"),
        ({"has_executable_stack": True}, "executable-stack"),
        ({"has_writable_code": True}, "writable-code"),
        ({"has_debug_info": True}, "debug-info"),
        ({"build_paths": ("/home/ann/x.c",)}, "build-path"),
    ],
)
def test_each_difference_is_one_problem(change: dict[str, object], problem_id: str) -> None:
    rules = rules_for("cpu-variant", "x86_64")
    facts = dataclasses.replace(GOOD, **change)  # type: ignore[arg-type]
    assert [item.problem_id for item in check_elf(facts, rules)] == [problem_id]


@pytest.mark.parametrize(
    ("arch", "page_size", "problem_ids"),
    [("x86_64", 1 << 12, []), ("aarch64", 1 << 16, []), ("aarch64", 1 << 12, ["page-size"])],
)
def test_an_arm_file_can_be_loaded_with_every_page_size(
    arch: str, page_size: int, problem_ids: list[str]
) -> None:
    facts = dataclasses.replace(GOOD, arch=arch, page_size_max=page_size)
    assert [item.problem_id for item in check_elf(facts, rules_for("cpu-variant", arch))] == problem_ids


def test_only_cpu_variants_may_have_a_score() -> None:
    assert [item.problem_id for item in check_elf(GOOD, rules_for("backend"))] == ["export-forbidden"]


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("llama-server", "host"),
        ("libggml-cpu-sapphirerapids.so", "cpu-variant"),
        ("libggml-cpu-armv8.2_3.so", "cpu-variant"),
        ("libggml-cpu.so", "backend"),
        ("libggml.so.0.25.3", "library"),
        ("libggml-base.so", "library"),
        ("libggml-cpu-armv8.2_1.so", "cpu-variant"),
        ("libggml-cuda.so", "cuda"),
        ("ggml-cuda.so", "cuda"),
        ("libggml-hip.so", "hip"),
        ("ggml-rocm.so", "hip"),
        ("libggml-vulkan.so", "vulkan"),
        ("libggml-cuda.so.1", None),
        ("libc.so.6", None),
    ],
)
def test_roles_by_name(name: str, role: str | None) -> None:
    assert role_of(name) == role


def test_a_symbol_that_a_sibling_exports_is_resolved(backend: Path, base: Path) -> None:
    alone = unresolved([inspect_elf(backend)])
    assert [(item.problem_id, item.detail) for item in alone] == [
        ("symbol-unresolved", "nothing exports ggml_from_base")
    ]
    assert unresolved([inspect_elf(backend), inspect_elf(base)]) == []


def _uses(*features: str, unknown: int = 0) -> InstructionFacts:
    uses = tuple(FeatureUse(feature=name, count=3, functions=("quantize",)) for name in features)
    return InstructionFacts(total=100, uses=uses, unknown=unknown)


CUDA13 = gpu_rules(
    "cuda",
    arch="x86_64",
    targets=("75", "90+ptx", "120f"),
    needed=("libcublas.so.13", "libcudart.so.13", "libcuda.so.1"),
    glibc_ceiling="2.31",
)
GOOD_CUDA = dataclasses.replace(
    GOOD,
    path=Path("libggml-cuda.so"),
    needed=("libc.so.6", "libcublas.so.13", "libcuda.so.1", "libggml-base.so.0"),
    exports=frozenset({"ggml_backend_init"}),
    cuda=CudaTargets(sass=("75", "90", "120f"), ptx=("90",)),
    instructions=_uses(),
)


def _problems(facts: ElfFacts, rules: Rules) -> list[tuple[str, str]]:
    return [(item.problem_id, item.detail) for item in check_elf(facts, rules)]


def test_a_good_cuda_library_has_no_problems() -> None:
    assert check_elf(GOOD_CUDA, CUDA13) == []


@pytest.mark.parametrize(
    ("cuda", "expected"),
    [
        (None, {"target-missing": 4}),
        (CudaTargets(sass=("75", "90", "120"), ptx=("90",)), {"target-missing": 1, "target-surplus": 1}),
        (CudaTargets(sass=("75", "90", "120f")), {"target-missing": 1}),
        (CudaTargets(sass=("75", "90", "120f"), ptx=("90",), other=("lto_90",)), {"target-surplus": 1}),
    ],
)
def test_other_gpus_than_those_of_the_table_are_refused_case_b13(
    cuda: CudaTargets | None, expected: dict[str, int]
) -> None:
    found = [name for name, _ in _problems(dataclasses.replace(GOOD_CUDA, cuda=cuda), CUDA13)]
    assert {name: found.count(name) for name in found} == expected


def test_the_targets_of_amd_are_compared_by_name() -> None:
    rules = gpu_rules(
        "hip", arch="x86_64", targets=("gfx906", "gfx90a"), needed=("libamdhip64.so.6",), glibc_ceiling="2.31"
    )
    facts = dataclasses.replace(
        GOOD_CUDA,
        path=Path("libggml-hip.so"),
        needed=("libamdhip64.so.6",),
        cuda=None,
        hip=("gfx90a:xnack+",),
    )
    assert _problems(facts, rules) == [
        ("target-missing", "it holds no code for gfx906"),
        ("target-missing", "it holds no code for gfx90a"),
        ("target-surplus", "it holds code for gfx90a:xnack+, which is not in the table"),
    ]


def test_a_vulkan_library_holds_no_gpu_code() -> None:
    rules = gpu_rules("vulkan", arch="x86_64", targets=(), needed=("libvulkan.so.1",), glibc_ceiling="2.28")
    facts = dataclasses.replace(GOOD_CUDA, needed=("libvulkan.so.1",))
    assert {name for name, _ in _problems(facts, rules)} == {"target-surplus"}
    assert _problems(dataclasses.replace(facts, cuda=None), rules) == []


@pytest.mark.parametrize(
    "needed",
    [("libcudart.so.12", "libcublas.so.13"), ("libcublasLt.so.12", "libcudart.so.13", "libcuda.so.1")],
)
def test_half_of_one_cuda_and_half_of_another_case_b14(needed: tuple[str, ...]) -> None:
    facts = dataclasses.replace(GOOD_CUDA, needed=needed)
    assert _problems(facts, rules_for("cuda")) == [
        ("cuda-mixed", "it needs libraries of CUDA 12 and of CUDA 13")
    ]


def test_a_row_without_libstdcxx_allows_none() -> None:
    words = {
        "arch": "x86_64",
        "targets": ("75", "90+ptx", "120f"),
        "needed": ("libcublas.so.13", "libcuda.so.1"),
        "glibc_ceiling": "2.31",
    }
    facts = dataclasses.replace(
        GOOD_CUDA,
        needed=(*GOOD_CUDA.needed, "libstdc++.so.6"),
        version_needs=_need("GLIBCXX", "3.4.28"),
    )
    assert {name for name, _ in _problems(facts, gpu_rules("cuda", **words))} == {  # type: ignore[arg-type]
        "needed-not-allowed",
        "version-too-new",
    }
    assert _problems(facts, gpu_rules("cuda", libstdcxx_ceiling="3.4.28", **words)) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("role", "prefix"),
    [("cuda", "ggml_backend_cuda"), ("hip", "ggml_backend_cuda"), ("vulkan", "ggml_backend_vk")],
)
def test_libraries_of_the_ape_lane_stand_alone_and_have_other_entry_points(
    role: GpuRole, prefix: str
) -> None:
    rules = gpu_rules(role, arch="x86_64", targets=(), needed=(), glibc_ceiling="2.31", lane="ape")
    names = frozenset({f"{prefix}_init", f"{prefix}_reg", f"{prefix}_get_device_count"})
    facts = dataclasses.replace(GOOD_CUDA, needed=("libc.so.6",), cuda=None, exports=names)
    assert _problems(facts, rules) == []
    assert _problems(dataclasses.replace(facts, exports=frozenset({"ggml_backend_init"})), rules) == [
        ("export-missing", f"it does not export {name}") for name in sorted(names)
    ]
    linked = dataclasses.replace(facts, needed=("libggml-base.so.0",))
    assert _problems(linked, rules) == [("needed-not-allowed", "it needs libggml-base.so.0")]


@pytest.mark.parametrize(
    ("name", "features", "leaks"),
    [
        ("libggml-cpu-x64.so", ("SSE42",), ("SSE42",)),
        ("libggml-cpu-haswell.so", ("AVX", "AVX2", "FMA", "F16C", "BMI2", "BMI1"), ()),
        ("libggml-cpu-haswell.so", ("AVX2", "AVX512"), ("AVX512",)),
        ("libggml-cpu-alderlake.so", ("AVX_VNNI", "AVX512_VNNI"), ("AVX512_VNNI",)),
        ("libggml-cpu-skylakex.so", ("AVX512", "AVX512_BF16", "XOP"), ("AVX512_BF16", "XOP")),
        ("libggml-cpu-sapphirerapids.so", ("AVX512", "AVX512_BF16", "AMX_INT8", "AMX_TILE"), ()),
    ],
)
def test_a_variant_may_use_what_its_processors_have(
    name: str, features: tuple[str, ...], leaks: tuple[str, ...]
) -> None:
    rules = rules_for_file(name)
    assert rules is not None
    facts = dataclasses.replace(GOOD, instructions=_uses(*features))
    assert _problems(facts, rules) == [
        ("instructions-leaked", f"3 instructions need {leak}: quantize") for leak in leaks
    ]


@pytest.mark.parametrize("role", ["host", "library", "backend", "cuda", "hip", "vulkan"])
def test_everything_else_must_run_on_any_x86_64(role: Role) -> None:
    facts = dataclasses.replace(GOOD, instructions=_uses("AVX512", unknown=2))
    found = [name for name, _ in _problems(facts, rules_for(role)) if name.startswith("instructions")]
    assert found == ["instructions-leaked", "instructions-unknown"]
    assert not [name for name, _ in _problems(GOOD, rules_for(role)) if name.startswith("instructions")]


def test_every_variant_of_the_build_has_its_features() -> None:
    assert VARIANT_FEATURES.keys() == set(CPU_VARIANTS["x86_64"])
    for name in CPU_VARIANTS["aarch64"]:
        rules = rules_for_file(f"libggml-cpu-{name}.so", "aarch64")
        assert rules is not None
        assert rules.allowed_instructions is None


def test_symbols_of_a_vendor_can_be_given_by_name(backend: Path, base: Path) -> None:
    facts = dataclasses.replace(inspect_elf(backend), undefined=("cuDeviceGet", "ggml_from_base"))
    files = [facts, inspect_elf(base)]
    assert [item.detail for item in unresolved(files)] == ["nothing exports cuDeviceGet"]
    assert unresolved(files, provided=frozenset({"cuDeviceGet"})) == []
