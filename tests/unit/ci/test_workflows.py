"""What of the workflows is generated from the table, and that the committed files are what it gives."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ci.cli import build_parser
from ci.context import Context
from ci.paths import Layout
from ci.toolchains.table import Table, load_table
from ci.workflows import released_sets, render, stale_workflows
from opencoti.errors import ConfigError
from tests.conftest import ROOT, RecordedConsole

TABLE = """
[cpu]
title = "CPU"
kind = "cpu"
toolchain = "zig"
toolkit = "1"
glibc = "2.28"

[cuda13]
title = "New CUDA"
kind = "cuda"
toolchain = "cuda13"
toolkit = "13"
glibc = "2.28"
library = "libggml-cuda.so"
targets = { x86_64 = ["75"], aarch64 = ["75"] }
needed = ["libcublas.so.13"]
probe = "probe.cu"
hosts = ["x86_64"]

[cuda12]
title = "Old CUDA"
kind = "cuda"
toolchain = "cuda12"
toolkit = "12"
glibc = "2.28"
library = "libggml-cuda.so"
targets = { x86_64 = ["75"], aarch64 = ["75"] }
needed = ["libcublas.so.12"]
probe = "probe.cu"
"""


@pytest.fixture
def table(tmp_path: Path) -> Table:
    path = tmp_path / "toolchains.toml"
    path.write_text(TABLE)
    return load_table(path)


def body(table: Table, name: str, indent: str = "") -> list[str]:
    text = render(f"{indent}# generated: {name}\n{indent}stale\n{indent}# end\n", table, "a.yml")
    lines = text.splitlines()
    assert (lines[0], lines[-1]) == (f"{indent}# generated: {name}", f"{indent}# end")
    return lines[1:-1]


def test_committed_workflows_are_fresh() -> None:
    assert stale_workflows(ROOT) == {}


def test_every_backend_is_built_for_every_host(table: Table) -> None:
    assert body(table, "backends", "    ") == [
        "    - {backend: cpu, arch: x86_64, toolchain: zig}",
        "    - {backend: cpu, arch: aarch64, toolchain: zig}",
        "    - {backend: cuda13, arch: x86_64, toolchain: cuda13}",
        "    - {backend: cuda12, arch: x86_64, toolchain: cuda12}",
        "    - {backend: cuda12, arch: aarch64, toolchain: cuda12}",
    ]


def test_one_artifact_holds_one_generation_of_cuda(table: Table) -> None:
    assert [(item.arch, item.flavor, item.backends) for item in released_sets(table)] == [
        ("x86_64", None, ("cpu", "cuda13")),
        ("x86_64", "cuda12", ("cpu", "cuda12")),
        ("aarch64", None, ("cpu", "cuda12")),
    ]


def test_each_device_has_a_job_with_its_label(table: Table) -> None:
    lines = body(table, "devices")
    assert [line for line in lines if not line.startswith(" ") and line] == [
        "cuda13-x86_64:", "cuda12-x86_64:", "cuda12-aarch64:",
    ]  # fmt: skip
    assert "  runs-on: [self-hosted, linux, arm64, opencoti-cuda12]" in lines


def test_text_between_regions_is_left_alone(table: Table) -> None:
    text = "a: 1\n# generated: toolchains\n# end\n\n# no region\nb: 2\n"
    fresh = render(text, table, "a.yml")
    assert fresh == "a: 1\n# generated: toolchains\n- zig\n- cuda13\n- cuda12\n# end\n\n# no region\nb: 2\n"
    assert render(fresh, table, "a.yml") == fresh


def test_unknown_region_is_named(table: Table) -> None:
    with pytest.raises(ConfigError, match="'backend'") as caught:
        render("# generated: backend\n# end\n", table, "a.yml")
    assert caught.value.error_id == "workflow-region-unknown"


def test_command_mends_what_the_check_finds(tmp_path: Path, recorded: RecordedConsole) -> None:
    shutil.copytree(ROOT / ".github", tmp_path / ".github")
    (tmp_path / "containers").mkdir()
    (tmp_path / "containers" / "toolchains.toml").write_text(TABLE)
    context = Context(layout=Layout(root=tmp_path, cache=tmp_path / "cache"), console=recorded.console)

    def run(*words: str) -> int:
        args = build_parser().parse_args(["workflows", *words])
        return int(args.command(args, context))

    with pytest.raises(ConfigError) as caught:
        run("--check")
    assert caught.value.error_id == "workflows-stale"
    assert run() == 0
    assert "toolchain: cuda12" in (tmp_path / ".github/workflows/build.yml").read_text()
    assert run("--check") == 0
