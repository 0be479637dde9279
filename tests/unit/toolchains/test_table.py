"""The one table of backends, and what is made of its rows: targets, probes, stages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ci.paths import Layout
from ci.stages.gpu import cmake_target, gpu_stage
from ci.toolchains.names import backend_names
from ci.toolchains.probe import measured_targets, probe_command
from ci.toolchains.recipe import Recipe
from ci.toolchains.stubs import stub_symbols
from ci.toolchains.table import Backend, Table, load_table
from opencoti.errors import ConfigError, UsageError

ROW = """
[cuda13]
title = "CUDA"
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


@pytest.fixture(scope="module")
def table() -> Table:
    return load_table(Layout.find().table)


@pytest.fixture
def cuda(tmp_path: Path) -> Backend:
    (tmp_path / "table.toml").write_text(ROW)
    return load_table(tmp_path / "table.toml").backend("cuda13")


def test_the_rows_follow_the_rules_of_the_architectures(table: Table) -> None:
    assert table.names == backend_names() == ("cpu", "vulkan", "cuda13", "cuda12", "rocm")
    baseline = {"75", "80", "86", "89", "90"}
    for name in ("cuda12", "cuda13"):
        for arch in ("x86_64", "aarch64"):
            targets = {target.removesuffix("+ptx") for target in table.backend(name).targets_for(arch)}
            assert baseline <= targets, (name, arch)
    assert "120f" in table.backend("cuda13").targets_for("x86_64")
    assert {"110", "121"} <= set(table.backend("cuda13").targets_for("aarch64"))
    assert not {"110", "121"} & set(table.backend("cuda13").targets_for("x86_64"))
    assert "-DGGML_CUDA_COMPRESSION_MODE=size" in table.backend("cuda13").definitions


def test_every_row_has_a_toolchain_whose_files_it_names(table: Table, real_layout: Layout) -> None:
    for backend in table.backends:
        recipe = Recipe.load(real_layout.containers / backend.toolchain, "x86_64")
        paths = {file.path for file in recipe.overlay}
        if backend.kind == "vulkan":
            probes = (backend.probe, *backend.features, *backend.absent_features)
            assert {f"probe/{name}.comp" for name in probes} <= paths
        elif backend.probe:
            assert f"probe/{backend.probe}" in paths
        assert any(backend.toolkit in step.shows for step in recipe.prove), backend.name


@pytest.mark.parametrize(
    ("before", "after", "place"),
    [
        ('"75", ', '"No CUDA devices found.", ', "targets.x86_64.0"),
        ('"75", ', '"native", ', "targets.x86_64.0"),
        ('kind = "cuda"', 'kind = "metal"', "kind"),
        ('glibc = "2.31"', "", "glibc"),
        ('glibc = "2.31"', 'glibc = "new"', "glibc"),
        ("hosts", "hsts", "hsts"),
        ("title", "title = ", "line 3"),
        ('"75", "90+ptx"', '"90", "90+ptx"', "twice"),
        ('"75", "90+ptx"', "", "cuda13: targets.x86_64"),
        ('targets.x86_64 = ["75", "90+ptx"]', "", "cuda13: targets.x86_64"),
        ('library = "libggml-cuda.so"', "", "cuda13: library"),
        ('library = "libggml-cuda.so"', 'library = "../x.so"', "cuda13.library"),
        ('toolchain = "cuda13"', 'toolchain = "../cuda13"', "cuda13.toolchain"),
        ('needed = ["libcublas.so.13"]', "", "libcublas"),
        ('probe = "probe.cu"', 'probe = "a; b"', "cuda13.probe"),
        ("[cuda13]", '["../x"]', "../x.name"),
        ("[cuda13]", "[cuda13]\nname = 'cpu'", "cuda13"),
        ("[cuda13]", "x = 3\n[cuda13]", "x: is no table"),
    ],
)
def test_a_malformed_table_names_the_place(before: str, after: str, place: str, tmp_path: Path) -> None:
    """case B13"""
    path = tmp_path / "table.toml"
    path.write_text(ROW.replace(before, after))
    with pytest.raises(ConfigError, match=re.escape(place)) as caught:
        load_table(path)
    assert caught.value.error_id == "table-malformed"


def test_asked_targets_are_those_of_the_table(cuda: Backend) -> None:
    assert cuda.choose_targets("x86_64", None) == ("75", "90+ptx")
    assert cuda.choose_targets("x86_64", ["90"]) == ("90+ptx",)
    assert cuda.choose_targets("x86_64", ["90", "75"]) == ("75", "90+ptx")


