"""Facts against rules, on facts made by hand (case B17)."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from ci.dso.elf import ElfFacts, VersionNeed, inspect_elf
from ci.dso.rules import Rules, check_elf, role_of, rules_for, unresolved

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
    rules = dataclasses.replace(rules_for("cpu-variant"), arch="x86_64")
    facts = dataclasses.replace(GOOD, **change)  # type: ignore[arg-type]
    assert [item.problem_id for item in check_elf(facts, rules)] == [problem_id]


def test_only_cpu_variants_may_have_a_score() -> None:
    assert [item.problem_id for item in check_elf(GOOD, rules_for("backend"))] == ["export-forbidden"]


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("llama-server", "host"),
        ("libggml-cpu-sapphirerapids.so", "cpu-variant"),
        ("libggml-cpu.so", "backend"),
        ("libggml.so.0.25.3", "library"),
        ("libggml-base.so", "library"),
        ("libggml-cuda.so", None),
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
