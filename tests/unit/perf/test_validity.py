"""Traps in which a bench looks good and measures something else are told, and only those (cases B57, B59)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ci.paths import Layout
from ci.smoke.gguf_file import read_metadata
from ci.smoke.model import SMALL_VOCABULARY, Shape, make_tiny_model
from ci.smoke.target import Target
from opencoti.errors import OpencotiError
from perf.bigctx import Reading
from perf.bigctx import rows_of as bigctx_rows
from perf.devices import BenchDevice, assemble
from perf.paired import BenchModel, PairedOptions, find_model
from perf.sides import Answer
from perf.texts import first_messages, text
from perf.turn2 import SHARES, Scenario, Talk, rows_of, scenarios
from perf.validity import (
    answer_problems,
    depth_problems,
    prefill_problems,
    prefix_break,
    prefix_problem,
    reuse_problems,
    same_text_problem,
)
from tests.unit.perf.answers import GOOD, answer


def test_good_answer_has_nothing_against_it() -> None:
    assert [*answer_problems(GOOD), *prefill_problems(GOOD), *reuse_problems(GOOD, sent_n=0)] == []
    assert (GOOD.prefill_rate, GOOD.decode_rate) == (4000.0, 64.0)
    assert GOOD.overhead_s == pytest.approx(0.1)
    assert GOOD.first_token_s == pytest.approx(2.1)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"cache_n": 6000}, "8000 computed and 6000 cached are not the 8000"),
        ({"prompt_n": 2000}, "2000 computed and 0 cached are not the 8000"),
        ({"predicted_n": 3}, "the answer has 3 tokens, 33 were asked for"),
        ({"prompt_s": 9.0}, "took 9.500 s of a request that took 2.600 s"),
    ],
)
def test_counts_and_clocks_that_contradict_each_other(changes: dict[str, float], says: str) -> None:
    (problem,) = answer_problems(replace(GOOD, **changes))  # type: ignore[arg-type]
    assert says in problem


def test_cached_tokens_are_never_part_of_a_rate() -> None:
    cached = replace(GOOD, cache_n=6000, prompt_n=2000, prompt_s=0.5)
    assert list(answer_problems(cached)) == []
    assert cached.prefill_rate == 4000.0
    (problem,) = prefill_problems(cached)
    assert "6000 of 8000 tokens came from a cache" in problem


def test_rate_at_depth_counts_only_what_was_appended() -> None:
    turn = replace(GOOD, cache_n=7480, prompt_n=520)
    assert list(depth_problems(turn, new_n=512)) == []
    (problem,) = depth_problems(GOOD, new_n=512)
    assert "8000 tokens were computed where 512 were appended" in problem


def test_more_reuse_than_was_sent_is_impossible() -> None:
    turn = replace(GOOD, cache_n=7000, prompt_n=1000)
    assert list(reuse_problems(turn, sent_n=7000)) == []
    assert "7000 tokens are said to be reused, and at most 100" in next(reuse_problems(turn, sent_n=100))


@pytest.mark.parametrize(
    ("before", "after", "position"),
    [("abc", "abcd", None), ("abc", "abx", 2), ("abc", "ab", 2), ("", "x", None)],
)
def test_first_place_where_a_prefix_breaks_is_told_case_b57(
    before: str, after: str, position: int | None
) -> None:
    assert prefix_break(before, after) == position
    told = prefix_problem(position)
    assert told == (
        "" if position is None else f"prefix not stable: the prompts differ from character {position} on"
    )


def test_different_answers_are_told_with_the_place() -> None:
    assert same_text_problem("abc", "abc") == ""
    assert "character 1" in same_text_problem("abc", "axc")
    assert "character 3" in same_text_problem("abc", "abcd")


def test_silent_fall_back_to_the_processor_is_a_problem() -> None:
    gpu = BenchDevice(target=Target(kind="vulkan", device="Vulkan0"))
    log = "load_tensors: layer   0 assigned to device CPU, is_swa = 0\n"
    (problem,) = gpu.problems(log, layers=2)
    assert "not everything was computed on Vulkan0" in problem
    assert BenchDevice().problems(log, layers=2) == ()


def test_server_is_put_together_with_its_backend(tmp_path: Path) -> None:
    for name in ("bin/llama-server", "bin/libggml.so.0.1", "gpu/libggml-vulkan.so"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "bin" / "libggml.so.0").symlink_to("libggml.so.0.1")
    server = assemble(tmp_path / "bin/llama-server", tmp_path / "gpu/libggml-vulkan.so", tmp_path / "engine")
    found = {path.name: path.read_text() for path in server.parent.iterdir()}
    assert found == {
        "llama-server": "bin/llama-server",
        "libggml.so.0": "bin/libggml.so.0.1",
        "libggml.so.0.1": "bin/libggml.so.0.1",
        "libggml-vulkan.so": "gpu/libggml-vulkan.so",
    }
    assert not (server.parent / "libggml.so.0").is_symlink()


def test_texts_share_what_they_should_and_nothing_else() -> None:
    one, two = (first_messages(number, shared=300, own=100) for number in (1, 2))
    assert one[0] == two[0]
    assert prefix_break(one[1]["content"], two[1]["content"]) == len("Task ")
    assert text("Task", 1, 100) == text("Task", 1, 100)
    assert len(text("Task", 1, 100).split()) == 98


def test_scenarios_are_the_whole_matrix_and_one_with_a_small_cache() -> None:
    found = scenarios(PairedOptions(sessions=(2, 8), contexts=(1000,), runs=3))
    assert len(found) == len(SHARES) * 2 + 1
    assert found[-1].name == "8 sessions on 4 slots, 75 % shared, cache 8 MiB"
    assert found[0].shared_tokens == 500
    assert len(scenarios(PairedOptions(sessions=(2,)))) == len(SHARES)


def talk(number: int, *answers: Answer, problems: tuple[str, ...] = ()) -> Talk:
    return Talk(number=number, messages=[], answers=list(answers), problems=list(problems))


def test_rows_of_turn2_count_what_was_sent_before_and_not_what_was_appended() -> None:
    scenario = Scenario(sessions=2, share=75, tokens=1000, turns=1)
    first, fork = answer(cached=0, total=1000, wall_s=1.1), answer(cached=750, total=1000, wall_s=0.6)
    lost = [answer(cached=750, total=1030, wall_s=0.6), answer(cached=0, total=1060, wall_s=1.2)]
    kept = [answer(cached=990, total=1030, wall_s=0.2), answer(cached=1030, total=1060, wall_s=0.2)]
    talks = {
        "stock": [talk(0, first, *lost), talk(1, first, *lost)],
        "ours": [talk(0, first, *kept), talk(1, fork, *kept)],
    }
    rows = {row.metric: row for row in rows_of(scenario, talks, [])}
    again = rows["tokens computed again, turn 2 and later"]
    assert (again.stock, again.ours) == ((250.0, 250.0), (10.0, 10.0))
    after = rows["tokens computed again, after a restart"]
    assert (after.stock, after.ours) == ((1030.0, 1030.0), (0.0, 0.0))
    assert rows["first token, turn 2 and later"].ours == pytest.approx((0.1, 0.1))
    assert rows["processor time, turn 2 and later"].stock == pytest.approx((0.3, 0.3))
    forked = rows["tokens computed, first turn of later sessions"]
    assert (forked.stock, forked.ours) == ((1000.0,), (250.0,))


def test_rows_of_turn2_name_the_side_whose_answers_do_not_count() -> None:
    turns = [answer(cached=0, total=10, wall_s=1.0)] * 3
    scenario = Scenario(sessions=1, share=50, turns=1)
    talks = {"stock": [talk(0, *turns)], "ours": [talk(0, *turns, problems=("early end",))]}
    rows = list(rows_of(scenario, talks, ["prefix not stable: x"]))
    assert {row.problems for row in rows} == {("prefix not stable: x", "ours: early end")}


def test_rows_of_long_contexts_tell_depth_from_the_whole_and_compare_the_texts() -> None:
    def reading(wall_s: float, said: str) -> Reading:
        long = [answer(cached=0, total=1000, wall_s=wall_s, text=said)] * 2
        again = [answer(cached=1000, total=1030, wall_s=wall_s)] * 2
        deep = [answer(cached=1000, total=1500, wall_s=wall_s, predicted_s=0.2)] * 16
        return Reading(long=long, again=again, deep=deep, beside=again)

    rows = {
        row.metric: row
        for row in bigctx_rows("tiny, 1k", {"stock": reading(2.1, "a"), "ours": reading(1.1, "b")}, [])
    }
    assert rows["first token of the next turn"].stock == pytest.approx((2.0, 2.0))
    assert rows["prefill"].ours == pytest.approx((10_000.0, 10_000.0))
    assert rows["prefill"].better == "higher"
    assert rows["prefill at depth"].stock == pytest.approx((5_000.0,) * 16)
    assert rows["decoding at depth"].stock == pytest.approx((160.0,) * 16)
    differing = rows["answers that differ from stock's"]
    assert differing.ours == (2.0,)
    assert "first at character 0" in differing.problems[0]
    assert rows["prefill"].problems == ()


def test_model_that_nobody_makes_is_refused(layout: Layout) -> None:
    with pytest.raises(OpencotiError) as caught:
        find_model(layout, "huge")
    assert (caught.value.error_id, caught.value.exit_code) == ("perf-model", 2)


def test_wide_model_is_made_from_the_vocabulary_and_has_its_shape(
    tmp_path: Path, real_layout: Layout
) -> None:
    shape = Shape(layers=1, width=64, feed_forward=64, heads=2, kv_heads=1, context=4096)
    vocabulary = real_layout.sources / "llama.cpp" / SMALL_VOCABULARY
    made = make_tiny_model(vocabulary, tmp_path / "model.gguf", shape=shape)
    metadata = read_metadata(made.read_bytes())
    assert metadata["qwen2.context_length"].raw == (4096).to_bytes(4, "little")
    assert metadata["qwen2.block_count"].raw == (1).to_bytes(4, "little")
    model = BenchModel(name="x", path=made, shape=shape)
    assert "--ctx-size 400 --parallel 4" in " ".join(model.arguments(100, slots=4))


def test_question_that_came_too_late_does_not_count() -> None:
    missed = Reading(missed=["the long prompt was read before the short question was asked"])
    rows = list(bigctx_rows("x", {"stock": missed, "ours": Reading()}, []))
    assert {row.problems[0] for row in rows} == {
        "stock: the long prompt was read before the short question was asked"
    }