@pytest.mark.parametrize(
    ("asked", "error_id"),
    [
        ("61", "target-unknown"),
        ("120a", "target-unknown"),
        ("native", "target-malformed"),
        ("", "target-malformed"),
    ],
)
def test_a_target_that_the_toolchain_is_not_proved_for_stops_before_compiling(
    asked: str, error_id: str, cuda: Backend
) -> None:
    """case B13"""
    with pytest.raises(UsageError) as caught:
        cuda.choose_targets("x86_64", ["75", asked])
    assert caught.value.error_id == error_id


def test_an_empty_list_of_targets_is_not_taken_for_all(cuda: Backend) -> None:
    """case B13"""
    with pytest.raises(UsageError) as caught:
        cuda.choose_targets("x86_64", [])
    assert caught.value.error_id == "targets-empty"


def test_targets_have_no_meaning_where_there_is_no_list(table: Table) -> None:
    with pytest.raises(UsageError) as caught:
        table.backend("vulkan").choose_targets("x86_64", ["75"])
    assert caught.value.error_id == "targets-without-meaning"


def test_targets_are_written_as_each_tool_wants_them(cuda: Backend) -> None:
    assert [cmake_target(name) for name in ("75", "120f", "90+ptx")] == ["75-real", "120f-real", "90"]
    command = probe_command(cuda, "x86_64")
    assert "'arch=compute_75,code=sm_75'" in command
    assert "'arch=compute_90,code=[sm_90,compute_90]'" in command


def test_what_the_probe_prints_becomes_the_words_of_the_table(table: Table, cuda: Backend) -> None:
    listing = "\n".join(
        f"\nFatbin {kind} code:\n================\narch = {arch}\ncode version = [1,7]"
        for kind, arch in (("elf", "sm_90"), ("ptx", "sm_90"), ("elf", "sm_120f"), ("elf", "sm_75"))
    )
    assert measured_targets(cuda, listing.splitlines()) == ("120f", "75", "90+ptx")
    rocm = table.backend("rocm")
    lines = [
        "host-x86_64-unknown-linux-gnu-",
        "hipv4-amdgcn-amd-amdhsa--gfx90a",
        "hip-amdgcn-amd-amdhsa--gfx1100",
    ]
    assert measured_targets(rocm, lines) == ("gfx1100", "gfx90a")
    lines = ["x.comp:3: error: extension not supported", "supports probe", "supports GL_EXT_bfloat16"]
    assert measured_targets(table.backend("vulkan"), lines) == ("GL_EXT_bfloat16", "probe")


def test_a_stage_depends_on_its_targets_and_on_nothing_above_ggml(table: Table) -> None:
    backend = table.backend("cuda13")

    def stage(targets: tuple[str, ...], *, fa: bool = True, tree: str = "a" * 40) -> tuple[str, str]:
        made = gpu_stage(backend, arch="x86_64", targets=targets, has_flash_attention=fa, source_tree=tree)
        return made.name, made.key("toolchain")

    full = backend.targets_for("x86_64")
    assert stage(full)[0] == "cuda13-x86_64"
    assert stage(("75",))[0] == stage(full, fa=False)[0] == "cuda13-x86_64-partial"
    keys = {stage(full)[1], stage(("75",))[1], stage(full, fa=False)[1], stage(full, tree="b" * 40)[1]}
    assert len(keys) == 4


def test_release_builds_have_every_kernel_family(table: Table) -> None:
    for name in ("cuda12", "cuda13", "rocm"):
        backend = table.backend(name)
        words = [
            word
            for step in gpu_stage(
                backend,
                arch="x86_64",
                targets=backend.targets_for("x86_64"),
                has_flash_attention=True,
                source_tree="a" * 40,
            ).steps
            for word in step.argv
        ]
        assert "-DGGML_CUDA_FA_ALL_QUANTS=ON" in words


def test_every_library_that_is_linked_but_not_there_has_a_stub(table: Table, real_layout: Layout) -> None:
    for backend in table.gpu:
        stage = gpu_stage(
            backend,
            arch="x86_64",
            targets=backend.targets_for("x86_64"),
            has_flash_attention=True,
            source_tree="a" * 40,
        )
        stubs = [step.argv[-1].rsplit("/", 1)[-1] for step in stage.steps if step.title.startswith("stub")]
        folder = real_layout.containers / backend.toolchain / "tree" / "stubs"
        assert sorted(stubs) == sorted(path.name for path in folder.iterdir())
    symbols = stub_symbols(real_layout.containers, table.backend("cuda13"))
    assert {"cublasCreate_v2", "cuMemMap"} <= symbols
