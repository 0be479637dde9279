"""From a stage to its result: what is run, what is not, and what is left behind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ci.locks import exclusive_lock
from ci.paths import Layout
from ci.stages.model import Stage
from ci.stages.runner import StageResult, require_free_space, run_stage
from opencoti.errors import BuildError, BusyError, ConfigError, StorageError
from tests.conftest import RecordedConsole
from tests.fakes.build_engine import FakeEngine
from tests.fakes.stages import STAGE


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    return folder


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine({"bin/a": b"product"})


class Build:
    def __init__(self, layout: Layout, source: Path, recorded: RecordedConsole) -> None:
        self.layout, self.source, self.recorded = layout, source, recorded

    def __call__(self, engine: FakeEngine, stage: Stage = STAGE, *, use_cache: bool = True) -> StageResult:
        return run_stage(
            stage,
            engine,
            layout=self.layout,
            source=self.source,
            console=self.recorded.console,
            jobs=2,
            use_cache=use_cache,
        )


@pytest.fixture
def build(layout: Layout, source: Path, recorded: RecordedConsole) -> Build:
    return Build(layout, source, recorded)


def test_the_second_run_does_nothing_and_says_so(build: Build, engine: FakeEngine) -> None:
    first, second = build(engine), build(engine)
    assert (engine.runs, engine.prepared) == (1, 1)
    assert (first.from_cache, second.from_cache) == (False, True)
    assert first.files == second.files
    assert (second.folder / "bin/a").read_bytes() == b"product"
    assert second.log.read_text() == "built by a fake\n"
    assert "stage cpu: nothing to do" in build.recorded.text


def test_another_source_tree_is_built_in_the_same_folder(build: Build, engine: FakeEngine) -> None:
    build(engine)
    (build.layout.build / "stages/host/cpu/kept").touch()
    assert not build(engine, replace(STAGE, source_tree="2" * 40)).from_cache
    assert (build.layout.build / "stages/host/cpu/kept").exists()


def test_a_damaged_result_is_built_again(build: Build, engine: FakeEngine) -> None:
    (build(engine).folder / "bin/a").write_bytes(b"product?")
    again = build(engine)
    assert engine.runs == 2
    assert (again.folder / "bin/a").read_bytes() == b"product"


def test_a_build_without_caches_uses_none_and_leaves_none(build: Build, engine: FakeEngine) -> None:
    build(engine)
    result = build(engine, use_cache=False)
    assert engine.runs == 2
    assert not result.from_cache
    assert result.folder == build.layout.build / "stages/host/cpu"
    assert engine.tool_caches[0].is_relative_to(build.layout.cache)
    assert engine.tool_caches[0].exists()
    assert not engine.tool_caches[1].is_relative_to(build.layout.cache)
    assert not engine.tool_caches[1].exists()
    assert "from scratch" in build.recorded.text


def test_a_cache_that_cannot_be_written_gives_an_uncached_build(build: Build, engine: FakeEngine) -> None:
    """case B19"""
    build.layout.cache.write_text("in the way")
    result = build(engine)
    assert (result.folder / "bin/a").read_bytes() == b"product"
    assert build.recorded.text.count("WARN") == 2


def test_a_failed_stage_stores_nothing(build: Build) -> None:
    engine = FakeEngine({"bin/b": b"another name"})
    with pytest.raises(BuildError):
        build(engine)
    assert not list(build.layout.stages.glob("*"))


def test_an_engine_that_hands_over_while_it_prepares_is_looked_up_again(build: Build) -> None:
    host = FakeEngine({"bin/a": b"product"}, toolchain_id="h" * 64)
    build(host)
    auto = FakeEngine({"bin/a": b"product"}, toolchain_id="d" * 64, prepared_id="h" * 64)
    assert build(auto).from_cache
    assert auto.runs == 0


def test_two_commands_do_not_build_in_one_folder(build: Build, engine: FakeEngine) -> None:
    lock = build.layout.build / "stages/host/cpu.lock"
    with exclusive_lock(lock, "a test"), pytest.raises(BusyError):
        build(engine)
    assert engine.runs == 0


def test_an_absent_source_tree_is_named(build: Build, engine: FakeEngine) -> None:
    build.source.rmdir()
    with pytest.raises(ConfigError, match="no source tree"):
        build(engine)


def test_too_little_space_stops_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(StorageError) as caught:
        require_free_space(tmp_path, 1 << 62)
    assert caught.value.error_id == "disk-low"
    assert f"{1 << 42} MiB are needed" in caught.value.why
