"""The engine that builds nothing: a stage is taken as it was handed over, or there is an error."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ci.engines import select_engine
from ci.engines.none import NoEngine
from ci.paths import Layout
from ci.stages.model import Stage, Step
from ci.stages.runner import StageResult, run_stage
from ci.toolchains.recipe import Recipe
from opencoti.errors import BuildError
from tests.conftest import RecordedConsole
from tests.fakes.build_engine import FakeEngine

STAGE = Stage(
    name="cpu-x86_64",
    toolchain="zig",
    steps=(Step(title="compile", argv=("cc",)),),
    env={},
    source_tree="t" * 40,
    inputs={},
    outputs=("bin/engine",),
)


@pytest.fixture
def layout(tmp_path: Path, real_layout: Layout) -> Layout:
    """A checkout of its own that has the real recipes."""
    root = tmp_path / "checkout"
    (root / "source").mkdir(parents=True)
    (root / "containers").symlink_to(real_layout.containers)
    return Layout(root=root, cache=tmp_path / "cache")


def run(engine: FakeEngine | NoEngine, layout: Layout, recorded: RecordedConsole) -> StageResult:
    return run_stage(
        STAGE, engine, layout=layout, source=layout.root / "source", console=recorded.console, jobs=1
    )


def test_what_an_image_made_elsewhere_is_taken_without_modes(
    layout: Layout, tmp_path: Path, recorded: RecordedConsole
) -> None:
    image = Recipe.load(layout.containers / "zig").image_id
    made = run(FakeEngine({"bin/engine": b"ELF"}, name="docker", toolchain_id=image), layout, recorded)
    sent = tmp_path / "sent"
    for path in layout.stages.rglob("*"):
        if path.is_file():
            (sent / path.relative_to(layout.stages)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, sent / path.relative_to(layout.stages))
    shutil.rmtree(layout.cache)
    shutil.copytree(sent, layout.stages)
    taken = run(NoEngine(layout), layout, recorded)
    assert (taken.key, taken.from_cache, taken.engine) == (made.key, True, "docker")
    assert (taken.folder / "bin" / "engine").read_bytes() == b"ELF"


def test_what_was_not_handed_over_is_an_error(layout: Layout, recorded: RecordedConsole) -> None:
    engine = select_engine("none", layout, recorded.console)
    assert isinstance(engine, NoEngine)
    with pytest.raises(BuildError) as caught:
        run(engine, layout, recorded)
    assert (caught.value.error_id, caught.value.exit_code) == ("stage-not-cached", 5)


def test_another_toolchain_made_another_stage(layout: Layout, recorded: RecordedConsole) -> None:
    run(FakeEngine({"bin/engine": b"ELF"}, toolchain_id="f" * 64), layout, recorded)
    with pytest.raises(BuildError, match="no finished stage of toolchain zig"):
        run(NoEngine(layout), layout, recorded)
