"""`package --plan` in a small checkout of its own: what it says before and after the build."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ci.build import host_arch
from ci.cli import build_parser
from ci.context import Context
from ci.package.command import PackageOptions, check_request
from ci.package.planning import plan_package
from ci.paths import Layout
from ci.stages.elf import CPU_VARIANTS, SERVER, product_names
from opencoti.console import Console
from opencoti.errors import BuildError, ConfigError, UsageError
from tests.conftest import ROOT, RecordedConsole

ENGINE = b"\x7fELF\0--embedding\0--pooling\0--ctx-size\0--parallel\0"


@pytest.fixture
def checkout(layout: Layout) -> Layout:
    for name in ("vendors/pin", "vendors/llamafile", "containers"):
        shutil.copytree(ROOT / name, layout.root / name)
    shutil.copy(ROOT / "LICENSE", layout.root)
    return layout


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + b"w" * 100)
    return path


def build(layout: Layout) -> None:
    """Leave what `build cpu` would."""
    folder = layout.dist / "backends" / "cpu" / "0.5.0-g0c1e570"
    folder.mkdir(parents=True)
    for name in product_names(host_arch()):
        (folder / name).write_bytes(ENGINE if name == SERVER else b"\x7fELF")


def files_of(layout: Layout) -> set[Path]:
    return {path for folder in (layout.root, layout.cache) for path in folder.rglob("*")}


def plan(layout: Layout, options: PackageOptions) -> dict[str, Any]:
    """Return the plan as JSON gives it; nothing may be written for it."""
    before = files_of(layout)
    context = Context(layout=layout, console=Console(quiet=True))
    document: dict[str, Any] = json.loads(json.dumps(plan_package(context, options).as_dict()))
    assert files_of(layout) == before
    return document


def test_before_the_build_nothing_has_a_size_that_is_not_known(checkout: Layout, model: Path) -> None:
    document = plan(checkout, PackageOptions(model=model))
    engine, embedder = document["artifacts"]
    assert (engine["size"], engine["loaderSize"], embedder["size"]) == (None, None, None)
    states = {member["name"]: member["state"] for member in embedder["members"]}
    assert states[SERVER] == states[".args"] == "to build"
    assert states["LICENSE.opencoti"] == states["m.gguf"] == "ready"


def test_after_the_build_args_and_members_are_known(checkout: Layout, model: Path) -> None:
    build(checkout)
    document = plan(checkout, PackageOptions(model=model, mmproj=None))
    engine, embedder = document["artifacts"]
    assert engine["args"] == []
    assert embedder["args"][:3] == ["-m", "/zip/m.gguf", "--embedding"]
    assert Path(embedder["path"]).name == f"opencoti-embedder-0.5.0-g0c1e570-linux-{host_arch()}.llamafile"
    assert set(product_names(host_arch())) <= {member["name"] for member in engine["members"]}
    assert document["cpuOnly"] is True


def test_for_another_architecture_other_files_are_planned(checkout: Layout) -> None:
    other = next(arch for arch in CPU_VARIANTS if arch != host_arch())
    build(checkout)  # for this machine: nothing of it may get in
    [engine] = plan(checkout, PackageOptions(arch=other, is_cpu_only=True))["artifacts"]
    assert Path(engine["path"]).name.endswith(f"-linux-{other}.llamafile")
    states = {member["name"]: member["state"] for member in engine["members"]}
    assert {name: states[name] for name in product_names(other)} == dict.fromkeys(
        product_names(other), "to build"
    )


def test_given_args_go_to_the_artifact_with_the_model(checkout: Layout, model: Path, tmp_path: Path) -> None:
    build(checkout)
    (tmp_path / "args").write_bytes(b"-m\n/zip/m.gguf\n...\n")
    engine, embedder = plan(checkout, PackageOptions(model=model, args_file=tmp_path / "args"))["artifacts"]
    assert (engine["args"], embedder["args"]) == ([], ["-m", "/zip/m.gguf", "..."])
    (tmp_path / "args").write_bytes(b"--port\n1\n...\n")
    only = plan(checkout, PackageOptions(args_file=tmp_path / "args"))["artifacts"]
    assert [artifact["args"] for artifact in only] == [["--port", "1", "..."]]


def test_args_of_the_bare_engine_cannot_name_a_model(checkout: Layout, tmp_path: Path) -> None:
    (tmp_path / "args").write_bytes(b"-m\n/zip/m.gguf\n...\n")
    with pytest.raises(ConfigError) as caught:
        plan(checkout, PackageOptions(args_file=tmp_path / "args"))
    assert caught.value.error_id == "args-member-missing"


def test_a_backend_that_is_not_built_stops_the_plan(checkout: Layout) -> None:
    with pytest.raises(BuildError) as caught:
        plan(checkout, PackageOptions(backends=("cpu", "vulkan")))
    assert caught.value.error_id == "no-gpu-backend"


def test_a_projector_needs_a_model(model: Path) -> None:
    with pytest.raises(UsageError) as caught:
        check_request(PackageOptions(mmproj=model))
    assert caught.value.error_id == "mmproj-without-model"


def test_the_command_prints_the_plan(checkout: Layout, model: Path, recorded: RecordedConsole) -> None:
    build(checkout)
    args = build_parser().parse_args(["package", "--plan", "--with-model", str(model), "--backends", "cpu"])
    assert args.command(args, Context(layout=checkout, console=recorded.console)) == 0
    text = recorded.out.getvalue()
    assert "m.gguf" in text
    assert "--pooling last" in text
