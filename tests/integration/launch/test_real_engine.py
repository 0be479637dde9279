"""The launcher with the real engine."""

from __future__ import annotations

import os
import random

import pytest

from ci.paths import Layout
from opencoti import procfs
from opencoti.errors import OpencotiError
from opencoti.launch.engine import launch
from perf.launch import prepared
from perf.launch_kills import one_cycle
from tests.integration.launch.conftest import Bench, is_open
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


@pytest.mark.parametrize("seed", range(5))
def test_killed_at_random_it_leaves_nothing_case_b47(real_layout: Layout, seed: int) -> None:
    """Five of the cycles of `python -m perf launch_kills --runs 100`."""
    real_options(real_layout)
    with prepared(real_layout) as case:
        assert one_cycle(case, random.Random(seed)).left == ()
