"""The same bytes from both engines, from two checkout paths, by two users."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

import pytest

from ci.build import prepare_source
from ci.context import Context
from ci.engines import select_engine
from ci.paths import Layout
from ci.stages import elf
from ci.stages.model import Stage
from ci.stages.runner import run_stage
from tests.conftest import RecordedConsole

pytestmark = [pytest.mark.docker, pytest.mark.engine]

VARIANTS = ("x64", "zen4")
OUTPUTS = ("bin/libggml-base.so.0", *(f"bin/libggml-cpu-{variant}.so" for variant in VARIANTS))


def partial_stage(stage: Stage) -> Stage:
    """The CPU stage, cut down to ggml-base and two variants."""
    configure, compile_step = stage.steps
    targets = ("ggml-base", *(f"ggml-cpu-{variant}" for variant in VARIANTS))
    argv = compile_step.argv[: compile_step.argv.index("{jobs}") + 1] + targets
    return dataclasses.replace(
        stage, steps=(configure, dataclasses.replace(compile_step, argv=argv)), outputs=OUTPUTS
    )


def test_host_and_docker_give_the_same_bytes_from_different_paths(
    real_layout: Layout, recorded: RecordedConsole, tmp_path: Path, docker_daemon: None
) -> None:
    source = prepare_source(Context(layout=real_layout, console=recorded.console))
    elsewhere = tmp_path / "another" / "place"
    shutil.copytree(source.folder, elsewhere, ignore=shutil.ignore_patterns(".git"))
    identity = elf.EngineIdentity(
        version_string="opencoti-test", patch_set="0" * 64, upstream_commit=source.pin.commit
    )
    stage = partial_stage(
        elf.cpu_stage(arch="x86_64", toolchain="zig", source_tree=source.tree, identity=identity)
    )
    digests = {}
    for engine_name, folder in (("host", source.folder), ("docker", elsewhere)):
        layout = Layout(root=tmp_path / engine_name, cache=real_layout.cache)
        (tmp_path / engine_name).mkdir()
        # The recipes are read from the checkout.
        (tmp_path / engine_name / "containers").symlink_to(real_layout.containers)
        result = run_stage(
            stage,
            select_engine(engine_name, layout, recorded.console),  # type: ignore[arg-type]
            layout=layout,
            source=folder,
            console=recorded.console,
            jobs=len(os.sched_getaffinity(0)),
            use_cache=False,
        )
        assert result.engine == engine_name
        digests[engine_name] = dict(result.files)
    assert set(digests["host"]) == set(OUTPUTS)
    assert digests["host"] == digests["docker"]
