"""The launcher with the real engine."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ci.paths import Layout
from opencoti import procfs
from opencoti.errors import OpencotiError
from opencoti.launch.engine import launch
from tests.conftest import ROOT
from tests.integration.launch.conftest import Bench, is_open, wait_gone
from tests.integration.launch.real import launch_real, real_options

pytestmark = pytest.mark.engine


def test_real_engine_is_ready_alone_and_gone(bench: Bench, real_layout: Layout) -> None:
    with launch_real(real_layout, bench.cache) as engine:
        state = engine.state
        assert state.alias == real_options(real_layout).model.name  # type: ignore[union-attr]
        assert any("ggml-cpu" in path for path in state.libraries)
        ours = procfs.sockets_of((state.engine.pid,))
        listeners = [item for item in procfs.listeners() if item.inode in ours]
        assert [(item.port, item.is_loopback) for item in listeners] == [(engine.port, True)]
    assert not is_open(state.port)
    bench.require_nothing_left()


def test_demanded_gpu_that_this_build_lacks_is_an_error(bench: Bench, real_layout: Layout) -> None:
    options = real_options(real_layout, gpu="vulkan")
    with pytest.raises(OpencotiError) as caught:
        launch(options, environ={**os.environ, "OPENCOTI_CACHE_DIR": str(bench.cache)})
    assert caught.value.error_id == "gpu-not-usable"
    bench.require_nothing_left()


def test_engine_refuses_a_model_that_is_none(bench: Bench, real_layout: Layout) -> None:
    (bench.root / "bad.gguf").write_bytes(b"no model at all")
    with pytest.raises(OpencotiError) as caught:
        launch_real(real_layout, bench.cache, model=bench.root / "bad.gguf")
    assert caught.value.error_id == "engine-died"
    bench.require_nothing_left()


SCRIPT = """
import os, signal, sys
from pathlib import Path
from opencoti.launch import launch, LaunchOptions
engine = launch(LaunchOptions(binary=Path(sys.argv[1]), model=Path(sys.argv[2])))
print(engine.pid, engine.state.keeper.pid, engine.port, flush=True)
signal.pause()
"""


@pytest.mark.parametrize("seed", range(5))
def test_killed_at_random_it_leaves_nothing(bench: Bench, real_layout: Layout, seed: int) -> None:
    """Five of the cycles that were run a hundred times by hand."""
    options = real_options(real_layout)
    dice = random.Random(seed)
    argv = [sys.executable, "-c", SCRIPT, str(options.binary), str(options.model)]
    environ = {**bench.environ, "PYTHONPATH": str(ROOT), "OPENCOTI_CACHE_DIR": str(bench.cache)}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout is not None
        engine, keeper, port = map(int, process.stdout.readline().split())
        victim = dice.choice((process.pid, keeper, engine))
        os.kill(victim, dice.choice((signal.SIGKILL, signal.SIGTERM)))
        process.kill()
        assert wait_gone(engine, 5)
        assert wait_gone(keeper, 5)
    assert not is_open(port)
    assert bench.processes() == []
    if victim != keeper:
        assert [path for path in bench.engines.iterdir() if Path(path / "engine.log").exists()] == []
