"""What the real engine allocates for its cache, against what we count from the header."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from ci.paths import Layout
from opencoti.launch.engine import launch
from opencoti.models.gguf import read_header
from opencoti.models.kvcache import CacheWish, cache_size
from opencoti.models.shape import ModelShape
from tests.fakes.tiny_gemma import make_tiny_gemma
from tests.integration.launch.real import real_options

pytestmark = pytest.mark.engine
_LINE = re.compile(r"llama_kv_cache: size = +([0-9.]+) MiB \( *(\d+) cells, +(\d+) layers")
_MIB = 1 << 20
_QUANTISED = ("--cache-type-k", "q8_0", "--cache-type-v", "q4_0")


@dataclass(frozen=True)
class Allocated:
    mib: float
    cells: int
    layers: int


def allocated(layout: Layout, model: Path, folder: Path, *words: str) -> list[Allocated]:
    """Start the engine, and read off its log what it has allocated."""
    options = replace(real_options(layout), model=model, arguments=("--log-verbosity", "4", *words))
    with launch(options, environ={**os.environ, "OPENCOTI_CACHE_DIR": str(folder)}) as engine:
        log = engine.log_path.read_text(errors="replace")
    return [Allocated(float(mib), int(cells), int(layers)) for mib, cells, layers in _LINE.findall(log)]


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory, real_layout: Layout) -> Path:
    vocabulary = real_options(real_layout).model
    assert vocabulary is not None
    return make_tiny_gemma(vocabulary, tmp_path_factory.mktemp("gemma") / "tiny-gemma4.gguf")


def shape_of(model: Path) -> ModelShape:
    return ModelShape.from_header(read_header(model), model.name)


@pytest.mark.parametrize(
    ("words", "wish"),
    [
        (("--parallel", "1", "--flash-attn", "off"), CacheWish(context=4096, flash_attention="off")),
        (
            ("--parallel", "2", "--kv-unified", "--flash-attn", "on", *_QUANTISED),
            CacheWish(context=4096, flash_attention="on", slots=2, key_type="q8_0", value_type="q4_0"),
        ),
        (
            ("--parallel", "2", "--no-kv-unified", "--flash-attn", "on"),
            CacheWish(context=4096, flash_attention="on", slots=2, is_shared=False),
        ),
    ],
)
def test_cache_of_a_gemma_4_is_as_counted(
    real_layout: Layout, gemma: Path, tmp_path: Path, words: tuple[str, ...], wish: CacheWish
) -> None:
    full, windowed = allocated(real_layout, gemma, tmp_path, "--ctx-size", "4096", *words)
    counted = cache_size(shape_of(gemma), wish)
    assert (full.layers, windowed.layers) == (2, 4)
    streams = 1 if wish.is_shared else wish.slots
    assert full.cells * streams == counted.full_cells
    assert windowed.cells * streams == counted.windowed_cells
    assert full.mib == pytest.approx(counted.full_bytes / _MIB, abs=0.01)
    assert windowed.mib == pytest.approx(counted.windowed_bytes / _MIB, abs=0.01)


def test_cache_of_a_plain_model_is_as_counted(real_layout: Layout, tmp_path: Path) -> None:
    model = real_options(real_layout).model
    assert model is not None
    words = ("--ctx-size", "2048", "--parallel", "1", "--cache-type-k", "q8_0")
    (found,) = allocated(real_layout, model, tmp_path, *words)
    counted = cache_size(shape_of(model), CacheWish(context=2048, key_type="q8_0"))
    assert found.mib == pytest.approx(counted.total_bytes / _MIB, abs=0.01)
