"""Shapes and sizes of caches. What the real engine allocates is compared in tests/integration/models."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.smoke.gguf_file import Value, write_gguf
from opencoti.errors import OpencotiError
from opencoti.models.gguf import read_header
from opencoti.models.kvcache import TYPES, CacheWish, cache_size
from opencoti.models.shape import LayerShape, ModelShape
from opencoti.models.table import load_table
from opencoti.models.words import CACHE_TYPES
from tests.fakes.ollama_store import tiny_gguf
from tests.fakes.tiny_gemma import GemmaShape, gemma_metadata, uint32s

MIB = 1 << 20


def shape_of(tmp_path: Path, data: bytes) -> ModelShape:
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    return ModelShape.from_header(read_header(path), "m.gguf")


def with_keys(metadata: dict[str, Value]) -> bytes:
    buffer = io.BytesIO()
    write_gguf(buffer, metadata, ())
    return buffer.getvalue()


def gemma(tmp_path: Path, **changed: Value) -> ModelShape:
    return shape_of(tmp_path, with_keys({**gemma_metadata(GemmaShape()), **changed}))


def test_plain_model_counts_every_layer_and_token(tmp_path: Path) -> None:
    shape = shape_of(tmp_path, tiny_gguf())
    # 2 layers, 2 KV heads of 64 / 4 = 16 values, keys and values of 2 bytes each.
    assert cache_size(shape, CacheWish(context=4096)).total_bytes == 2 * 2 * 16 * 2 * 2 * 4096
    assert shape.allows_flash_attention_2


def test_context_is_rounded_to_256_cells(tmp_path: Path) -> None:
    shape = shape_of(tmp_path, tiny_gguf())
    sizes = [cache_size(shape, CacheWish(context=n)).full_cells for n in (1, 256, 257, 8191)]
    assert sizes == [256, 256, 512, 8192]


def test_gemma_4_has_two_widths_and_a_window(tmp_path: Path) -> None:
    shape = gemma(tmp_path)
    assert (shape.head_dim, shape.window, len(shape.layers)) == (512, 512, 6)
    assert shape.layers[0] == LayerShape(key_width=1024, value_width=1024, is_windowed=True)
    assert shape.layers[2] == LayerShape(key_width=512, value_width=512, is_windowed=False)
    assert not shape.allows_flash_attention_2


def test_without_flash_attention_values_are_as_wide_as_the_widest_layer(tmp_path: Path) -> None:
    shape = gemma(tmp_path)
    on = cache_size(shape, CacheWish(context=4096, flash_attention="on"))
    off = cache_size(shape, CacheWish(context=4096, flash_attention="off"))
    assert (on.full_bytes, off.full_bytes) == (16 * MIB, 24 * MIB)
    assert on.windowed_bytes == off.windowed_bytes == 16 * MIB
    # Nobody knows what the engine will choose, so the larger one is counted.
    assert cache_size(shape, CacheWish(context=4096)) == off


def test_window_grows_with_slots_and_never_beyond_the_context(tmp_path: Path) -> None:
    shape = gemma(tmp_path)
    cells = [cache_size(shape, CacheWish(context=4096, slots=n)).windowed_cells for n in (1, 2, 4, 16)]
    assert cells == [1024, 1536, 2560, 4096]
    assert cache_size(shape, CacheWish(context=256)).windowed_cells == 256
    apart = cache_size(shape, CacheWish(context=4096, slots=2, is_shared=False))
    assert (apart.full_cells, apart.windowed_cells) == (4096, 2048)


def test_layers_that_share_a_cache_are_not_counted(tmp_path: Path) -> None:
    assert len(gemma(tmp_path, **{"gemma4.attention.shared_kv_layers": Value.uint32(4)}).layers) == 2


def test_older_families_have_a_pattern_of_their_own(tmp_path: Path) -> None:
    shape = shape_of(tmp_path, tiny_gguf("gemma3", block_count=12, **{"attention.sliding_window": 512}))
    assert [layer.is_windowed for layer in shape.layers] == ([True] * 5 + [False]) * 2


def test_unknown_families_are_counted_without_windows(tmp_path: Path) -> None:
    shape = shape_of(tmp_path, tiny_gguf("newcomer", **{"attention.sliding_window": 512}))
    assert not any(layer.is_windowed for layer in shape.layers)


def test_layers_without_attention_take_nothing(tmp_path: Path) -> None:
    metadata = {
        "general.architecture": Value.string("hybrid"),
        "hybrid.block_count": Value.uint32(4),
        "hybrid.embedding_length": Value.uint32(64),
        "hybrid.attention.head_count": uint32s([0, 0, 4, 0]),
        "hybrid.attention.head_count_kv": uint32s([0, 0, 2, 0]),
        "hybrid.ssm.state_size": Value.uint32(16),
    }
    shape = shape_of(tmp_path, with_keys(metadata))
    assert (len(shape.layers), shape.has_state) == (1, True)


def test_latent_attention_keeps_one_row_and_no_values(tmp_path: Path) -> None:
    own = {"attention.head_count_kv": 1, "attention.key_length": 576, "attention.key_length_mla": 192}
    shape = shape_of(tmp_path, tiny_gguf("deepseek2", **own))
    assert shape.layers[0] == LayerShape(key_width=576, value_width=0, is_windowed=False)
    assert cache_size(shape, CacheWish(context=256)).total_bytes == 2 * 576 * 2 * 256


@pytest.mark.parametrize(
    ("word", "per_value"), [("f32", 4), ("f16", 2), ("q8_0", 34 / 32), ("q5_1", 24 / 32), ("q4_0", 18 / 32)]
)
def test_quantised_caches_are_smaller(word: str, per_value: float) -> None:
    layer = LayerShape(key_width=1024, value_width=1024, is_windowed=False)
    shape = ModelShape(architecture="x", layers=(layer,), window=0, context=0, head_dim=128)
    size = cache_size(shape, CacheWish(context=256, key_type=word, value_type=word))
    assert size.total_bytes == 2 * 1024 * per_value * 256


def test_quantised_values_are_refused_where_flash_attention_2_cannot_compute(tmp_path: Path) -> None:
    shape = gemma(tmp_path)
    with pytest.raises(OpencotiError) as caught:
        cache_size(shape, CacheWish(context=256, value_type="q8_0"))
    assert caught.value.error_id == "cache-needs-flash-attention"
    assert "512" in caught.value.why
    cache_size(shape, CacheWish(context=256, key_type="q8_0"))
    cache_size(shape, CacheWish(context=256, value_type="q8_0", flash_attention="on"))
    with pytest.raises(OpencotiError):
        cache_size(shape, CacheWish(context=256, value_type="q8_0", flash_attention="off"))


@pytest.mark.parametrize(
    "wish",
    [
        CacheWish(context=0),
        CacheWish(context=1 << 40),
        CacheWish(context=256, slots=0),
        CacheWish(context=256, key_type="q3_k"),
        CacheWish(context=256, batch=0),
    ],
)
def test_impossible_wishes_are_refused(tmp_path: Path, wish: CacheWish) -> None:
    with pytest.raises(OpencotiError) as caught:
        cache_size(gemma(tmp_path), wish)
    assert caught.value.error_id == "bad-cache-wish"


@pytest.mark.parametrize(
    "own",
    [
        {"block_count": 0},
        {"block_count": 100_000},
        {"attention.head_count_kv": 1 << 31},
        {"attention.head_count": 0, "embedding_length": 0},
    ],
)
def test_nonsense_in_a_header_is_an_error_and_no_number(tmp_path: Path, own: dict[str, int]) -> None:
    with pytest.raises(OpencotiError) as caught:
        shape_of(tmp_path, tiny_gguf("llama", **own))
    assert caught.value.error_id == "model-shape-unknown"


@given(context=st.integers(1, 1 << 20), slots=st.integers(1, 16), key=st.sampled_from(CACHE_TYPES))
def test_more_context_never_takes_less(context: int, slots: int, key: str) -> None:
    shape = load_table().shape.as_shape()
    wish = CacheWish(context=context, slots=slots, key_type=key)
    more = CacheWish(context=context + 256, slots=slots, key_type=key)
    assert cache_size(shape, wish).total_bytes <= cache_size(shape, more).total_bytes


def test_words_of_the_command_line_are_the_types_that_are_known() -> None:
    assert tuple(TYPES) == CACHE_TYPES
