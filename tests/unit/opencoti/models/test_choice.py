"""Which quant for which card: the rules of the table."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ci.paths import Layout
from opencoti.errors import MissingError, OpencotiError
from opencoti.models.choice import Recommendation, Wish, recommend
from opencoti.models.gguf import read_header
from opencoti.models.kvcache import CacheWish
from opencoti.models.shape import ModelShape
from opencoti.models.table import load_table
from opencoti.models.words import vram_bytes
from tests.conftest import require

GIB = 1 << 30
TABLE = load_table()


def taken(gib: float, context: int = 8192, **words: object) -> Recommendation:
    wish = Wish(cache=CacheWish(context=context), **words)  # type: ignore[arg-type]
    return recommend(TABLE, int(gib * GIB), wish)


@pytest.mark.parametrize(
    ("gib", "context", "quant"),
    [
        (8, 8192, "IQ2_S"),
        (10, 8192, "IQ3_M"),
        (12, 8192, "IQ4_XS"),
        (11.9, 8192, "IQ4_XS"),  # what a card of 12 GB reports
        (16, 8192, "Q4_K_S"),
        (16, 131_072, "IQ4_XS"),
        (24, 8192, "Q8_0"),
        (24, 131_072, "Q5_K_L"),
        (24, 262_144, "Q5_K_L"),
        (80, 262_144, "Q8_0"),
    ],
)
def test_cards_get_what_the_table_says_is_for_them(gib: float, context: int, quant: str) -> None:
    assert taken(gib, context).taken.quant.name == quant


def test_ten_gigabytes_get_the_default_and_are_told_what_does_not_fit() -> None:
    found = taken(10)
    assert found.where == "gpu-and-memory"
    assert 0 < found.taken.spill_bytes < GIB
    assert any("do not fit" in text for text in found.warnings)


def test_without_a_gpu_the_default_computes_in_memory() -> None:
    found = taken(0, ram_bytes=32 * GIB)
    assert (found.taken.quant.name, found.where) == ("IQ3_M", "memory")
    assert taken(0, ram_bytes=12 * GIB).taken.quant.name == "IQ2_S"


def test_without_a_gpu_quants_are_measured_against_the_memory() -> None:
    verdicts = {item.quant.name: item.reason for item in taken(0, ram_bytes=20 * GIB).candidates}
    assert verdicts["IQ2_S"] == "it fits, but scores 85.37 %"
    assert verdicts["Q5_K_L"] == "it fits, but IQ3_M is preferred"
    assert verdicts["Q8_0"] == "5.2 GiB too big"  # 80 % of the memory may be taken


@pytest.mark.parametrize("gib", [float("nan"), float("inf"), -1.0, 1e300])
def test_memory_that_no_card_has_is_refused(gib: float) -> None:
    with pytest.raises(OpencotiError) as caught:
        vram_bytes(gib)
    assert (caught.value.error_id, caught.value.exit_code) == ("bad-vram", 2)


def test_memory_of_a_card_is_given_in_gib() -> None:
    assert (vram_bytes(0), vram_bytes(11.5)) == (0, 23 * GIB // 2)


def test_nothing_fits_is_an_error_with_the_figures() -> None:
    with pytest.raises(OpencotiError) as caught:
        taken(0, ram_bytes=4 * GIB)
    assert (caught.value.error_id, caught.value.exit_code) == ("model-does-not-fit", 4)
    assert "IQ2_S needs" in caught.value.why


def test_the_user_decides() -> None:
    found = taken(8, quant="q8_0")
    assert found.taken.quant.name == "Q8_0"
    assert "you asked for it" in found.reason
    assert taken(24, 131_072, families=("cd",)).taken.quant.name == "CD-Q4_K_M_L"


def test_unknown_quant_names_the_near_ones() -> None:
    with pytest.raises(OpencotiError) as caught:
        taken(8, quant="IQ4XS")
    assert (caught.value.error_id, "IQ4_XS" in caught.value.why) == ("quant-unknown", True)


def test_what_others_hold_of_the_card_counts() -> None:
    assert taken(24, free_bytes=14 * GIB).taken.quant.name == "Q4_K_S"


def test_reference_files_are_never_recommended() -> None:
    verdicts = {item.quant.name: item.reason for item in taken(200).candidates}
    assert verdicts["F16"] == "for reference only"
    assert verdicts["Q8_0"] == "taken"


def test_flash_attention_is_never_switched_on_and_values_stay_whole() -> None:
    found = taken(24)
    assert found.engine_arguments() == ("--ctx-size", "8192", "--parallel", "1")
    with pytest.raises(OpencotiError) as caught:
        recommend(TABLE, 24 * GIB, Wish(cache=CacheWish(context=8192, value_type="q8_0")))
    assert caught.value.error_id == "cache-needs-flash-attention"
    insisted = CacheWish(context=8192, value_type="q8_0", flash_attention="on")
    words = recommend(TABLE, 24 * GIB, Wish(cache=insisted))
    assert words.engine_arguments()[4:] == ("--flash-attn", "on", "--cache-type-v", "q8_0")
    assert any("FlashAttention-2" in text for text in words.warnings)


def test_largest_context_is_the_edge_of_what_fits() -> None:
    found = taken(16)
    edge = found.largest_context
    assert taken(16, edge, quant="Q4_K_S").taken.spill_bytes == 0
    assert taken(16, edge + 256, quant="Q4_K_S").taken.spill_bytes > 0


def test_context_beyond_training_is_warned_about() -> None:
    assert any("262144" in text for text in taken(80, 300_000).warnings)


@given(gib=st.floats(0, 200), context=st.integers(256, 262_144), ram=st.integers(16, 512))
@example(gib=0.0, context=147_201, ram=16)
def test_what_is_said_to_fit_fits(gib: float, context: int, ram: int) -> None:
    try:
        found = taken(gib, context, ram_bytes=ram * GIB)
    except MissingError:
        least = min(TABLE.quants, key=lambda quant: quant.size_bytes)
        without = taken(gib, context, ram_bytes=ram * GIB, quant=least.name).taken
        assert without.spill_bytes > 0.8 * ram * GIB  # the rest is the system's
        return
    if found.where == "gpu":
        assert found.taken.needed_bytes <= gib * GIB
    assert found.taken.needed_bytes == (
        found.taken.quant.size_bytes + found.taken.cache_bytes + TABLE.working_bytes
    )


def test_shape_in_the_table_is_that_of_the_real_header(real_layout: Layout) -> None:
    """The vocabulary file of the pinned source has the header of the model that ours was pruned from."""
    path = real_layout.sources / "llama.cpp" / "models" / "ggml-vocab-gemma-4.gguf"
    require(path.is_file(), "no pinned source: run ./noxw -s vendor")
    assert ModelShape.from_header(read_header(path), str(path)) == TABLE.shape.as_shape()


def test_table_of_a_user_is_checked(tmp_path: Path) -> None:
    document = TABLE.model_dump(mode="json", by_alias=True)
    path = tmp_path / "quants.json"

    def error_of(changed: dict[str, object]) -> str:
        path.write_text(json.dumps(document | changed))
        with pytest.raises(OpencotiError) as caught:
            load_table(path)
        return f"{caught.value.error_id}: {caught.value.why}"

    assert "its schema is" in error_of({"schema": "opencoti.quants/2"})
    assert "default is not among" in error_of({"default": "Q9"})
    assert "two quants have one name" in error_of({"quants": document["quants"] * 2})
    assert error_of({"quants": []}).startswith("quants-malformed")
    path.write_text(json.dumps(document))
    assert load_table(path) == TABLE


def test_default_wish_is_a_context_that_small_cards_can_hold() -> None:
    assert recommend(TABLE, 12 * GIB).cache == replace(Wish().cache)
